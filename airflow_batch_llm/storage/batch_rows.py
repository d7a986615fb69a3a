"""What transitions of a batch write, and the compare-and-set that they all go through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import Batch, BatchState, Place, RemoteBatch
from airflow_batch_llm.storage.ledger_base import append_event
from airflow_batch_llm.storage.records import batch_from, json_text, usage_values
from airflow_batch_llm.storage.schema import batch as batch_table
from airflow_batch_llm.storage.schema import job as job_table
from airflow_batch_llm.storage.types import clock

#: States in which a batch at the provider can be taken for ours provisionally.
UNSURE = frozenset({BatchState.SUBMITTED, BatchState.ENDED})


def place_values(place: Place | None) -> dict[str, Any]:
    """Return the columns that say where a batch was sent; none where that is not to be changed."""
    return {} if place is None else {"address": place.address, "account": place.account}


def submitted_values(
    remote: RemoteBatch, *, provisional: bool = False, place: Place | None = None
) -> dict[str, Any]:
    """Return the columns of a batch that the provider has taken.

    :param provisional: perhaps it is somebody else's. Then the lease stays: where it is not ours, a create
        call may be under way as long as it says.
    :param place: where it was found.
    """
    values = {
        "state": BatchState.SUBMITTED.value,
        "first_look_at": None,
        "not_before": None,
        "provider_batch_id": remote.id,
        "provider_status": remote.status.value,
        "submitted_at": clock(),
        "ended_at": None,
        "error_code": None,
        "files": json_text([]),
        "provisional": provisional or None,
        **place_values(place),
    }
    return values if provisional else {**values, "lease_until": None}


def disowned_values(batch: Batch) -> dict[str, Any]:
    """Return the columns of a batch that is in doubt again: what it was taken for is not it."""
    not_ours = [*batch.not_ours, *filter(None, [batch.provider_batch_id])]
    return {
        "state": BatchState.SUBMITTING.value,
        "lease_until": clock() if batch.lease_until is None else batch.lease_until,
        "first_look_at": None,
        "provider_batch_id": None,
        "provider_status": None,
        "submitted_at": None,
        "ended_at": None,
        "cancel_asked_by": None,
        "cancel_asked_at": None,
        "error_code": None,
        "provisional": None,
        "not_ours": json_text(sorted(set(not_ours))),
    }


def reconciled_values(result: Reconciled) -> dict[str, Any]:
    """Return the columns of a batch that was judged."""
    return {
        "state": BatchState.RECONCILED.value,
        "outcomes_sha256": result.outcomes_sha256,
        "judge": result.judge,
        "counts": json_text(dict(result.counts)),
        "files": json_text([dict(file) for file in result.files]),
        **usage_values(result.usage),
    }


def keep_job_still(connection: Connection, job_id: str) -> int | None:
    """Lock the job's row against change up to the end of the transaction; returns its version."""
    t = job_table.c
    lock = select(t.version).where(t.job_id == job_id).with_for_update(read=True)
    return connection.execute(lock).scalar_one_or_none()


def update_batch(
    connection: Connection, batch: Batch, expect: BatchState, values: Mapping[str, Any], *also: Any
) -> bool:
    """The compare-and-set: only while the state is as expected, and attempt and files those of ``batch``.

    Files tell a batch whose results a person has brought from what it was before, in the same state.
    """
    t = batch_table.c
    changed = connection.execute(
        update(batch_table)
        .where(
            t.batch_id == batch.batch_id,
            t.state == expect.value,
            t.attempt == batch.attempt,
            t.files == json_text([dict(file) for file in batch.files]),
            *also,
        )
        .values(**values, updated_at=clock())
    )
    return changed.rowcount == 1


def existing_batch(connection: Connection, batch_id: str) -> Batch:
    """Read a batch in the caller's transaction."""
    found = connection.execute(select(batch_table).where(batch_table.c.batch_id == batch_id)).mappings().one()
    return batch_from(found)


def free_provisional(connection: Connection, provider_batch_id: str, *, owner: str) -> None:
    """Put every batch back into doubt that was provisionally taken for what is now known to be another's.

    One that was judged, or whose results a person has brought, stays as it is: its rows are a person's matter
    by then.

    :param owner: our id of the batch that it is.
    """
    t = batch_table.c
    holders = select(batch_table).where(
        t.provider_batch_id == provider_batch_id,
        t.provisional.is_(True),
        t.batch_id != owner,
        t.state != BatchState.RECONCILED.value,
        t.files == json_text([]),
    )
    for row in connection.execute(holders).mappings().all():
        holder = batch_from(row)
        same = (t.provider_batch_id == provider_batch_id, t.provisional.is_(True))
        if update_batch(connection, holder, holder.state, disowned_values(holder), *same):
            reason = f"provider batch {provider_batch_id} is batch {owner}"
            append_event(
                connection, holder.job_id, "provisional_disowned", batch_id=holder.batch_id, reason=reason
            )
