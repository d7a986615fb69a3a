"""What a task asks of the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from airflow_batch_llm.core.drafts import Draft, ResolvedSink, ResultsFormat
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Job, JobKey, RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.reuse import Reuse


class Rerun(StrEnum):
    """What a clear sends again: ``missing`` (unanswered rows and deaths by exhaustion), ``failed`` (also
    deterministic deaths), ``fresh`` (everything; pays again)."""

    MISSING = "missing"
    FAILED = "failed"
    FRESH = "fresh"


class OnEmpty(StrEnum):
    """What a source without rows means."""

    SKIP = "skip"
    FAIL = "fail"
    SUCCESS = "success"


class OnDeadline(StrEnum):
    """What a job does once its time is over: ``collect`` (what runs is cancelled, what was answered lands,
    the rest becomes dead letters), ``fail`` (nothing is cancelled or sent, the job halts)."""

    COLLECT = "collect"
    FAIL = "fail"


class Until(IntEnum):
    """How far :meth:`Engine.advance` goes."""

    ENDED = 1  #: every batch of the job so far has ended at the provider
    RECONCILED = 2  #: every ended batch has been judged
    RETRIED = 3  #: no row is left that the policy sends again
    SETTLED = 4  #: dead letters are written, answers published, the job closed


@dataclass(frozen=True, slots=True)
class Settings:
    """Waiting times of the engine, in seconds.

    :param create_timeout: bound of one create call, where the backend's own is not longer; its lease is
        longer by ``lease_margin``.
    :param look_apart: time between the two looks that must both find nothing before a create call is
        repeated.
    :param queue_wait: first wait after "queue full"; doubles up to ``queue_wait_max``.
    :param max_uploads: how often a batch is sent again after its upload was found gone.
    :param gone_after: how long after a batch began or ended a 404, or answers that are counted but are in
        no file, may only mean that the provider's reads lag.
    :param probe_first: from a fault of the account to the first trial of its connection; also how often a
        job that waits for a held connection looks whether it was released.
    :param probe_max: the time between two trials doubles up to this.
    """

    create_timeout: float = 60.0
    lease_margin: float = 60.0
    look_apart: float = 60.0
    queue_wait: float = 60.0
    queue_wait_max: float = 900.0
    max_uploads: int = 5
    gone_after: float = 60.0
    probe_first: float = 300.0
    probe_max: float = 3600.0


@dataclass(frozen=True, slots=True)
class StageOrder:
    """What only the submitting task knows.

    :param drafts: reads the source; called at most once per revision.
    :param mark: value that changes with a clear and not with a retry (``ti.max_tries``).
    :param first_try: False on a retry or after a defer: a ledger that does not know the job then asks the
        provider first.
    :param id_origin: what the ids are, for messages about bad ones.
    :param place_name: how messages name the place that a draft's ``line`` counts.
    :param owner: the submitting task's id, with ``[map index]`` where its ``job_key`` alone names the job;
        where two share a job, the second is refused.
    :param clear_number: how often the DAG run was cleared: tells map indices that changed places from two
        that share a ``job_key``.
    :param known_tasks: the DAG's tasks: an owner that is not among them was renamed or removed.
    :param job_timeout: seconds from the start of the revision, None for no bound.
    :param min_rows: fewer rows than this are refused before anything is sent.
    :param reuse: which answers are taken in place of sending a request; None for none.
    :param describe: what ``job.json`` says beside the template (JSON types, no secrets).
    :param remember: what else the job has seen once it has seen ``mark``.
    """

    template: RequestTemplate
    drafts: Callable[[], Iterable[Draft]]
    mark: int | str
    first_try: bool = True
    id_origin: str = ""
    place_name: Callable[[int], str] = "line {}".format
    owner: str = ""
    clear_number: int = 0
    known_tasks: Collection[str] = ()
    rerun: Rerun = Rerun.MISSING
    on_empty: OnEmpty = OnEmpty.SKIP
    job_timeout: float | None = None
    min_rows: int = 0
    reuse: Reuse | None = None
    describe: Mapping[str, Any] = field(default_factory=dict)
    remember: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What every task of a job brings along.

    :param on_deadline: what is done once the job's time is over.
    :param results_formats: forms in which answers are published beside JSON lines.
    :param empty_is_content: a source without rows says that there is nothing, and not that nothing was said.
    """

    key: JobKey
    conn_id: str
    policy: RowRetry = RowRetry()
    judge: Judge = Judge()
    sink: ResolvedSink | None = None
    on_deadline: OnDeadline = OnDeadline.COLLECT
    results_formats: tuple[ResultsFormat, ...] = ()
    empty_is_content: bool = False


@dataclass(frozen=True, slots=True)
class Later:
    """Something cannot be done now. ``not_before`` in seconds since the epoch."""

    not_before: float
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What :meth:`Engine.advance` came to.

    :param done: nothing is left to do up to what was asked for.
    :param provider_batches: ids to look at before calling again, all of one connection.
    :param conn_id: that connection.
    :param provisional: those of them that may be somebody else's, which nobody is to cancel.
    :param more_planned: further batches wait to be sent, so one ended batch is worth a call.
    :param not_before: seconds since the epoch before which calling again is useless, None if unknown.
    :param reason: short word for logs.
    """

    job: Job
    done: bool
    provider_batches: tuple[str, ...] = ()
    conn_id: str = ""
    more_planned: bool = False
    not_before: float | None = None
    reason: str = ""
    provisional: tuple[str, ...] = ()
