"""How long a job's contents are kept, and what of it has been purged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any

from airflow_batch_llm.core.model import Job
from airflow_batch_llm.exceptions import ConfigurationError, JobPurged

#: Where a job's ``seen`` keeps what has been purged.
PURGED = "purged"


class Part(StrEnum):
    """What can be purged of a job.

    ``raw``: the provider's result files in the workspace. ``workspace``: everything in the job's folder that
    holds rows, requests or answers, the raw files included, and its answers for later jobs.
    ``dead_letters``: what providers said about rows (texts beside outcomes, the letters' messages).
    ``provider_files``: uploads and results at the provider, where they are still there.
    """

    RAW = "raw"
    WORKSPACE = "workspace"
    DEAD_LETTERS = "dead_letters"
    PROVIDER_FILES = "provider_files"


#: Without these no answer can be published again, and no row be told from what it was.
NEEDED = frozenset({Part.RAW, Part.WORKSPACE})


@dataclass(frozen=True)
class Retention:
    """How long a job's contents are kept after it has settled. ``batch-llm purge --due`` carries it out.

    None keeps a part until somebody purges it by hand. Ids, digests, verdicts, usage and the ledger's rows
    are kept in any case.

    :param workspace: rows, requests, answers and results in the workspace.
    :param raw: the provider's result files in the workspace; they go with ``workspace`` at the latest. A job
        without them can be neither cleared nor re-driven.
    :param dead_letters: what providers said about rows that failed, which may quote prompts.
    :param provider_files: uploads and results at the provider, where it still has them.
    :raises ConfigurationError: a time is not a ``timedelta``, or is below zero.
    """

    workspace: timedelta | None = None
    raw: timedelta | None = None
    dead_letters: timedelta | None = None
    provider_files: timedelta | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if not isinstance(value, timedelta):
                raise ConfigurationError(
                    f"Retention: {field.name} is a {type(value).__name__}, not a timedelta (or None)"
                )
            if value < timedelta(0):
                raise ConfigurationError(f"Retention: {field.name} is below zero")

    def serialize(self) -> dict[str, float | None]:
        """Return the times in seconds."""
        times = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: time.total_seconds() if time is not None else None for name, time in times.items()}


def due_parts(described: Mapping[str, Any] | None, age: float) -> frozenset[Part]:
    """Return what is to be purged of a job.

    :param described: what :meth:`Retention.serialize` wrote into the job's description; None where the job
        has no retention.
    :param age: seconds since it settled.
    """
    times = {part: (described or {}).get(part.value) for part in Part}
    due = {part for part, time in times.items() if time is not None and age >= time}
    return frozenset(due)


# -- what has been purged --------------------------------------------------------------------------
def begun_parts(job: Job) -> frozenset[Part]:
    """Return what a purge of the job's revisions has begun with."""
    return _noted(job, "begun")


def done_parts(job: Job) -> frozenset[Part]:
    """Return what has been purged of the job's revisions, whole."""
    return _noted(job, "done")


def noted_purge(job: Job, parts: Collection[Part], *, done: bool) -> dict[str, Any]:
    """Return what ``seen`` says once these parts, too, are begun or done."""
    begun, finished = begun_parts(job) | set(parts), done_parts(job)
    if done:
        finished |= set(parts)
    return {"revision": job.revision, "begun": _names(begun), "done": _names(finished)}


def refuse_purged(job: Job) -> None:
    """See that what a clear, a re-drive or another publication needs is there.

    :raises JobPurged: it was purged.
    """
    if begun_parts(job) & NEEDED:
        raise JobPurged(
            f"job {job.job_id} was purged: its requests and answers are gone, so that it can be neither sent "
            "again nor published again. Nothing was sent. Start a new run, or clear the group with "
            'rerun="fresh", which asks for and pays for every row again'
        )


def _noted(job: Job, name: str) -> frozenset[Part]:
    noted = job.seen.get(PURGED)
    # What a fresh revision left behind says nothing about the revisions that count now.
    if not noted or noted["revision"] < job.floor_revision:
        return frozenset()
    return frozenset(Part(part) for part in noted[name])


def _names(parts: Iterable[Part]) -> list[str]:
    return sorted(part.value for part in parts)
