"""The ledger as the engine needs it: jobs, batches, dead letters, holds, answers, events. A protocol only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_batch_llm.core.model import (
    Batch,
    BatchState,
    BoughtAnswer,
    DeadLetter,
    Event,
    Hold,
    HoldOrigin,
    Job,
    JobKey,
    JobState,
    LetterState,
    Place,
    Plan,
    RemoteBatch,
    Usage,
)
from airflow_batch_llm.core.ports import FileInfo


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What reconciling a batch found; written with the transition to ``reconciled``."""

    outcomes_sha256: str
    judge: str
    counts: Mapping[str, int]
    usage: Usage
    files: Sequence[Mapping[str, Any]]


class Ledger(Protocol):
    """Every state change of a job, batch or dead letter: one named method, one compare-and-set.

    A method that changes something returns the new row, or None when somebody else was first (the
    caller reads again). Each change appends its event in the same transaction. No method holds a
    transaction across I/O of the caller. ``actor`` is ``machine`` or who asked.
    """

    def namespace(self) -> str:
        """Return this ledger's namespace (12 of ``[a-z0-9]``), generated on first use."""
        ...

    def namespace_made_at(self) -> float:
        """Return when the namespace was generated: what is older is not of this ledger as it is."""
        ...

    def now(self) -> float:
        """Return the database's clock."""
        ...

    # -- jobs --------------------------------------------------------------------------------------
    def get_job(self, job_id: str) -> Job | None: ...

    def jobs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        dag_id: str | None = None,
        prefix: str = "",
        limit: int = 100,
    ) -> list[Job]:
        """Return the newest jobs first, at most ``limit``; ``prefix`` is how their ids begin."""
        ...

    def create_job(
        self,
        key: JobKey,
        *,
        conn_id: str,
        provider: str,
        endpoint: str,
        model: str,
        seen: Mapping[str, Any],
        deadline_at: float | None,
    ) -> tuple[Job, bool]:
        """Insert the job (revision 1, ``staging``) if absent. Returns it and whether this call made it."""
        ...

    def begin_revision(
        self,
        job: Job,
        *,
        conn_id: str,
        provider: str,
        endpoint: str,
        model: str,
        seen: Mapping[str, Any],
        deadline_at: float | None,
        fresh: bool,
    ) -> Job | None:
        """Revision + 1, ``staging``, no plan, round 0; ``fresh`` also moves ``floor_revision`` there."""
        ...

    def pin_plan(self, job: Job, plan: Plan) -> Job | None:
        """Pin the plan of the job's revision: only where none is pinned.

        One transaction: job -> ``running``; NOT_SENT batches of earlier revisions -> ``superseded``;
        the plan's batches inserted as ``planned`` (revision of the job, round 0).
        """
        ...

    def pin_round(
        self,
        job: Job,
        plan: Plan,
        *,
        letters: Sequence[str] = (),
        seen: Mapping[str, Any] | None = None,
        deadline_at: float | None = None,
        actor: str = "machine",
        reason: str = "",
    ) -> Job | None:
        """Round + 1 with its batches, job -> ``running``. ``letters`` (wire ids) go ``open -> redriving``
        in the same transaction; if any of them is not open, nothing happens and None is returned.
        ``deadline_at`` is the job's new bound; None leaves the one it has."""
        ...

    def mark_seen(self, job: Job, seen: Mapping[str, Any]) -> Job | None:
        """Merge into ``seen``."""
        ...

    def halt_job(self, job: Job, code: str, reason: str, *, actor: str = "machine") -> Job | None: ...

    def resume_job(
        self, job: Job, *, actor: str, reason: str, deadline_at: float | None = None
    ) -> Job | None:
        """``halted -> running``; ``deadline_at`` is the job's new bound, None leaves the one it has."""
        ...

    def accept_job(self, job: Job, *, letters: int, actor: str, reason: str) -> Job | None:
        """Note that a person takes a halted or settled job as it is; ``letters`` dead ones are accepted."""
        ...

    def settle_job(self, job: Job, counts: Mapping[str, int]) -> Job | None:
        """-> ``settled`` with the final counts, ``settled_at`` now. Again on a settled job is allowed; from
        ``halted`` only where a person has accepted the job."""
        ...

    # -- batches -----------------------------------------------------------------------------------
    def batches(
        self,
        job_id: str,
        *,
        states: Iterable[BatchState] | None = None,
        revision: int | None = None,
        round: int | None = None,
    ) -> list[Batch]:
        """Return the job's batches in order (revision, round, seq, kind)."""
        ...

    def get_batch(self, batch_id: str) -> Batch | None: ...

    def mark_uploaded(
        self,
        batch: Batch,
        input_file_id: str,
        *,
        provider: str | None = None,
        place: Place | None = None,
    ) -> Batch | None:
        """``planned -> uploaded``; ``input_file_id`` is "" where the requests go with the create call.

        :param provider: whose upload it is, where the connection names another one by now than when the
            batch was planned.
        :param place: where the upload is.
        """
        ...

    def enter_submitting(
        self, batch: Batch, *, revision: int, lease_seconds: float, place: Place | None = None
    ) -> Batch | None:
        """``uploaded -> submitting``: attempt + 1, lease from the database clock, looks forgotten.

        Only while the job runs and its revision is still ``revision``.
        """
        ...

    def record_look(self, batch: Batch) -> Batch | None:
        """Note the first look that found nothing after the lease ended (only if none is noted)."""
        ...

    def leave_submitting(
        self,
        batch: Batch,
        *,
        reason: str,
        not_before: float | None = None,
        actor: str = "machine",
        only_current: bool = False,
    ) -> Batch | None:
        """``submitting -> uploaded``, same attempt number: the create call surely took no effect, or a
        person says so. ``only_current``: only while the batch's revision is the job's."""
        ...

    def mark_submitted(
        self, batch: Batch, remote: RemoteBatch, *, place: Place | None = None
    ) -> Batch | None:
        """``submitting -> submitted`` where the attempt is still ours; also in place of what was adopted
        provisionally. Other batches that were provisionally taken for this one are in doubt again."""
        ...

    def mark_refused(self, batch: Batch, result: Reconciled, *, error_code: str, reason: str) -> Batch | None:
        """``planned|uploaded|submitting -> reconciled``: the provider refused all of it and made no batch."""
        ...

    def mark_not_created(self, batch: Batch, result: Reconciled, *, reason: str) -> Batch | None:
        """``submitting -> reconciled``: no batch was made, and a later revision sends the rows."""
        ...

    def in_doubt_alike(self, batch: Batch) -> list[Batch]:
        """Return the other batches in ``submitting``, of all jobs, of this provider and with as many
        requests."""
        ...

    def adopt_provisionally(self, batch: Batch, remote: RemoteBatch) -> Batch | None:
        """``submitting -> submitted``, provisional; not where another batch has this id or may be it."""
        ...

    def confirm(self, batch: Batch) -> Batch | None:
        """Note that a batch which was adopted provisionally is ours."""
        ...

    def disown(self, batch: Batch, *, reason: str, actor: str = "machine") -> Batch | None:
        """``submitted|ended -> submitting``: what was adopted provisionally is not this batch."""
        ...

    def note_not_ours(self, batch: Batch, provider_ids: Collection[str]) -> Batch | None:
        """Note batches at the provider that hold no row of this one."""
        ...

    def put_back(self, batch: Batch, *, reason: str, not_before: float | None) -> Batch | None:
        """``uploaded|submitting|submitted|ended -> planned``: queue full or the upload is gone; nothing ran.

        Provider ids are cleared (the event keeps them); the attempt number stays.
        """
        ...

    def mark_ended(self, batch: Batch, remote: RemoteBatch) -> Batch | None:
        """``submitted -> ended`` with the provider's status, ``error_code`` from its first error."""
        ...

    def mark_reconciled(self, batch: Batch, result: Reconciled) -> Batch | None:
        """``ended -> reconciled``, or ``reconciled -> reconciled`` with another judge."""
        ...

    def give_up_unsent(self, batch: Batch, result: Reconciled, *, reason: str) -> Batch | None:
        """``planned|uploaded -> reconciled``, while the job's deadline is over: its rows are not sent."""
        ...

    def mark_lost(self, batch: Batch, reason: str) -> Batch | None:
        """``submitted -> lost``."""
        ...

    def ask_cancel(self, batch: Batch, *, actor: str, reason: str) -> Batch | None:
        """Note, before the call is made, that we ask the provider to cancel (``submitted`` only)."""
        ...

    def batches_at_provider(self, provider_batch_id: str) -> list[Batch]:
        """Return the batches of all jobs that have this id at a provider."""
        ...

    def adopt(
        self,
        batch: Batch,
        remote: RemoteBatch,
        *,
        actor: str,
        reason: str,
        provisional: bool = False,
        place: Place | None = None,
        moved: bool = False,
    ) -> Batch | None:
        """``submitting|lost -> submitted``: a person says which batch at the provider it is; also in place
        of what was adopted provisionally, and where ``moved`` of one that was sent. ``provisional``: its rows
        are still to say so.

        None as well where another batch, of whatever job, has this id for certain."""
        ...

    def write_off(
        self,
        batch: Batch,
        result: Reconciled,
        *,
        error_code: str | None,
        actor: str,
        reason: str,
        accepted: Job | None = None,
    ) -> Batch | None:
        """``planned|uploaded|submitted|lost|reconciled -> reconciled`` with outcomes that a person decided;
        of a job that was ``accepted``, only while nobody has changed it since."""
        ...

    def hand_in(
        self,
        batch: Batch,
        files: Sequence[Mapping[str, Any]],
        *,
        job: Job,
        remote: RemoteBatch | None,
        error_code: str | None,
        actor: str,
        reason: str,
    ) -> Batch | None:
        """``submitted|ended|lost|reconciled -> ended``: a person brought the result files; what was judged of
        it before goes. Of a batch that is lost or was judged, only while nobody has changed the job, and its
        plan is pinned; the job's version rises.

        :param files: all raw files of the batch from now on.
        :param remote: how the batch ended, as the provider shows it; None: as the ledger knows it.
        """
        ...

    def record_duplicate(
        self, batch: Batch, remote: RemoteBatch, attempt: int, *, place: Place | None = None
    ) -> Batch:
        """Insert a ``duplicate`` in state ``submitted`` beside ``batch``, once per provider id.

        Its batch_id is ``<batch_id>-d<attempt>``; ``cancel_asked_by`` is set to ``machine``.
        """
        ...

    # -- dead letters ------------------------------------------------------------------------------
    def insert_dead_letters(self, letters: Iterable[DeadLetter]) -> int:
        """Insert those absent (state ``open``). One that is there keeps its state; what its last attempt
        tells is brought up to date when the given one's is of a later revision or round.
        Returns how many were new. Streams: takes any number of letters in chunks."""
        ...

    def dead_letters(
        self, job_id: str, *, states: Iterable[LetterState] | None = None
    ) -> Iterator[DeadLetter]:
        """Yield the job's letters ordered by wire id, reading in pages (no transaction stays open)."""
        ...

    def find_dead_letters(
        self,
        *,
        job_id: str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        states: Iterable[LetterState] | None = None,
        code: str | None = None,
        custom_id: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Return letters of one job, or of all jobs of a DAG or run: newest first, at most ``limit``."""
        ...

    def letter_changes(self, job_id: str, wire_id: str) -> list[dict[str, Any]]:
        """Return the changes of a letter's state in order: time, from, to, actor, reason."""
        ...

    def count_dead_letters(self, job_id: str) -> dict[tuple[LetterState, str], int]:
        """Return (state, code) -> letters."""
        ...

    def move_dead_letters(
        self,
        job_id: str,
        wire_ids: Iterable[str],
        *,
        to: LetterState,
        expect: Iterable[LetterState],
        actor: str,
        reason: str,
    ) -> int:
        """Move the letters that are in one of ``expect`` and return how many moved."""
        ...

    # -- connections -------------------------------------------------------------------------------
    def holds(self) -> list[Hold]:
        """Return the held connections, by name."""
        ...

    def get_hold(self, conn_id: str) -> Hold | None: ...

    def hold_connection(
        self,
        conn_id: str,
        *,
        code: str,
        origin: HoldOrigin,
        job_id: str = "",
        batch_id: str | None = None,
        actor: str = "machine",
        reason: str,
        probe_at: float | None,
    ) -> tuple[Hold, bool]:
        """Insert the hold if absent. Returns what stands now and whether this call made it.

        A person's hold takes the place of one that the machine made.
        """
        ...

    def take_probe(self, hold: Hold, *, probe_at: float, batch_id: str | None = None) -> Hold | None:
        """Take the right to try, once ``hold.probe_at`` has come: probes + 1, the next trial at ``probe_at``.

        ``batch_id`` is the batch of ours that tries.
        """
        ...

    def hurry_probe(self, conn_id: str, *, actor: str = "machine", reason: str = "") -> Hold | None:
        """Let the next trial be due now, whatever tries at this moment; nothing for a person's hold."""
        ...

    def release_connection(
        self, conn_id: str, *, actor: str, reason: str, only: Hold | None = None
    ) -> Hold | None:
        """Delete the hold and return it as it was, None where there is none.

        ``only``: while it is still just so.
        """
        ...

    # -- answers for later jobs --------------------------------------------------------------------
    def record_answers(self, answers: Iterable[BoughtAnswer]) -> int:
        """Note answers and return how many were given; of two for the same request, task and connection
        the newest stands. Streams: takes any number of answers in chunks."""
        ...

    def find_answers(
        self,
        hashes: Iterable[str],
        *,
        task: str | None = None,
        connection: str | None = None,
        since: float | None = None,
    ) -> dict[str, BoughtAnswer]:
        """Return the newest answer to each request that has one: request hash -> answer.

        Only those of the task, bought with the connection, and not from before ``since``, where given.
        """
        ...

    def forget_answers(
        self,
        *,
        job_id: str | None = None,
        wire_ids: Iterable[str] | None = None,
        older_than: float | None = None,
    ) -> int:
        """Forget answers and return how many: of a job, of some of its wire ids, from before a time.

        :raises ValueError: neither a job nor a time is given.
        """
        ...

    # -- purges ------------------------------------------------------------------------------------
    def iter_jobs(
        self, *, dag_id: str | None = None, states: Collection[JobState] | None = None
    ) -> Iterator[Job]:
        """Yield jobs in the order of their ids, reading in pages."""
        ...

    def note_purge(
        self, job: Job, action: str, *, seen: Mapping[str, Any], actor: str, reason: str
    ) -> Job | None:
        """Note that a purge begins or is done (``action``), in ``seen`` and as an event; only in a job that
        is settled or halted."""
        ...

    def rewrite_outcomes(
        self, batch: Batch, *, outcomes_sha256: str | None, files: Sequence[Mapping[str, Any]]
    ) -> Batch | None:
        """Name other outcomes and raw files of a batch, where those it names are still the given ones."""
        ...

    def move_requests(self, job_id: str, path: str, to: str, info: FileInfo) -> int:
        """Name another file of requests in place of ``path``, in batches and letters of a job at once."""
        ...

    def move_plan(self, job: Job, plan_id: str, to: str, digest: str | None) -> Job | None:
        """Name the plan ``to`` where a settled job names ``plan_id``, as its own or as the one before.

        ``digest`` is the new plan's, where it is the job's own."""
        ...

    def forget_messages(self, job_id: str) -> int:
        """Empty the messages of a job's letters; returns how many there were."""
        ...

    def erase_letters(self, job_id: str, erased: Mapping[str, str]) -> int:
        """Take custom ids (-> what stands in their place), message and request out of a job's letters, and
        the ids out of its events; returns how many letters there were."""
        ...

    # -- events ------------------------------------------------------------------------------------
    def add_event(
        self,
        job_id: str,
        action: str,
        *,
        batch_id: str | None = None,
        actor: str = "machine",
        reason: str = "",
    ) -> None: ...

    def events(self, job_id: str) -> list[Event]: ...
