"""Answers that were bought, for later jobs: who has asked the same before, and where the answer is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Insert, delete, func, select, tuple_
from sqlalchemy.dialects import mysql, postgresql, sqlite

from airflow_batch_llm.core.model import BoughtAnswer
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger_base import LedgerBase
from airflow_batch_llm.storage.schema import answer

#: Answers per transaction when writing or forgetting, and per query when looking.
CHUNK = 1000

_FACTS = ("job_id", "batch_id", "wire_id", "answered_at")

T = TypeVar("T")


class BoughtAnswers(LedgerBase):
    """The part of the ledger that knows which requests have been answered, whatever the job."""

    def record_answers(self, answers: Iterable[BoughtAnswer]) -> int:
        """Note answers, a transaction per chunk, and return how many were given.

        Of two for the same request, task and connection the newest stands.
        """
        given = 0
        for chunk in _chunks(answers):
            newest: dict[tuple[str, str, str], BoughtAnswer] = {}
            for one in chunk:
                place = (one.request_hash, one.task, one.connection)
                if place not in newest or newest[place].answered_at <= one.answered_at:
                    newest[place] = one
            # In one order, so that two jobs never wait for each other.
            rows = [asdict(newest[place]) for place in sorted(newest)]
            with writing(self.engine) as connection:
                connection.execute(_upsert(connection), rows)
            given += len(chunk)
        return given

    def find_answers(
        self,
        hashes: Iterable[str],
        *,
        task: str | None = None,
        connection: str | None = None,
        since: float | None = None,
    ) -> dict[str, BoughtAnswer]:
        """Return the newest answer to each request that has one: request hash -> answer.

        :param task: only answers of this task.
        :param connection: only answers bought with this connection, as they were asked for.
        :param since: only answers of that time (seconds since the epoch) and later.
        """
        t = answer.c
        wanted = {t.task: task, t.connection: connection}
        query = select(answer).where(*[column == v for column, v in wanted.items() if v is not None])
        if since is not None:
            query = query.where(t.answered_at >= since)
        found: dict[str, BoughtAnswer] = {}
        for chunk in _chunks(hashes):
            with reading(self.engine) as opened:
                rows = opened.execute(query.where(t.request_hash.in_(chunk))).mappings().all()
            for row in rows:
                one = BoughtAnswer(**row)
                other = found.get(one.request_hash)
                if other is None or (one.answered_at, one.wire_id) > (other.answered_at, other.wire_id):
                    found[one.request_hash] = one
        return found

    def forget_answers(
        self,
        *,
        job_id: str | None = None,
        wire_ids: Iterable[str] | None = None,
        older_than: float | None = None,
    ) -> int:
        """Forget answers, a transaction per chunk, and return how many; later jobs buy them again.

        :param job_id: those that this job bought.
        :param wire_ids: of these, only those to the requests named.
        :param older_than: those from before that time (seconds since the epoch).
        :raises ValueError: neither a job nor a time is given.
        """
        t = answer.c
        if job_id is None and older_than is None:
            raise ValueError("say which answers to forget: of a job, or older than a time")
        bounds: list[ColumnElement[bool]] = []
        if job_id is not None:
            bounds.append(t.job_id == job_id)
        if older_than is not None:
            bounds.append(t.answered_at < older_than)
        if wire_ids is None:
            return self._forget(bounds)
        return sum(self._forget([*bounds, t.wire_id.in_(chunk)]) for chunk in _chunks(wire_ids))

    def _forget(self, bounds: Sequence[ColumnElement[bool]]) -> int:
        """Delete in chunks: one transaction for millions of rows would lock out everybody else."""
        key = (answer.c.request_hash, answer.c.task, answer.c.connection)
        forgotten = 0
        while True:
            with writing(self.engine) as connection:
                rows = connection.execute(select(*key).where(*bounds).limit(CHUNK)).all()
                if rows:
                    gone = delete(answer).where(*bounds, tuple_(*key).in_([tuple(row) for row in rows]))
                    forgotten += connection.execute(gone).rowcount
            if len(rows) < CHUNK:
                return forgotten


def _upsert(connection: Connection) -> Insert:
    """Return the statement that inserts an answer, or puts it over an older one."""
    dialect = connection.dialect.name
    if dialect in ("postgresql", "sqlite"):
        insert: Any = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}[dialect](answer)
        done: Insert = insert.on_conflict_do_update(
            index_elements=[answer.c.request_hash, answer.c.task, answer.c.connection],
            set_={name: insert.excluded[name] for name in _FACTS},
            where=insert.excluded.answered_at >= answer.c.answered_at,
        )
        return done
    insert = mysql.insert(answer)
    newer = insert.inserted.answered_at >= answer.c.answered_at
    # MySQL sets one column after the other, each as the ones before have left the row: the time comes last.
    facts = [(name, func.IF(newer, insert.inserted[name], answer.c[name])) for name in _FACTS]
    changed: Insert = insert.on_duplicate_key_update(facts)
    return changed


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
