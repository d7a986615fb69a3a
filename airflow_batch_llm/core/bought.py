"""What a job paid for, noted for later jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_batch_llm.core.fates import Fate
from airflow_batch_llm.core.files import iter_requests
from airflow_batch_llm.core.model import Batch, BoughtAnswer, Job
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.reuse import connection_digest, task_digest
from airflow_batch_llm.core.tools import Tools, read_description


def record_bought(tools: Tools, job: Job, batches: Sequence[Batch], index: RowIndex) -> None:
    """Note the job's paid answers in the ledger where it was given ``reuse``, whatever its scope."""
    if job.plan_id is None or not read_description(tools.workspace, tools.root, job.plan_id).get("reuse"):
        return
    tools.fault("reuse.before_recorded")
    tools.ledger.record_answers(_bought(tools, job, batches, index))


def _bought(tools: Tools, job: Job, batches: Sequence[Batch], index: RowIndex) -> Iterator[BoughtAnswer]:
    task = task_digest(job.key)
    for number, batch in enumerate(batches):
        wires = set(index.keys(a=Fate.ANSWERED, b=number))
        if not wires:
            continue
        connection = connection_digest(batch.conn_id)
        for request in iter_requests(tools.workspace, tools.root, batch):
            if request.hash and request.wire_id in wires:
                yield BoughtAnswer(
                    request_hash=request.hash,
                    task=task,
                    connection="" if request.changed else connection,
                    job_id=job.job_id,
                    batch_id=batch.batch_id,
                    wire_id=request.wire_id,
                    answered_at=batch.ended_at or batch.updated_at,
                )
