"""cancel: a person stops a job and what of it is in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_batch_llm.core.by_hand.decisions import CANCELLED, Declined
from airflow_batch_llm.core.doubts import resolve_doubt
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, BatchState, Job, JobState
from airflow_batch_llm.core.places import refuse_moved
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.exceptions import BatchLLMError, NotFound


@dataclass
class Cancelled:
    """What came of cancelling a job, by our batch ids.

    :param asked: the provider was asked to cancel these.
    :param in_doubt: perhaps being created at this moment; batch -> seconds since the epoch from which
        another try finds out.
    :param failed: could not be asked; batch -> error code.
    :param unsure: what the provider runs for them may be somebody else's, and is not cancelled; batch -> its
        id there.
    """

    asked: list[str] = field(default_factory=list)
    in_doubt: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unsure: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether nothing is left to ask for."""
        return not self.in_doubt and not self.failed and not self.unsure


async def cancel(
    tools_of: Callable[[str], Tools], ledger: Ledger, job: Job, *, actor: str, reason: str
) -> Cancelled:
    """Halt the job, then ask the provider to cancel every batch that is in flight.

    What is paid is read by the tasks when they run; the rest stays pending. Safe to call again.

    :param tools_of: opens the tools of a connection.
    :raises Declined: the job is settled.
    """
    _halt(ledger, job, actor, reason)
    result = Cancelled()
    for batch in ledger.batches(job.job_id, states=[BatchState.SUBMITTING, BatchState.SUBMITTED]):
        try:
            await _cancel_batch(tools_of(batch.conn_id), job, batch, result, actor, reason)
        except BatchLLMError as error:
            result.failed[batch.batch_id] = error.code
    return result


def _halt(ledger: Ledger, job: Job, actor: str, reason: str) -> None:
    current: Job | None = job
    while current is not None and current.state in (JobState.STAGING, JobState.RUNNING):
        if ledger.halt_job(current, CANCELLED, reason, actor=actor) is not None:
            return
        current = ledger.get_job(job.job_id)
    if current is None or current.state is JobState.SETTLED:
        raise Declined(f"job {job.job_id} is settled: nothing of it is at the provider")
    ledger.add_event(job.job_id, "cancel_decided", actor=actor, reason=reason)


async def _cancel_batch(
    tools: Tools, job: Job, batch: Batch, result: Cancelled, actor: str, reason: str
) -> None:
    if batch.state is BatchState.SUBMITTING:
        later = await resolve_doubt(tools, job, batch)
        if later is not None:
            result.in_doubt[batch.batch_id] = later.not_before
            return
        found = tools.ledger.get_batch(batch.batch_id)
        if found is None or found.state is not BatchState.SUBMITTED:
            return  # proved not to be there; a halted job does not send it
        batch = found
    if batch.provisional:
        result.unsure[batch.batch_id] = batch.provider_batch_id or ""
        return
    # Before the call: whoever looks at the batch next asks again where the call did not get through.
    tools.ledger.ask_cancel(batch, actor=actor, reason=reason)
    try:
        await tools.backend_of(batch).cancel(batch.provider_batch_id or "")
    except NotFound:
        refuse_moved(tools, batch)
        raise
    result.asked.append(batch.batch_id)
