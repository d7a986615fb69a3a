"""Jobs that were refused before anything was accepted: their task is red, and they wait for a person."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_batch_llm.cli.printing import code_only
from airflow_batch_llm.core.model import IN_FLIGHT, MACHINE, NOT_SENT, Batch, BatchState, Event, Job, JobState
from airflow_batch_llm.core.submit import UPLOAD_REFUSED
from airflow_batch_llm.storage.ledger import SqlLedger

#: States of a batch that somebody else has taken, or had.
_ACCEPTED = IN_FLIGHT | {BatchState.RECONCILED, BatchState.LOST}
_BEGUN = ("plan_pinned", "resumed")
_SENDING, _LEFT, _HELD = "submitting", "submitting_left", "connection_held"
#: Why a create call was given back that the next one may well do better than.
_PASSES = frozenset({"Unreachable"})


def nothing_accepted(job: Job, batches: Sequence[Batch]) -> bool:
    """Say whether a running job has batches to send, and the provider has none of this revision."""
    if job.state is not JobState.RUNNING:
        return False
    if any(b.state in IN_FLIGHT or (b.revision == job.revision and b.state in _ACCEPTED) for b in batches):
        return False
    return any(batch.revision == job.revision and batch.state in NOT_SENT for batch in batches)


def refused_for(ledger: SqlLedger, job: Job, batches: Sequence[Batch]) -> str | None:
    """Return what the refusal is called that the job's task failed with, None where there was none."""
    if not nothing_accepted(job, batches):
        return None
    last: Event | None = None
    for event in ledger.events(job.job_id):
        if event.action in _BEGUN:
            last = None
        elif event.action in (_SENDING, _LEFT, UPLOAD_REFUSED, _HELD) and event.actor == MACHINE:
            last = event
    if last is None or last.action == _SENDING or last.reason in _PASSES:
        return None
    later = {batch.batch_id: batch.not_before for batch in batches}
    if last.action == _LEFT and later.get(last.batch_id or "") is not None:
        return None  # only for now: it is sent by itself
    return "the connection was held" if last.action == _HELD else code_only(last.reason)
