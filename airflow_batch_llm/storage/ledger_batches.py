"""Every change of a batch: one named method, one compare-and-set on its state and attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, and_, exists, insert, or_, select, update

from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import (
    NOT_SENT,
    Batch,
    BatchKind,
    BatchState,
    Job,
    JobState,
    Place,
    RemoteBatch,
    Usage,
)
from airflow_batch_llm.storage.batch_rows import (
    UNSURE,
    existing_batch,
    free_provisional,
    keep_job_still,
    place_values,
    reconciled_values,
    submitted_values,
    update_batch,
)
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger_base import LedgerBase, append_event
from airflow_batch_llm.storage.records import batch_from, clean_text, json_text, usage_values
from airflow_batch_llm.storage.schema import batch as batch_table
from airflow_batch_llm.storage.schema import job as job_table
from airflow_batch_llm.storage.types import clock

_CAN_BE_PUT_BACK = frozenset(
    {BatchState.UPLOADED, BatchState.SUBMITTING, BatchState.SUBMITTED, BatchState.ENDED}
)


class BatchTransitions(LedgerBase):
    """The part of the ledger that moves batches."""

    def batches(
        self,
        job_id: str,
        *,
        states: Iterable[BatchState] | None = None,
        revision: int | None = None,
        round: int | None = None,
    ) -> list[Batch]:
        """Return the job's batches in order (revision, round, seq; the primary before its duplicates)."""
        t = batch_table.c
        query = select(batch_table).where(t.job_id == job_id)
        if states is not None:
            query = query.where(t.state.in_([state.value for state in states]))
        if revision is not None:
            query = query.where(t.revision == revision)
        if round is not None:
            query = query.where(t.round == round)
        query = query.order_by(t.revision, t.round, t.seq, t.kind.desc(), t.batch_id)
        with reading(self.engine) as connection:
            return [batch_from(row) for row in connection.execute(query).mappings()]

    def get_batch(self, batch_id: str) -> Batch | None:
        """Return the batch, None where there is none."""
        query = select(batch_table).where(batch_table.c.batch_id == batch_id)
        with reading(self.engine) as connection:
            row = connection.execute(query).mappings().one_or_none()
            return None if row is None else batch_from(row)

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
        values = {
            "state": BatchState.UPLOADED.value,
            "input_file_id": input_file_id,
            "provider": provider or batch.provider,
            **place_values(place),
        }
        reason = f"file {input_file_id}" if input_file_id else "nothing: its requests go with the create call"
        return self._move_batch(batch, BatchState.PLANNED, values, "uploaded", reason=reason)

    def enter_submitting(
        self, batch: Batch, *, revision: int, lease_seconds: float, place: Place | None = None
    ) -> Batch | None:
        """``uploaded -> submitting``: attempt + 1, lease from the database clock, looks forgotten.

        Only while the job runs and its revision is still ``revision``. The job's row is locked against
        change first: once a new revision has begun, no batch may enter ``submitting`` on a look taken
        before it, because what is in flight then decides what the new revision sends. And once the job is
        halted, whoever halted it sees all that may be at the provider.

        :param place: where the create call goes.
        """
        t, job = batch_table.c, job_table.c
        current = exists().where(
            job.job_id == batch.job_id, job.revision == revision, job.state == JobState.RUNNING.value
        )
        with writing(self.engine) as connection:
            keep_job_still(connection, batch.job_id)
            values = {
                "state": BatchState.SUBMITTING.value,
                "attempt": t.attempt + 1,
                "lease_until": clock() + lease_seconds,
                "first_look_at": None,
                **place_values(place),
            }
            if not update_batch(connection, batch, BatchState.UPLOADED, values, current):
                return None
            reason = f"attempt {batch.attempt + 1}, lease of {lease_seconds:g} s"
            append_event(connection, batch.job_id, "submitting", batch_id=batch.batch_id, reason=reason)
            return existing_batch(connection, batch.batch_id)

    def record_look(self, batch: Batch) -> Batch | None:
        """Note the first look that found nothing after the lease ended (only if none is noted)."""
        t = batch_table.c
        due = (t.first_look_at.is_(None), t.lease_until <= clock())
        values = {"first_look_at": clock()}
        return self._move_batch(
            batch, BatchState.SUBMITTING, values, "looked", *due, reason=f"attempt {batch.attempt}: not found"
        )

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
        person says so.

        :param only_current: only while the batch's revision is the job's: nobody sends an earlier one's.
        """
        values = {
            "state": BatchState.UPLOADED.value,
            "lease_until": None,
            "first_look_at": None,
            "not_before": not_before,
        }
        job = job_table.c
        current = exists().where(job.job_id == batch.job_id, job.revision == batch.revision)
        with writing(self.engine) as connection:
            if only_current:
                keep_job_still(connection, batch.job_id)
            also = (current,) if only_current else ()
            if not update_batch(connection, batch, BatchState.SUBMITTING, values, *also):
                return None
            append_event(
                connection,
                batch.job_id,
                "submitting_left",
                batch_id=batch.batch_id,
                actor=actor,
                reason=reason,
            )
            return existing_batch(connection, batch.batch_id)

    def mark_submitted(
        self, batch: Batch, remote: RemoteBatch, *, place: Place | None = None
    ) -> Batch | None:
        """``submitting -> submitted`` where the attempt is still ours.

        Also in place of what was adopted provisionally meanwhile. And what another batch of ours was
        provisionally taken for is taken from it: that one is in doubt again.

        :param place: where it was made or found.
        """
        t = batch_table.c
        unsure = and_(t.provisional.is_(True), t.state.in_([state.value for state in sorted(UNSURE)]))
        with writing(self.engine) as connection:
            moved = connection.execute(
                update(batch_table)
                .where(
                    t.batch_id == batch.batch_id,
                    t.attempt == batch.attempt,
                    or_(t.state == BatchState.SUBMITTING.value, unsure),
                )
                .values(**submitted_values(remote, place=place), updated_at=clock())
            )
            if moved.rowcount != 1:
                return None
            reason = f"provider batch {remote.id}"
            append_event(connection, batch.job_id, "submitted", batch_id=batch.batch_id, reason=reason)
            free_provisional(connection, remote.id, owner=batch.batch_id)
            return existing_batch(connection, batch.batch_id)

    def put_back(self, batch: Batch, *, reason: str, not_before: float | None) -> Batch | None:
        """``uploaded|submitting|submitted|ended -> planned``: queue full or the upload is gone; nothing ran.

        From the very state that ``batch`` shows. Provider ids are cleared (the event keeps them); the
        attempt number stays.
        """
        if batch.state not in _CAN_BE_PUT_BACK:
            return None
        values = {
            "state": BatchState.PLANNED.value,
            "lease_until": None,
            "first_look_at": None,
            "not_before": not_before,
            "input_file_id": None,
            "provider_batch_id": None,
            "provider_status": None,
            "submitted_at": None,
            "ended_at": None,
            "cancel_asked_by": None,
            "cancel_asked_at": None,
            "error_code": None,
            "files": json_text([]),
            "provisional": None,
            "address": None,
            "account": None,
        }
        ids = f"file {batch.input_file_id}, provider batch {batch.provider_batch_id}"
        return self._move_batch(batch, batch.state, values, "put_back", reason=f"{reason} ({ids})")

    def mark_ended(self, batch: Batch, remote: RemoteBatch) -> Batch | None:
        """``submitted -> ended`` with the provider's status, ``error_code`` from its first error.

        ``files`` stays empty: it lists what the workspace holds, and nothing has been fetched yet. What it
        lists in this state, a person has brought.
        """
        values = {
            "state": BatchState.ENDED.value,
            "provider_status": remote.status.value,
            "ended_at": clock(),
            "error_code": clean_text(remote.errors[0].code) if remote.errors else None,
        }
        same = batch_table.c.provider_batch_id == batch.provider_batch_id
        return self._move_batch(
            batch, BatchState.SUBMITTED, values, "ended", same, reason=f"status {remote.raw_status}"
        )

    def mark_reconciled(self, batch: Batch, result: Reconciled) -> Batch | None:
        """``ended -> reconciled``, or ``reconciled -> reconciled`` with another judge.

        A second judgement replaces the very one that ``batch`` shows.
        """
        again = batch.state is BatchState.RECONCILED
        t = batch_table.c
        # A person may have decided about its rows, which changes the outcomes and not the judge.
        same = (t.judge == batch.judge, t.outcomes_sha256 == batch.outcomes_sha256)
        also = (*same, t.judge != result.judge) if again else ()
        values = reconciled_values(result)
        expect = BatchState.RECONCILED if again else BatchState.ENDED
        action = "rejudged" if again else "reconciled"
        reason = ", ".join(f"{verdict} {n}" for verdict, n in sorted(result.counts.items()))
        return self._move_batch(batch, expect, values, action, *also, reason=reason)

    def give_up_unsent(self, batch: Batch, result: Reconciled, *, reason: str) -> Batch | None:
        """``planned|uploaded -> reconciled`` with outcomes of rows that are not sent, as the time is over.

        From the very state that ``batch`` shows, and only while the job's deadline is in the past: whoever
        gives the job more time at this moment comes before or after.
        """
        if batch.state not in NOT_SENT:
            return None
        of_job = job_table.c.job_id == batch.job_id
        late = exists().where(
            of_job, job_table.c.revision == batch.revision, job_table.c.deadline_at < clock()
        )
        values = {**reconciled_values(result), "not_before": None, "ended_at": clock()}
        with writing(self.engine) as connection:
            keep_job_still(connection, batch.job_id)
            if not update_batch(connection, batch, batch.state, values, late):
                return None
            append_event(connection, batch.job_id, "given_up", batch_id=batch.batch_id, reason=reason)
            return existing_batch(connection, batch.batch_id)

    def mark_lost(self, batch: Batch, reason: str) -> Batch | None:
        """``submitted -> lost``."""
        same = batch_table.c.provider_batch_id == batch.provider_batch_id
        return self._move_batch(
            batch, BatchState.SUBMITTED, {"state": BatchState.LOST.value}, "lost", same, reason=reason
        )

    def ask_cancel(self, batch: Batch, *, actor: str, reason: str) -> Batch | None:
        """Note, before the call is made, that we ask the provider to cancel.

        ``submitted`` only, and only if nobody has asked yet.
        """
        t = batch_table.c
        also = (t.provider_batch_id == batch.provider_batch_id, t.cancel_asked_by.is_(None))
        values = {"cancel_asked_by": clean_text(actor), "cancel_asked_at": clock()}
        return self._move_batch(
            batch, BatchState.SUBMITTED, values, "cancel_asked", *also, reason=reason, actor=actor
        )

    def batches_at_provider(self, provider_batch_id: str) -> list[Batch]:
        """Return the batches of all jobs that have this id at a provider."""
        query = select(batch_table).where(batch_table.c.provider_batch_id == provider_batch_id)
        with reading(self.engine) as connection:
            found = connection.execute(query.order_by(batch_table.c.batch_id)).mappings()
            return [batch_from(row) for row in found]

    def record_duplicate(
        self, batch: Batch, remote: RemoteBatch, attempt: int, *, place: Place | None = None
    ) -> Batch:
        """Insert a ``duplicate`` in state ``submitted`` beside ``batch``, once per provider id.

        It has the same requests. Its batch_id is ``<batch_id>-d<attempt>``, or ``-d<attempt>-2`` and so
        on for a further one of the same attempt; ``cancel_asked_by`` is set to ``machine``. Where the job
        has a batch with this provider id already, primary or duplicate, that one is returned: look at
        its ``kind``. One that was only provisionally taken for it is in doubt again.

        :param place: where it was found.
        """
        t = batch_table.c
        lock = select(batch_table).where(t.batch_id == batch.batch_id).with_for_update()
        with writing(self.engine) as connection:
            primary = connection.execute(lock).mappings().one()
            known = select(batch_table).where(
                t.job_id == batch.job_id, t.provider_batch_id == remote.id, t.provisional.is_not(True)
            )
            found = connection.execute(known.order_by(t.kind.desc())).mappings().first()
            if found is not None:
                return batch_from(found)
            new_id = _free_duplicate_id(connection, batch.batch_id, attempt)
            row = {**primary, **_duplicate_values(new_id, remote, attempt), **place_values(place)}
            connection.execute(insert(batch_table).values(row))
            reason = f"provider batch {remote.id}, attempt {attempt}"
            append_event(connection, batch.job_id, "duplicate", batch_id=new_id, reason=reason)
            free_provisional(connection, remote.id, owner=new_id)
            return existing_batch(connection, new_id)

    def _move_batch(
        self,
        batch: Batch,
        expect: BatchState,
        values: Mapping[str, Any],
        action: str,
        *also: Any,
        reason: str,
        actor: str = "machine",
        of: Job | None = None,
    ) -> Batch | None:
        """Move the batch.

        :param of: its job: only while nobody has changed that.
        """
        with writing(self.engine) as connection:
            if of is not None and keep_job_still(connection, of.job_id) != of.version:
                return None
            if not update_batch(connection, batch, expect, values, *also):
                return None
            append_event(
                connection, batch.job_id, action, batch_id=batch.batch_id, actor=actor, reason=reason
            )
            return existing_batch(connection, batch.batch_id)


def _free_duplicate_id(connection: Connection, batch_id: str, attempt: int) -> str:
    base = f"{batch_id}-d{attempt}"
    t = batch_table.c
    taken = set(connection.execute(select(t.batch_id).where(t.batch_id.startswith(base))).scalars())
    candidate, number = base, 1
    while candidate in taken:
        number += 1
        candidate = f"{base}-{number}"
    return candidate


def _duplicate_values(batch_id: str, remote: RemoteBatch, attempt: int) -> dict[str, Any]:
    """Return what differs from the batch beside it; the requests are the same."""
    return {
        "batch_id": batch_id,
        "kind": BatchKind.DUPLICATE.value,
        "state": BatchState.SUBMITTED.value,
        "attempt": attempt,
        "lease_until": None,
        "not_before": None,
        "first_look_at": None,
        "input_file_id": remote.input_file_id,
        "provider_batch_id": remote.id,
        "provider_status": remote.status.value,
        "submitted_at": clock(),
        "ended_at": None,
        "cancel_asked_by": "machine",
        "cancel_asked_at": clock(),
        "error_code": None,
        "files": json_text([]),
        "outcomes_sha256": None,
        "judge": None,
        "counts": json_text({}),
        **usage_values(Usage()),
        "created_at": clock(),
        "updated_at": clock(),
        "provisional": None,
        "not_ours": None,
    }
