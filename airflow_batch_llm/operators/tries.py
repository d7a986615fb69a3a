"""Which reading of the source a try of the submitting task belongs to: retry, clear, or a run made anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_batch_llm.core.ledger_port import Ledger
    from airflow_batch_llm.core.model import Job

#: Tries that a job remembers.
_MOST_TRIES = 50
#: Ends the marks of a run that was deleted and made anew; tells its clears from those of the first.
_ANEW = "#"


@dataclass(frozen=True)
class Try:
    """One try of the submitting task.

    :param number: ``ti.try_number``, from 1.
    :param max_tries: ``ti.max_tries``; a clear raises it.
    :param id: id of the task instance, another one for each try; "" where unknown.
    """

    number: int
    max_tries: int
    id: str = ""

    @classmethod
    def of(cls, ti: Any) -> Try:
        """Read it from a running task instance."""
        return cls(ti.try_number, ti.max_tries, str(getattr(ti, "id", None) or ""))


def mark_of(job: Job | None, this: Try) -> int | str:
    """Return the mark of this series of tries: changes with a clear or a new run, not with a retry.

    Airflow raises ``max_tries`` on a clear. Where the DAG's ``retries`` were lowered meanwhile, it can stay
    the same or come back to an earlier value; a try after one that succeeded comes from a clear all the
    same.
    """
    if job is None:
        return this.max_tries
    if is_of_a_run_made_anew(job, this):
        return f"{this.max_tries}{_ANEW}{this.id}"
    current: int | str = job.seen.get("submit", this.max_tries)
    base, sign, anew = str(current).partition(_ANEW)
    plain: int | str = f"{this.max_tries}{sign}{anew}" if sign else this.max_tries
    after_clear = f"{this.max_tries}+{this.number}{sign}{anew}"
    done_mark, done_try = job.seen.get("submit_done", (None, this.number))
    if sign and str(done_mark).partition(_ANEW)[2] != anew:
        done_try = this.number  # what was done was done by the run before
    later = this.number > done_try
    if base.partition("+")[0] == str(this.max_tries):
        return after_clear if later and done_mark == current else current
    if later and plain in job.seen.get("earlier_submits", ()):
        return after_clear
    return plain


def is_of_a_run_made_anew(job: Job, this: Try) -> bool:
    """Say whether the run was deleted and made again with the same id: its tries are counted from 1 again.

    The number of a try only rises, and each try has an id of its own.
    """
    known = job.seen.get("tries", ())
    if not this.id or any(this.id == id_ for _, id_ in known):
        return False
    return any(this.number <= number for number, _ in known)


def tries_with(job: Job | None, this: Try) -> list[list[Any]]:
    """Return ``[number, id]`` of the tries that the job remembers, with this one.

    Those of a run that was deleted are kept with number 0: a process of it that still runs is known.
    """
    known = [list(entry) for entry in job.seen.get("tries", ())] if job is not None else []
    if not this.id or any(this.id == id_ for _, id_ in known):
        return known
    if job is not None and is_of_a_run_made_anew(job, this):
        known = [[0, id_] for _, id_ in known]
    return [*known, [this.number, this.id]][-_MOST_TRIES:]


def note_try(ledger: Ledger, job: Job, this: Try) -> None:
    """Let the job remember a try that goes on with what an earlier one began."""
    mark_until_seen(ledger, job, lambda current: {"tries": tries_with(current, this)})


def mark_until_seen(ledger: Ledger, job: Job, what: Callable[[Job], Mapping[str, Any]]) -> None:
    """Merge ``what(job)`` into what the job has seen, whatever else changes the job meanwhile."""
    current = ledger.get_job(job.job_id)
    while current is not None:
        wanted = what(current)
        if all(current.seen.get(name) == value for name, value in wanted.items()):
            return
        if ledger.mark_seen(current, wanted) is not None:
            return
        current = ledger.get_job(job.job_id)
