"""observe: submitted -> ended. A direct GET; the waiting itself is the trigger's."""

from __future__ import annotations

from airflow_batch_llm.core.model import Batch, Job
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.exceptions import NotFound


async def observe_batch(tools: Tools, job: Job, batch: Batch) -> Batch | None:
    """Look at one submitted batch; returns it as ended, or None while it runs.

    Past the job's or the batch's own time the provider is asked, once, to cancel it.
    """
    try:
        remote = await tools.backend.retrieve(batch.provider_batch_id or "")
    except NotFound:
        tools.ledger.mark_lost(batch, "provider answers 404")
        tools.halt(job, "BLLM-031", f"batch {batch.batch_id} is unknown to the provider")
        return None
    if remote.status.terminal:
        tools.fault("observe.before_ended")
        ended = tools.ledger.mark_ended(batch, remote)
        return ended if ended is not None else tools.ledger.get_batch(batch.batch_id)
    if batch.cancel_asked_at is None and (overdue := _overdue(tools, job, batch)):
        log.warning("batch %s: %s; asking the provider to cancel it", batch.batch_id, overdue)
        if tools.ledger.ask_cancel(batch, actor="machine", reason=overdue) is not None:
            tools.fault("observe.before_cancel")
            await tools.backend.cancel(remote.id)
    return None


def _overdue(tools: Tools, job: Job, batch: Batch) -> str | None:
    now = tools.ledger.now()
    if job.deadline_at is not None and now > job.deadline_at:
        return "job_timeout"
    window = tools.backend.limits.window_seconds + 3600.0
    if batch.submitted_at is not None and now > batch.submitted_at + window:
        return "batch_timeout"
    return None
