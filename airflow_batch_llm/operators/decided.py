"""What a person decided about a job of the one-task form: the next clear of its task carries it out.

In the group a person clears the task that the decision is about. Here there is only one, and a clear of it
would read the source again, which nobody who accepts or resumes a job has asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.model import MACHINE, Event, Job
from airflow_batch_llm.operators.tries import (
    Try,
    is_of_a_run_made_anew,
    mark_of,
    mark_until_seen,
    tries_with,
)

if TYPE_CHECKING:
    from airflow_batch_llm.operators.base import JobSession

#: In ``Job.seen``: decisions that have been carried out, or were made before the revision began.
DECISIONS = "decisions"
#: In ``Job.seen``: the mark of the last series of tries that ended green.
GREEN = "green"

#: Events of decisions. ``round_pinned`` by a person is a re-drive, ``letters_moved`` a discard.
_ACTIONS = frozenset({"accepted", "resumed", "cancel_decided", "handed_in", "round_pinned", "letters_moved"})


def decisions(events: list[Event]) -> int:
    """Count the decisions of people about a job; the number only rises."""
    return sum(event.action in _ACTIONS and event.actor != MACHINE for event in events)


def take_up_decision(session: JobSession, owner: str, this: Try) -> bool:
    """Where a person has decided since the task ended red, let this clear go on with the same revision.

    Says whether it does.
    """
    ledger = session.ledger
    job = ledger.get_job(session.tools.spec.key.job_id)
    if job is None or job.plan_id is None or job.seen.get("owner") != owner:
        return False
    if is_of_a_run_made_anew(job, this):
        return False
    mark = mark_of(job, this)
    if job.seen.get("submit") == mark or mark in job.seen.get("earlier_submits", ()):
        return False
    count = decisions(ledger.events(job.job_id))
    if count <= job.seen.get(DECISIONS, 0) or job.seen.get(GREEN) == job.seen.get("submit"):
        return False
    mark_until_seen(ledger, job, lambda current: _as_of(current, this, mark, count))
    return True


def _as_of(current: Job, this: Try, mark: int | str, count: int) -> dict[str, Any]:
    """Return what the job has seen once the clear goes on with its revision."""
    seen: dict[str, Any] = {DECISIONS: count, "tries": tries_with(current, this)}
    before = current.seen.get("submit")
    if before != mark:
        earlier = [*current.seen.get("earlier_submits", ()), before]
        seen |= {"submit": mark, "earlier_submits": earlier}
    return seen
