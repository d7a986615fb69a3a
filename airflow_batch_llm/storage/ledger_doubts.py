"""Changes of batches that the provider refused before it made one, or may hold without a mark of ours."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, exists, select, update

from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import NOT_SENT, Batch, BatchState, RemoteBatch, RemoteStatus
from airflow_batch_llm.storage.batch_rows import (
    UNSURE,
    disowned_values,
    existing_batch,
    keep_job_still,
    reconciled_values,
    submitted_values,
    update_batch,
)
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger_base import append_event
from airflow_batch_llm.storage.ledger_batches import BatchTransitions
from airflow_batch_llm.storage.records import batch_from, clean_text, json_text
from airflow_batch_llm.storage.schema import batch as batch_table
from airflow_batch_llm.storage.schema import job as job_table
from airflow_batch_llm.storage.schema import meta
from airflow_batch_llm.storage.types import clock


class DoubtTransitions(BatchTransitions):
    """The part of the ledger that moves batches which were never made, or of which the provider shows no
    more than a time and a count."""

    # -- nothing was created -----------------------------------------------------------------------
    def mark_refused(self, batch: Batch, result: Reconciled, *, error_code: str, reason: str) -> Batch | None:
        """``planned|uploaded|submitting -> reconciled``: the provider refused all of it and made no batch.

        From the very state that ``batch`` shows. What was not sent yet, only while its revision is the
        job's: a later one sends its rows itself.
        """
        values = {"provider_status": RemoteStatus.FAILED.value, "error_code": clean_text(error_code)}
        return self._close_unmade(batch, result, values, "refused", reason)

    def mark_not_created(self, batch: Batch, result: Reconciled, *, reason: str) -> Batch | None:
        """``submitting -> reconciled``: the create call took no effect, and nobody sends the batch any more,
        as a later revision has begun: its rows go into that one's next round."""
        if batch.state is not BatchState.SUBMITTING:
            return None
        return self._close_unmade(batch, result, {"error_code": "not_created"}, "not_created", reason)

    def _close_unmade(
        self, batch: Batch, result: Reconciled, values: dict[str, str], action: str, reason: str
    ) -> Batch | None:
        if batch.state not in NOT_SENT | {BatchState.SUBMITTING}:
            return None
        closed = {
            **reconciled_values(result),
            **values,
            "lease_until": None,
            "first_look_at": None,
            "not_before": None,
            "ended_at": clock(),
        }
        job = job_table.c
        current = exists().where(job.job_id == batch.job_id, job.revision == batch.revision)
        with writing(self.engine) as connection:
            keep_job_still(connection, batch.job_id)
            also = (current,) if batch.state in NOT_SENT else ()
            if not update_batch(connection, batch, batch.state, closed, *also):
                return None
            append_event(connection, batch.job_id, action, batch_id=batch.batch_id, reason=reason)
            return existing_batch(connection, batch.batch_id)

    # -- perhaps ours ------------------------------------------------------------------------------
    def in_doubt_alike(self, batch: Batch) -> list[Batch]:
        """Return the other batches, of all jobs, that a batch found at the provider may be as well: in
        ``submitting``, of this provider and with as many requests."""
        with reading(self.engine) as connection:
            found = connection.execute(_alike(batch)).mappings()
            return [batch_from(row) for row in found]

    def adopt_provisionally(self, batch: Batch, remote: RemoteBatch) -> Batch | None:
        """``submitting -> submitted``, provisional: what the provider holds may be this batch.

        None as well where another batch, of whatever job, has this id, or may be it too.
        """
        t = batch_table.c
        taken = select(t.batch_id).where(t.provider_batch_id == remote.id)
        # Two adoptions of one id into two batches wait for each other here.
        lock = select(meta.c.value).where(meta.c.name == "namespace").with_for_update()
        with writing(self.engine) as connection:
            connection.execute(lock).all()
            # In this order: one that leaves doubt in between has its id by the second look.
            if connection.execute(_alike(batch)).first() is not None:
                return None
            if connection.execute(taken).first() is not None:
                return None
            values = submitted_values(remote, provisional=True)
            if not update_batch(connection, batch, BatchState.SUBMITTING, values):
                return None
            reason = f"provider batch {remote.id}, by time and count; its results will tell"
            append_event(
                connection, batch.job_id, "adopted_provisionally", batch_id=batch.batch_id, reason=reason
            )
            return existing_batch(connection, batch.batch_id)

    def confirm(self, batch: Batch) -> Batch | None:
        """Note that a batch which was adopted provisionally is ours: it holds rows of it."""
        if batch.state not in UNSURE:
            return None
        t = batch_table.c
        same = (t.provider_batch_id == batch.provider_batch_id, t.provisional.is_(True))
        reason = f"provider batch {batch.provider_batch_id} holds its rows"
        values = {"provisional": None, "lease_until": None}
        return self._move_batch(batch, batch.state, values, "provisional_confirmed", *same, reason=reason)

    def disown(self, batch: Batch, *, reason: str, actor: str = "machine") -> Batch | None:
        """``submitted|ended -> submitting``: what was adopted provisionally is not this batch.

        Its create call is in doubt again: two new looks have to find nothing before it is sent. The lease is
        what it was.
        """
        if batch.state not in UNSURE:
            return None
        t = batch_table.c
        same = (t.provider_batch_id == batch.provider_batch_id, t.provisional.is_(True))
        told = f"provider batch {batch.provider_batch_id}: {reason}"
        return self._move_batch(
            batch,
            batch.state,
            disowned_values(batch),
            "provisional_disowned",
            *same,
            reason=told,
            actor=actor,
        )

    def note_not_ours(self, batch: Batch, provider_ids: Collection[str]) -> Batch | None:
        """Note batches at the provider that were read and hold no row of this one."""
        t = batch_table.c
        lock = select(batch_table).where(t.batch_id == batch.batch_id).with_for_update()
        with writing(self.engine) as connection:
            row = connection.execute(lock).mappings().one_or_none()
            if row is None:
                return None
            known = set(batch_from(row).not_ours)
            if set(provider_ids) <= known:
                return batch_from(row)
            values = {"not_ours": json_text(sorted(known | set(provider_ids))), "updated_at": clock()}
            connection.execute(update(batch_table).where(t.batch_id == batch.batch_id).values(values))
            reason = f"provider batches {', '.join(sorted(set(provider_ids) - known))}"
            append_event(connection, batch.job_id, "not_ours", batch_id=batch.batch_id, reason=reason)
            return existing_batch(connection, batch.batch_id)


def _alike(batch: Batch) -> Select[Any]:
    t = batch_table.c
    return select(batch_table).where(
        t.state == BatchState.SUBMITTING.value,
        t.provider == batch.provider,
        t.requests == batch.requests,
        t.batch_id != batch.batch_id,
    )
