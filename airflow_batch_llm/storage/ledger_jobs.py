"""Every change of a job: one named method, one compare-and-set on the job's version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_batch_llm.core.ids import batch_id
from airflow_batch_llm.core.model import (
    IN_FLIGHT,
    NOT_SENT,
    BatchKind,
    BatchPlan,
    BatchState,
    Job,
    JobKey,
    JobState,
    LetterState,
    Plan,
    Usage,
)
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger_base import (
    LedgerBase,
    append_event,
    append_events,
    event_values,
    insert_rows,
)
from airflow_batch_llm.storage.ledger_letters import move_letters
from airflow_batch_llm.storage.records import job_from, json_text, usage_values
from airflow_batch_llm.storage.schema import batch as batch_table
from airflow_batch_llm.storage.schema import job as job_table
from airflow_batch_llm.storage.types import clock

#: Where ``seen`` keeps that a person takes the job as it is.
ACCEPTED = "accepted"


class _Undo(Exception):
    """Leaves the transaction without a trace."""


class JobTransitions(LedgerBase):
    """The part of the ledger that moves jobs."""

    def get_job(self, job_id: str) -> Job | None:
        """Return the job, None where there is none."""
        with reading(self.engine) as connection:
            return _read_job(connection, job_id)

    def jobs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        dag_id: str | None = None,
        prefix: str = "",
        limit: int = 100,
    ) -> list[Job]:
        """Return the newest jobs first, at most ``limit``.

        :param prefix: how their ids begin.
        """
        t = job_table.c
        query = select(job_table).order_by(t.created_at.desc(), t.job_id).limit(limit)
        if states is not None:
            query = query.where(t.state.in_([state.value for state in states]))
        if dag_id is not None:
            query = query.where(t.dag_id == dag_id)
        if prefix:
            query = query.where(t.job_id.startswith(prefix, autoescape=True))
        with reading(self.engine) as connection:
            return [job_from(row) for row in connection.execute(query).mappings()]

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
        if (found := self.get_job(key.job_id)) is not None:
            return found, False
        values = {
            "job_id": key.job_id,
            "namespace": key.namespace,
            "dag_id": key.dag_id,
            "run_id": key.run_id,
            "task_id": key.task_id,
            "map_index": key.map_index,
            "conn_id": conn_id,
            "provider": provider,
            "endpoint": endpoint,
            "model": model,
            "state": JobState.STAGING.value,
            "revision": 1,
            "floor_revision": 1,
            "round": 0,
            "version": 1,
            "counts": json_text({}),
            "seen": json_text(dict(seen)),
            "deadline_at": deadline_at,
        }
        try:
            with writing(self.engine) as connection:
                connection.execute(insert(job_table).values(**values, created_at=clock(), updated_at=clock()))
                append_event(connection, key.job_id, "job_created", reason="revision 1")
                return _existing_job(connection, key.job_id), True
        except IntegrityError:  # somebody inserted it between the look and the insert
            with reading(self.engine) as connection:
                return _existing_job(connection, key.job_id), False

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
        """Revision + 1, ``staging``, no plan, round 0; ``fresh`` also moves ``floor_revision`` there.

        Allowed in every state. ``seen`` is merged into what the job has seen; counts begin anew. Batches
        that a person had asked to cancel count as cancelled by the machine from now on: a clear wants
        their rows.
        """
        revision = job.revision + 1
        values = {
            "conn_id": conn_id,
            "provider": provider,
            "endpoint": endpoint,
            "model": model,
            "state": JobState.STAGING.value,
            "revision": revision,
            "floor_revision": revision if fresh else job.floor_revision,
            "round": 0,
            "plan_id": None,
            "plan_digest": None,
            "counts": json_text({}),
            "seen": _merged(job.seen, seen),
            "deadline_at": deadline_at,
            "halt_code": None,
            "settled_at": None,
        }
        reason = f"revision {revision}" + (", fresh" if fresh else "")
        return self._move_job(job, list(JobState), values, "revision_begun", reason, also=_undo_cancels)

    def pin_plan(self, job: Job, plan: Plan) -> Job | None:
        """Pin the plan of the job's revision: only in ``staging`` and where none is pinned.

        One transaction: job -> ``running``; NOT_SENT batches of earlier revisions -> ``superseded``;
        the plan's batches inserted as ``planned`` (revision of the job, round 0).
        """
        values = {
            "state": JobState.RUNNING.value,
            "plan_id": plan.plan_id,
            "plan_digest": plan.digest,
            "counts": json_text(dict(plan.counts)),
        }
        with writing(self.engine) as connection:
            unpinned = job_table.c.plan_id.is_(None)
            if not _update_job(connection, job, [JobState.STAGING], values, unpinned):
                return None
            reason = f"revision {job.revision}, plan {plan.plan_id}, {len(plan.batches)} batches"
            append_event(connection, job.job_id, "plan_pinned", reason=reason)
            _supersede_older(connection, job)
            _insert_batches(connection, job, 0, plan)
            return _existing_job(connection, job.job_id)

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
        """Round + 1 with its batches, job -> ``running`` (from ``running`` or ``settled``).

        ``letters`` (wire ids) go ``open -> redriving`` in the same transaction; if any of them is not
        open, nothing happens and None is returned. The job keeps the plan of its revision; each batch
        names the plan it is of. The plan's counts are merged into the job's. ``deadline_at`` is the
        job's new bound; None leaves the one it has.
        """
        round_ = job.round + 1
        values = {
            "state": JobState.RUNNING.value,
            "round": round_,
            "settled_at": None,
            "counts": _merged(job.counts, plan.counts),
            "seen": _merged(job.seen, seen or {}),
            "deadline_at": job.deadline_at if deadline_at is None else deadline_at,
        }
        wanted = sorted(set(letters))
        try:
            with writing(self.engine) as connection:
                if not _update_job(connection, job, [JobState.RUNNING, JobState.SETTLED], values):
                    return None
                text = f"revision {job.revision}, round {round_}, {len(plan.batches)} batches"
                text += f": {reason}" if reason else ""
                append_event(connection, job.job_id, "round_pinned", actor=actor, reason=text)
                moved = move_letters(
                    connection, job.job_id, wanted, to=LetterState.REDRIVING, expect=[LetterState.OPEN],
                    actor=actor, reason=reason,
                )  # fmt: skip
                if moved != len(wanted):
                    raise _Undo
                _insert_batches(connection, job, round_, plan)
                return _existing_job(connection, job.job_id)
        except _Undo:
            return None

    def mark_seen(self, job: Job, seen: Mapping[str, Any]) -> Job | None:
        """Merge into ``seen``."""
        reason = ", ".join(sorted(seen))
        return self._move_job(job, list(JobState), {"seen": _merged(job.seen, seen)}, "seen_marked", reason)

    def halt_job(self, job: Job, code: str, reason: str, *, actor: str = "machine") -> Job | None:
        """``staging|running -> halted``: a person has to decide, or has decided."""
        values = {"state": JobState.HALTED.value, "halt_code": code}
        return self._move_job(
            job, [JobState.STAGING, JobState.RUNNING], values, "halted", f"{code}: {reason}", actor=actor
        )

    def resume_job(
        self, job: Job, *, actor: str, reason: str, deadline_at: float | None = None
    ) -> Job | None:
        """``halted -> running``, or ``-> staging`` where the revision has no plan yet.

        ``deadline_at`` is the job's new bound; None leaves the one it has. An acceptance is void, and
        batches that a person had asked to cancel count as cancelled by the machine: their rows are wanted.
        """
        state = JobState.STAGING if job.plan_id is None else JobState.RUNNING
        bound = job.deadline_at if deadline_at is None else deadline_at
        values = {"state": state.value, "halt_code": None, "deadline_at": bound}
        if job.seen.get(ACCEPTED) is not None:
            values["seen"] = _merged(job.seen, {ACCEPTED: None})
        return self._move_job(
            job, [JobState.HALTED], values, "resumed", reason, actor=actor, also=_undo_cancels
        )

    def accept_job(self, job: Job, *, letters: int, actor: str, reason: str) -> Job | None:
        """Note that a person takes a halted or settled job as it is, in ``seen``.

        :param letters: dead letters that are accepted; of a halted job it is set when the job is settled.
        """
        accepted = {
            "revision": job.revision,
            "halted": job.state is JobState.HALTED,
            "letters": letters,
            "actor": actor,
            "reason": reason,
        }
        values = {"seen": _merged(job.seen, {ACCEPTED: accepted})}
        expect = [JobState.HALTED, JobState.SETTLED]
        return self._move_job(job, expect, values, "accepted", reason, actor=actor)

    def settle_job(self, job: Job, counts: Mapping[str, int]) -> Job | None:
        """``running|settled -> settled`` with the final counts, ``settled_at`` now.

        Also from ``halted``, where a person has accepted the job as it is.
        """
        values: dict[str, Any] = {
            "state": JobState.SETTLED.value,
            "counts": json_text(dict(counts)),
            "settled_at": clock(),
        }
        expect = [JobState.RUNNING, JobState.SETTLED]
        accepted = job.seen.get(ACCEPTED) or {}
        if accepted.get("halted") and accepted["revision"] == job.revision:
            expect.append(JobState.HALTED)
            taken = {**accepted, "halted": False, "letters": counts.get("dead", 0)}
            values |= {"halt_code": None, "seen": _merged(job.seen, {ACCEPTED: taken})}
        reason = f"revision {job.revision}, round {job.round}"
        return self._move_job(job, expect, values, "settled", reason)

    def _move_job(
        self,
        job: Job,
        expect: Iterable[JobState],
        values: Mapping[str, Any],
        action: str,
        reason: str,
        *,
        actor: str = "machine",
        also: Callable[[Connection, Job], None] | None = None,
    ) -> Job | None:
        """Move the job.

        :param also: what else is changed in the same transaction.
        """
        with writing(self.engine) as connection:
            if not _update_job(connection, job, expect, values):
                return None
            append_event(connection, job.job_id, action, actor=actor, reason=reason)
            if also is not None:
                also(connection, job)
            return _existing_job(connection, job.job_id)


def _update_job(
    connection: Connection, job: Job, expect: Iterable[JobState], values: Mapping[str, Any], *also: Any
) -> bool:
    """The compare-and-set: only while version and revision are those of ``job``."""
    t = job_table.c
    changed = connection.execute(
        update(job_table)
        .where(
            t.job_id == job.job_id,
            t.version == job.version,
            t.revision == job.revision,
            t.state.in_([state.value for state in expect]),
            *also,
        )
        .values(**values, version=job.version + 1, updated_at=clock())
    )
    return changed.rowcount == 1


def _undo_cancels(connection: Connection, job: Job) -> None:
    """Let the rows of batches that a person had asked to cancel, and that nobody has read, be sent again.

    Who asked stands in the events.
    """
    t = batch_table.c
    connection.execute(
        update(batch_table)
        .where(
            t.job_id == job.job_id,
            t.state.in_([state.value for state in sorted(IN_FLIGHT)]),
            t.cancel_asked_by != "machine",
        )
        .values(cancel_asked_by="machine", updated_at=clock())
    )


def _supersede_older(connection: Connection, job: Job) -> None:
    """Withdraw what earlier revisions planned and did not send.

    The rows are locked first, so that the events name exactly the batches that the update finds: one
    that enters ``submitting`` at this moment is left alone.
    """
    t = batch_table.c
    unsent = (
        t.job_id == job.job_id,
        t.revision < job.revision,
        t.state.in_([state.value for state in sorted(NOT_SENT)]),
    )
    locked = select(t.batch_id).where(*unsent).order_by(t.batch_id).with_for_update()
    ids = list(connection.execute(locked).scalars())
    if not ids:
        return
    connection.execute(
        update(batch_table).where(*unsent).values(state=BatchState.SUPERSEDED.value, updated_at=clock())
    )
    reason = f"by revision {job.revision}"
    append_events(
        connection, [event_values(job.job_id, "superseded", batch_id=id_, reason=reason) for id_ in ids]
    )


def _insert_batches(connection: Connection, job: Job, round_: int, plan: Plan) -> None:
    rows = [_batch_values(job, round_, plan, planned) for planned in plan.batches]
    insert_rows(connection, batch_table, rows, "created_at", "updated_at")


def _batch_values(job: Job, round_: int, plan: Plan, planned: BatchPlan) -> dict[str, Any]:
    return {
        "batch_id": batch_id(job.job_id, job.revision, round_, planned.seq),
        "job_id": job.job_id,
        "kind": BatchKind.PRIMARY.value,
        "revision": job.revision,
        "round": round_,
        "seq": planned.seq,
        "state": BatchState.PLANNED.value,
        "conn_id": plan.conn_id or job.conn_id,
        "provider": plan.provider or job.provider,
        "model": planned.model,
        "overrides": json_text(dict(planned.overrides)),
        "plan_id": plan.plan_id,
        "path": planned.path,
        "requests": planned.requests,
        "bytes": planned.bytes,
        "sha256": planned.sha256,
        "upload_bytes": planned.upload_bytes,
        "est_input_tokens": planned.est_input_tokens,
        "max_output_tokens": planned.max_output_tokens,
        "attempt": 0,
        "not_before": planned.not_before,
        "files": json_text([]),
        "counts": json_text({}),
        **usage_values(Usage()),
    }


def _read_job(connection: Connection, job_id: str) -> Job | None:
    row = connection.execute(select(job_table).where(job_table.c.job_id == job_id)).mappings().one_or_none()
    return None if row is None else job_from(row)


def _existing_job(connection: Connection, job_id: str) -> Job:
    found = connection.execute(select(job_table).where(job_table.c.job_id == job_id)).mappings().one()
    return job_from(found)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return json_text({**old, **new})
