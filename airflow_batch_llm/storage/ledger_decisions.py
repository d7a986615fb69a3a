"""What a person decides about a batch: one named method each, one compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import Batch, BatchState, Job, JobState, Place, RemoteBatch, Usage
from airflow_batch_llm.storage.batch_rows import (
    UNSURE,
    existing_batch,
    free_provisional,
    reconciled_values,
    submitted_values,
    update_batch,
)
from airflow_batch_llm.storage.engine import writing
from airflow_batch_llm.storage.ledger_base import append_event
from airflow_batch_llm.storage.ledger_batches import BatchTransitions
from airflow_batch_llm.storage.records import clean_text, json_text, usage_values
from airflow_batch_llm.storage.schema import batch as batch_table
from airflow_batch_llm.storage.schema import job as job_table
from airflow_batch_llm.storage.schema import meta
from airflow_batch_llm.storage.types import clock

_CAN_BE_ADOPTED = frozenset({BatchState.SUBMITTING, BatchState.LOST})
_CAN_BE_WRITTEN_OFF = frozenset(
    {
        BatchState.PLANNED,
        BatchState.UPLOADED,
        BatchState.SUBMITTED,
        BatchState.ENDED,
        BatchState.LOST,
        BatchState.RECONCILED,
    }
)
_CAN_BE_HANDED_IN = frozenset(
    {BatchState.SUBMITTED, BatchState.ENDED, BatchState.LOST, BatchState.RECONCILED}
)
#: Of these a plan may be about to send the rows again.
_MAY_BE_SENT_AGAIN = frozenset({BatchState.LOST, BatchState.RECONCILED})


class DecisionTransitions(BatchTransitions):
    """The part of the ledger that moves batches as a person says."""

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
        of what was adopted provisionally.

        None as well where another batch, of whatever job, has this id for certain.

        :param provisional: its rows are still to say so.
        :param place: where the batch is.
        :param moved: ``submitted|ended -> submitted`` as well: its connection names another place by now,
            where it may go by another id.
        """
        values = submitted_values(remote, provisional=provisional, place=place)
        known = batch.provisional or (moved and batch.state in UNSURE)
        if batch.state not in _CAN_BE_ADOPTED and not known:
            return None
        t = batch_table.c
        taken = select(t.batch_id).where(
            t.provider_batch_id == remote.id, t.batch_id != batch.batch_id, t.provisional.is_not(True)
        )
        # Two adoptions of one id into two batches wait for each other here.
        lock = select(meta.c.value).where(meta.c.name == "namespace").with_for_update()
        with writing(self.engine) as connection:
            connection.execute(lock).all()
            if connection.execute(taken).first() is not None:
                return None
            if not update_batch(connection, batch, batch.state, values):
                return None
            text = f"provider batch {remote.id}: {reason}"
            append_event(
                connection, batch.job_id, "adopted", batch_id=batch.batch_id, actor=actor, reason=text
            )
            if not provisional:
                # A person's word alone takes it from no other batch: the rows may say that it is that one's.
                free_provisional(connection, remote.id, owner=batch.batch_id)
            return existing_batch(connection, batch.batch_id)

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
        """``planned|uploaded|submitted|ended|lost|reconciled -> reconciled``: outcomes that a person decided.

        From the very state, and the very outcomes, that ``batch`` shows.

        :param accepted: the job that was accepted; only while nobody has changed it since.
        """
        if batch.state not in _CAN_BE_WRITTEN_OFF:
            return None
        t = batch_table.c
        same = t.outcomes_sha256 == batch.outcomes_sha256
        also = (same,) if batch.state is BatchState.RECONCILED else ()
        closed = {"not_before": None, "error_code": error_code, "provisional": None}
        if batch.provisional:
            # Nobody knows that it was this one: what the create call came to is looked for all the same.
            closed["provider_batch_id"] = None
        values = {**reconciled_values(result), **closed}
        return self._move_batch(
            batch, batch.state, values, "written_off", *also, reason=reason, actor=actor, of=accepted
        )

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
        """``submitted|ended|lost|reconciled -> ended``: a person brought the result files.

        From the very state, files and outcomes that ``batch`` shows. What was judged of it before goes.

        :param files: all raw files of the batch from now on.
        :param job: its job. Of a batch that is lost or was judged, only while nobody has changed the job, and
            its plan is pinned; its version rises, so that whoever is about to send the rows again, having
            read the batch as it was, finds the job changed.
        :param remote: how the batch ended, as the provider shows it; None: as the ledger knows it.
        :param error_code: the code of the batch from now on.
        """
        if batch.state not in _CAN_BE_HANDED_IN:
            return None
        t = batch_table.c
        values: dict[str, Any] = {
            "state": BatchState.ENDED.value,
            "files": json_text([dict(file) for file in files]),
            "ended_at": clock() if batch.ended_at is None else batch.ended_at,
            "error_code": clean_text(error_code) if error_code else None,
            "outcomes_sha256": None,
            "judge": None,
            "counts": json_text({}),
            **usage_values(Usage()),
        }
        if remote is not None:
            values["provider_status"] = remote.status.value
        judged = batch.state is BatchState.RECONCILED
        same = (t.outcomes_sha256 == batch.outcomes_sha256,) if judged else ()
        with writing(self.engine) as connection:
            sent_again = batch.state in _MAY_BE_SENT_AGAIN
            if sent_again and not _holds_still(connection, job):
                return None
            if not update_batch(connection, batch, batch.state, values, *same):
                return None
            if sent_again:
                changed = update(job_table).where(job_table.c.job_id == job.job_id)
                connection.execute(changed.values(version=job.version + 1, updated_at=clock()))
            append_event(
                connection, batch.job_id, "handed_in", batch_id=batch.batch_id, actor=actor, reason=reason
            )
            return existing_batch(connection, batch.batch_id)


def _holds_still(connection: Connection, job: Job) -> bool:
    """Lock the job's row up to the end of the transaction; says whether it is as given and has its plan."""
    t = job_table.c
    query = select(t.version).where(t.job_id == job.job_id, t.state != JobState.STAGING.value)
    return connection.execute(query.with_for_update()).scalar_one_or_none() == job.version
