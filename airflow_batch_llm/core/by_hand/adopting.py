"""adopt: a person says which batch at the provider one of ours is."""

from __future__ import annotations

from airflow_batch_llm.core.by_hand.decisions import Declined, refuse_handed_in
from airflow_batch_llm.core.doubts import token
from airflow_batch_llm.core.ids import META_JOB, META_TOKEN
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, BatchState, Job, RemoteBatch
from airflow_batch_llm.core.places import moved, place_of
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.unmarked import Whose, whose_is
from airflow_batch_llm.exceptions import NotFound


async def adopt(
    tools: Tools, job: Job, batch: Batch, provider_id: str, *, actor: str, reason: str
) -> tuple[Batch, bool]:
    """Take a batch at the provider for ours; returns it, and whether it says itself that it is: its metadata,
    or, where there is none and it has ended, its rows.

    Where the provider shows no marks and it still runs, it is adopted provisionally: its rows will tell. A
    batch that runs or has ended can be adopted anew where its connection names another server or account by
    now, where it may go by another id.

    :param tools: of the batch's connection.
    :raises Declined: it cannot be, or not now.
    :raises ProviderError: the provider cannot be asked.
    """
    refuse_handed_in(batch)
    sent = batch.state in (BatchState.SUBMITTED, BatchState.ENDED)
    elsewhere = sent and moved(tools, batch) is not None
    can_be = batch.state in (BatchState.SUBMITTING, BatchState.LOST) or batch.provisional or elsewhere
    if not can_be:
        raise Declined(f"batch {batch.batch_id} is {batch.state}; only one in doubt or lost can be adopted")
    _refuse_taken(tools.ledger, batch, provider_id)
    try:
        remote = await tools.backend_of(batch).retrieve(provider_id)
    except NotFound:
        raise Declined(
            f"the provider knows no batch {provider_id} with connection {batch.conn_id!r}: look at its key"
        ) from None
    _refuse_contradiction(job, batch, remote)
    marked = tools.backend_of(batch).marks_batches
    told = META_TOKEN in remote.metadata if marked else await _rows_tell(tools, batch, remote)
    adopted = tools.ledger.adopt(
        batch,
        remote,
        actor=actor,
        reason=reason,
        provisional=not marked and not told,
        place=place_of(tools, batch),
        moved=elsewhere,
    )
    if adopted is None:
        _refuse_taken(tools.ledger, batch, provider_id)
        raise Declined(f"batch {batch.batch_id} was changed at this moment; look at it again")
    return adopted, told


async def _rows_tell(tools: Tools, batch: Batch, remote: RemoteBatch) -> bool:
    """Say whether the rows of a batch that has ended say that it is ours.

    :raises Declined: they say that it is not.
    """
    whose = await whose_is(tools, batch, remote) if remote.status.terminal else Whose.UNTOLD
    if whose in (Whose.NOT_OURS, Whose.STRAY):
        raise Declined(f"{remote.id} has ended, and its rows are not those of batch {batch.batch_id}")
    return whose is Whose.OURS


def _refuse_taken(ledger: Ledger, batch: Batch, provider_id: str) -> None:
    for other in ledger.batches_at_provider(provider_id):
        if other.batch_id != batch.batch_id and not other.provisional:
            raise Declined(f"{provider_id} is batch {other.batch_id} already")


def _refuse_contradiction(job: Job, batch: Batch, remote: RemoteBatch) -> None:
    """See that neither metadata nor row count say that the provider's batch is another one."""
    theirs = remote.metadata.get(META_JOB, job.job_id)
    if theirs != job.job_id:
        raise Declined(f"{remote.id} is of another job, as its metadata says")
    ours = {token(job, batch, attempt) for attempt in range(1, batch.attempt + 1)}
    if remote.metadata.get(META_TOKEN) not in (None, *ours):
        raise Declined(f"{remote.id} is another batch of this job, as its metadata says")
    total = remote.counts.get("total", 0)
    if total and total != batch.requests:
        raise Declined(f"{remote.id} holds {total} requests, batch {batch.batch_id} has {batch.requests}")
