"""What a task that decides about the run says of a halted job."""

from __future__ import annotations

import re

from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Job
from airflow_batch_llm.exceptions import JobHalted

_SHOWN = 3
#: A code is a short token; whatever else a provider puts there may quote what it was asked.
_CODE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def refuse_halted(ledger: Ledger, job: Job) -> None:
    """Fail the task that decides about the run. :raises JobHalted: the job waits for a person."""
    if not job.halt_code:
        return
    causes = halt_causes(ledger, job)
    why = f"{job.halt_code}: {causes}" if causes else job.halt_code
    raise JobHalted(
        f"job {job.job_id} is halted ({why}). What was paid is published, the rest is pending: mend the "
        f"cause, then `batch-llm resume` or `accept`, or clear the tasks of the job; `batch-llm show "
        f"{job.job_id[:12]}` tells what it needs"
    )


def halt_causes(ledger: Ledger, job: Job) -> str:
    """Name the error codes of the revision's batches, each with one batch, the newest first."""
    causes: dict[str, str] = {}
    for batch in reversed(ledger.batches(job.job_id, revision=job.revision)):
        if batch.error_code and _CODE.fullmatch(batch.error_code):
            causes.setdefault(batch.error_code, batch.batch_id)
    return ", ".join(f"{code} in batch {batch_id}" for code, batch_id in list(causes.items())[:_SHOWN])
