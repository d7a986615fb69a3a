"""observe: submitted -> ended. A direct GET; the waiting itself is the trigger's."""

from __future__ import annotations

from airflow_batch_llm.core.deadline import batch_bound, is_late, leaves_all_as_it_is
from airflow_batch_llm.core.doubts import ask_to_cancel
from airflow_batch_llm.core.model import MACHINE, Batch, BatchKind, Job, RemoteStatus
from airflow_batch_llm.core.places import is_it, refuse_moved
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.exceptions import AccountError, AuthError, NotFound


async def observe_batch(tools: Tools, job: Job, batch: Batch) -> AuthError | AccountError | None:
    """Look at one submitted batch, and note its end.

    Past the job's or the batch's own time the provider is asked to cancel it, unless ``on_deadline`` leaves
    that to a person, or it may be somebody else's. Returns why the account may not cancel it, for the caller
    to raise: the other batches are looked at first, as looking works.

    :raises ConfigurationError: it is not shown, and its connection names another server or account by now.
    """
    backend = tools.backend_of(batch)
    try:
        remote = await backend.retrieve(batch.provider_batch_id or "")
    except NotFound:
        remote = None
    if remote is None or not is_it(backend, batch, remote):
        refuse_moved(tools, batch)
        _take_as_lost(tools, job, batch)
        return None
    if remote.status.terminal:
        tools.fault("observe.before_ended")
        tools.ledger.mark_ended(batch, remote)
        return None
    if batch.provisional:
        return None
    overdue = _overdue(tools, job, batch)
    if overdue and batch.cancel_asked_at is None:
        log.warning("batch %s: %s; asking the provider to cancel it", batch.batch_id, overdue)
        noted = tools.ledger.ask_cancel(batch, actor=MACHINE, reason=overdue)
        tools.fault("observe.before_cancel")
        batch = noted if noted is not None else batch
    if batch.cancel_asked_at is not None and remote.status in _CAN_BE_CANCELLED:
        # Also where it was noted before: the process that noted it may have died before it asked.
        try:
            await ask_to_cancel(tools, batch)
        except (AuthError, AccountError) as error:
            return error
    return None


_CAN_BE_CANCELLED = frozenset({RemoteStatus.PENDING, RemoteStatus.RUNNING, RemoteStatus.UNKNOWN})


def _take_as_lost(tools: Tools, job: Job, batch: Batch) -> None:
    """The provider denies a batch of ours. Right after the create call it may only not know it yet."""
    if (batch.submitted_at or 0.0) + tools.settings.gone_after > tools.ledger.now():
        log.info("batch %s: not known to the provider yet", batch.batch_id)
        return
    counts = batch.kind is BatchKind.PRIMARY and batch.revision >= job.floor_revision
    told = f"batch {batch.batch_id} is unknown to the provider"
    if counts:
        # Before the batch counts as lost: a crash in between halts again, never goes on.
        tools.halt(job, "BLLM-031", told)
    if tools.ledger.mark_lost(batch, "provider answers 404") is not None and counts:
        # A resume in between could not know of it.
        tools.halt(job, "BLLM-031", told)


def _overdue(tools: Tools, job: Job, batch: Batch) -> str | None:
    # Read again: a person may have given the job more time.
    if is_late(tools, job) and is_late(tools, job := tools.reload(job)):
        return None if leaves_all_as_it_is(tools, job) else "job_timeout"
    until = batch_bound(tools, batch)
    return "batch_timeout" if until is not None and tools.ledger.now() > until else None
