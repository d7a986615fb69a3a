"""What a purge changes in the ledger: marks on jobs, files that batches name, what letters quote."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, update

from airflow_batch_llm.core.model import Batch, Job, JobState
from airflow_batch_llm.core.ports import FileInfo
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger_base import LedgerBase, append_event
from airflow_batch_llm.storage.records import batch_from, custom_id_values, job_from, json_text
from airflow_batch_llm.storage.schema import batch as batch_table
from airflow_batch_llm.storage.schema import dead_letter, event
from airflow_batch_llm.storage.schema import job as job_table
from airflow_batch_llm.storage.types import clock

#: Jobs per query, letters per transaction.
CHUNK = 1000


class PurgeTransitions(LedgerBase):
    """The part of the ledger that forgets contents and keeps what happened."""

    def iter_jobs(
        self, *, dag_id: str | None = None, states: Collection[JobState] | None = None
    ) -> Iterator[Job]:
        """Yield jobs in the order of their ids, reading in pages (no transaction stays open)."""
        t = job_table.c
        page = select(job_table).order_by(t.job_id).limit(CHUNK)
        if dag_id is not None:
            page = page.where(t.dag_id == dag_id)
        if states is not None:
            page = page.where(t.state.in_([state.value for state in states]))
        last = ""
        while True:
            with reading(self.engine) as connection:
                rows = connection.execute(page.where(t.job_id > last)).mappings().all()
            for row in rows:
                yield job_from(row)
            if len(rows) < CHUNK:
                return
            last = rows[-1]["job_id"]

    def note_purge(
        self, job: Job, action: str, *, seen: Mapping[str, Any], actor: str, reason: str
    ) -> Job | None:
        """Note that a purge begins or is done; only a job that is settled or halted, and is as given.

        :param action: the event's.
        :param seen: merged into what the job has seen.
        """
        t = job_table.c
        allowed = [JobState.SETTLED.value, JobState.HALTED.value]
        with writing(self.engine) as connection:
            changed = connection.execute(
                update(job_table)
                .where(t.job_id == job.job_id, t.version == job.version, t.state.in_(allowed))
                .values(seen=json_text({**job.seen, **seen}), version=job.version + 1, updated_at=clock())
            )
            if changed.rowcount != 1:
                return None
            append_event(connection, job.job_id, action, actor=actor, reason=reason)
            found = connection.execute(select(job_table).where(t.job_id == job.job_id)).mappings().one()
            return job_from(found)

    def rewrite_outcomes(
        self, batch: Batch, *, outcomes_sha256: str | None, files: Sequence[Mapping[str, Any]]
    ) -> Batch | None:
        """Name other outcomes and raw files of a batch, where those it names are still the given ones."""
        t = batch_table.c
        same: ColumnElement[bool] = (
            t.outcomes_sha256.is_(None)
            if batch.outcomes_sha256 is None
            else t.outcomes_sha256 == batch.outcomes_sha256
        )
        with writing(self.engine) as connection:
            changed = connection.execute(
                update(batch_table)
                .where(t.batch_id == batch.batch_id, t.state == batch.state.value, same)
                .where(t.files == json_text([dict(file) for file in batch.files]))
                .values(
                    outcomes_sha256=outcomes_sha256,
                    files=json_text([dict(file) for file in files]),
                    updated_at=clock(),
                )
            )
            if changed.rowcount != 1:
                return None
            found = connection.execute(select(batch_table).where(t.batch_id == batch.batch_id))
            return batch_from(found.mappings().one())

    def move_requests(self, job_id: str, path: str, to: str, info: FileInfo) -> int:
        """Name another file of requests in place of ``path``, in the batches and letters of a job at once.

        Returns how many batches name it: a duplicate has the file of its primary.
        """
        t, letter = batch_table.c, dead_letter.c
        with writing(self.engine) as connection:
            changed = connection.execute(
                update(batch_table)
                .where(t.job_id == job_id, t.path == path)
                .values(path=to, bytes=info.size, sha256=info.sha256, updated_at=clock())
            )
            connection.execute(
                update(dead_letter)
                .where(letter.job_id == job_id, letter.request_path == path)
                .values(request_path=to, updated_at=clock())
            )
            return changed.rowcount

    def move_plan(self, job: Job, plan_id: str, to: str, digest: str | None) -> Job | None:
        """Name the plan ``to`` where the job names ``plan_id``, as its own or as the one before.

        :param digest: of the new plan, where it is the job's own.
        """
        t = job_table.c
        values: dict[str, Any] = {"version": job.version + 1, "updated_at": clock()}
        if job.plan_id == plan_id:
            values |= {"plan_id": to, "plan_digest": digest}
        if job.seen.get("previous_plan") == plan_id:
            values["seen"] = json_text({**job.seen, "previous_plan": to})
        with writing(self.engine) as connection:
            changed = connection.execute(
                update(job_table)
                .where(t.job_id == job.job_id, t.version == job.version, t.state == JobState.SETTLED.value)
                .values(**values)
            )
            if changed.rowcount != 1:
                return None
            found = connection.execute(select(job_table).where(t.job_id == job.job_id)).mappings().one()
            return job_from(found)

    def forget_messages(self, job_id: str) -> int:
        """Empty what the job's letters quote; returns how many quoted anything."""
        t = dead_letter.c
        with writing(self.engine) as connection:
            changed = connection.execute(
                update(dead_letter)
                .where(t.job_id == job_id, t.message != "")
                .values(message="", updated_at=clock())
            )
            return changed.rowcount

    def erase_letters(self, job_id: str, erased: Mapping[str, str]) -> int:
        """Take the custom id, the message and the request out of letters; returns how many there were.

        The id is also taken out of the job's events.

        :param erased: custom id -> what stands in its place.
        """
        t = dead_letter.c
        letters = 0
        with writing(self.engine) as connection:
            for custom_id, instead in erased.items():
                stored, stored_as = custom_id_values(custom_id)
                changed = connection.execute(
                    update(dead_letter)
                    .where(t.job_id == job_id, t.custom_id == stored, t.custom_id_as == stored_as)
                    .values(
                        custom_id=instead,
                        custom_id_as="text",
                        message="",
                        request_path="",
                        updated_at=clock(),
                    )
                )
                letters += changed.rowcount
            _erase_from_events(connection, job_id, erased)
        return letters


def _erase_from_events(connection: Connection, job_id: str, erased: Mapping[str, str]) -> None:
    """Replace ids in what was noted about single rows (``core/judging.py`` cuts them to 64 characters)."""
    t = event.c
    rows = connection.execute(select(t.id, t.reason).where(t.job_id == job_id, t.action == "lines_refused"))
    for row in rows.all():
        reason = row.reason
        for custom_id, instead in erased.items():
            reason = reason.replace(f"({custom_id[:64]!r})", f"({instead})")
        if reason != row.reason:
            connection.execute(update(event).where(t.id == row.id).values(reason=reason))
