"""What was paid for a job and is not to be had."""

from __future__ import annotations

from airflow_batch_llm.core.by_hand.decisions import ABANDONED
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, Job
from airflow_batch_llm.core.verdicts import Verdict


def not_to_be_had(ledger: Ledger, job: Job) -> list[Batch]:
    """Return the batches that the revision counts on and that brought nothing of what was paid.

    They are lost, or ended with none of their rows in a file, since the revision began: what was so
    before, the clear has decided about. To send their rows again is to pay again.
    """
    suspects = {
        batch.batch_id: batch
        for batch in ledger.batches(job.job_id, states=[BatchState.LOST, BatchState.RECONCILED])
        if _is_missed(batch) and batch.revision >= job.floor_revision
    }
    found: dict[str, Batch] = {}
    for event in ledger.events(job.job_id) if suspects else ():
        if event.action == "revision_begun":
            found.clear()
        elif event.action in ("lost", "reconciled") and event.batch_id in suspects:
            found[event.batch_id] = suspects[event.batch_id]
    return [batch for batch in found.values() if batch.state is BatchState.LOST or counts_now(job, batch)]


def brought_nothing(batch: Batch) -> bool:
    """Say whether nothing of what a batch was paid for is in the workspace: it is lost, or was read without
    a file that holds any of its rows."""
    if batch.state is BatchState.RECONCILED:
        return not batch.files and set(batch.counts) == {Verdict.MISSING}
    return batch.state is BatchState.LOST


def _is_missed(batch: Batch) -> bool:
    """Say whether rows hang on what a batch did not bring, and nobody has given it up."""
    return batch.kind is BatchKind.PRIMARY and batch.error_code != ABANDONED and brought_nothing(batch)


def counts_now(job: Job, batch: Batch) -> bool:
    """Say whether what a judged batch left over is not sent again yet."""
    if batch.revision == job.revision:
        return batch.round == job.round
    return job.round == 0 and job.floor_revision <= batch.revision < job.revision
