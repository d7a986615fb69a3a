"""What a job's time being over means: ``on_deadline`` decides."""

from __future__ import annotations

from airflow_batch_llm.core.model import Batch, Job, JobState
from airflow_batch_llm.core.spec import OnDeadline
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.unmade import delete_upload, same_outcome
from airflow_batch_llm.core.verdicts import Verdict

#: Halt code of a job whose time is over.
DEADLINE = "BLLM-043"
#: Code of rows whose batch was not sent in time.
TOO_LATE = "job_timeout"


def is_late(tools: Tools, job: Job) -> bool:
    """Say whether the job's time is over."""
    return job.deadline_at is not None and tools.ledger.now() > job.deadline_at


def leaves_all_as_it_is(tools: Tools, job: Job) -> bool:
    """Say whether the job's time is over and what is still under way is left to a person."""
    return tools.spec.on_deadline is OnDeadline.FAIL and is_late(tools, job)


def halt_late(tools: Tools, job: Job, reason: str) -> Job:
    """Stop a job whose time is over, unless it was given a new one at this moment; returns it as it is."""
    while True:
        job = tools.reload(job)
        if job.state not in (JobState.STAGING, JobState.RUNNING) or not is_late(tools, job):
            return job
        if (halted := tools.ledger.halt_job(job, DEADLINE, reason)) is not None:
            log.error("job %s: its time is over, %s", job.job_id, reason)
            return halted


def batch_bound(tools: Tools, batch: Batch) -> float | None:
    """Return when a batch is given up: the provider's window and one hour after it was accepted."""
    if batch.submitted_at is None:
        return None
    return batch.submitted_at + tools.backend_of(batch).limits.window_seconds + 3600.0


async def give_up_unsent(tools: Tools, batch: Batch) -> None:
    """Count the rows of a batch that was not sent in time as expired, which charges them nothing."""
    result = same_outcome(tools, batch, Verdict.EXPIRED, TOO_LATE)
    tools.fault("deadline.before_given_up")
    if tools.ledger.give_up_unsent(batch, result, reason=TOO_LATE) is None:
        return  # sent, or given up, or given more time by somebody else at this moment
    log.warning("batch %s: the job's time is over; its %d rows are not sent", batch.batch_id, batch.requests)
    if not batch.attempt:
        await delete_upload(tools, batch)
