"""Every change of a dead letter. Big jobs have many: written in chunks, read in pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from airflow_batch_llm.core.model import Attempt, DeadLetter, LetterState
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger_base import LedgerBase, append_event, insert_rows, read_clock
from airflow_batch_llm.storage.records import (
    attempts_from,
    clean_text,
    custom_id_values,
    json_text,
    letter_from,
    letter_news,
    letter_values,
)
from airflow_batch_llm.storage.schema import dead_letter
from airflow_batch_llm.storage.schema import job as job_table
from airflow_batch_llm.storage.types import clock

#: Letters per transaction when writing and per query when reading.
CHUNK = 1000

#: Databases that can leave out rows which are there.
_UPSERTS: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}

T = TypeVar("T")


class LetterTransitions(LedgerBase):
    """The part of the ledger that keeps dead letters."""

    def insert_dead_letters(self, letters: Iterable[DeadLetter]) -> int:
        """Insert those absent (state ``open``), a transaction per chunk, and return how many were new.

        One that is there keeps its state, actor and reason; what its last attempt tells (attempts,
        usage, verdict, code, message, model, where the request is) is brought up to date when the given
        one's last attempt is a later one: of a later revision or round. After a clear with ``fresh`` there
        may be fewer of them than before.
        """
        new = 0
        for job_id, of_job in groupby(letters, key=attrgetter("job_id")):
            for chunk in _chunks(of_job):
                with writing(self.engine) as connection:
                    new += _insert_chunk(connection, job_id, chunk)
        return new

    def dead_letters(
        self, job_id: str, *, states: Iterable[LetterState] | None = None
    ) -> Iterator[DeadLetter]:
        """Yield the job's letters ordered by wire id, reading in pages (no transaction stays open)."""
        t = dead_letter.c
        page = select(dead_letter).where(t.job_id == job_id).order_by(t.wire_id).limit(CHUNK)
        if states is not None:
            page = page.where(t.state.in_([state.value for state in states]))
        last = ""
        while True:
            with reading(self.engine) as connection:
                rows = connection.execute(page.where(t.wire_id > last)).mappings().all()
            for row in rows:
                yield letter_from(row)
            if len(rows) < CHUNK:
                return
            last = rows[-1]["wire_id"]

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
        t = dead_letter.c
        query = select(dead_letter).order_by(t.created_at.desc(), t.job_id, t.wire_id).limit(limit)
        wanted = {t.job_id: job_id, t.dag_id: dag_id, t.run_id: run_id, t.code: code}
        query = query.where(*[column == value for column, value in wanted.items() if value is not None])
        if states is not None:
            query = query.where(t.state.in_([state.value for state in states]))
        if custom_id is not None:
            stored, stored_as = custom_id_values(custom_id)
            query = query.where(t.custom_id == stored, t.custom_id_as == stored_as)
        with reading(self.engine) as connection:
            return [letter_from(row) for row in connection.execute(query).mappings()]

    def letter_changes(self, job_id: str, wire_id: str) -> list[dict[str, Any]]:
        """Return the changes of a letter's state in order: time, from, to, actor, reason."""
        t = dead_letter.c
        query = select(t.changes).where(t.job_id == job_id, t.wire_id == wire_id)
        with reading(self.engine) as connection:
            found = connection.execute(query).scalar_one_or_none() or ""
        return [json.loads(line) for line in found.split("\n") if line]

    def count_dead_letters(self, job_id: str) -> dict[tuple[LetterState, str], int]:
        """Return (state, code) -> letters."""
        t = dead_letter.c
        query = select(t.state, t.code, func.count()).where(t.job_id == job_id).group_by(t.state, t.code)
        with reading(self.engine) as connection:
            return {(LetterState(state), code): n for state, code, n in connection.execute(query)}

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
        """Move the letters that are in one of ``expect`` and return how many moved.

        A transaction per chunk of ids; a letter that is in ``to`` already does not move.
        """
        expected = list(expect)
        moved = 0
        for chunk in _chunks(wire_ids):
            with writing(self.engine) as connection:
                moved += move_letters(
                    connection, job_id, chunk, to=to, expect=expected, actor=actor, reason=reason
                )
        return moved


def move_letters(
    connection: Connection,
    job_id: str,
    wire_ids: Sequence[str],
    *,
    to: LetterState,
    expect: Iterable[LetterState],
    actor: str,
    reason: str,
) -> int:
    """Move letters in the caller's transaction and return how many moved; appends one event."""
    origins = [state for state in expect if state != to]
    moved = dict.fromkeys(origins, 0)
    now = read_clock(connection)
    for chunk in _chunks(sorted(set(wire_ids))):
        for state, ids in _lock_letters(connection, job_id, chunk, origins).items():
            line = {"time": now, "from": state, "to": to, "actor": actor, "reason": reason}
            connection.execute(
                update(dead_letter)
                .where(dead_letter.c.job_id == job_id, dead_letter.c.wire_id.in_(ids))
                .values(
                    state=to.value,
                    actor=clean_text(actor),
                    reason=clean_text(reason),
                    changes=dead_letter.c.changes + _json_line(line),
                    updated_at=now,
                )
            )
            moved[state] += len(ids)
    total = sum(moved.values())
    if total:
        text = ", ".join(f"{n} {state} -> {to}" for state, n in moved.items() if n)
        text += f": {reason}" if reason else ""
        append_event(connection, job_id, "letters_moved", actor=actor, reason=text)
    return total


def _lock_letters(
    connection: Connection, job_id: str, wire_ids: Sequence[str], states: Sequence[LetterState]
) -> dict[LetterState, list[str]]:
    """Lock the letters that may move, in one order so that two movers never wait for each other."""
    t = dead_letter.c
    query = (
        select(t.wire_id, t.state)
        .where(t.job_id == job_id, t.wire_id.in_(wire_ids), t.state.in_([state.value for state in states]))
        .order_by(t.wire_id)
        .with_for_update()
    )
    found: dict[LetterState, list[str]] = {}
    for wire_id, state in connection.execute(query):
        found.setdefault(LetterState(state), []).append(wire_id)
    return found


def _insert_chunk(connection: Connection, job_id: str, letters: Sequence[DeadLetter]) -> int:
    fullest: dict[str, DeadLetter] = {}
    for letter in letters:
        known = fullest.get(letter.wire_id)
        if known is None or _last(letter.attempts) > _last(known.attempts):
            fullest[letter.wire_id] = letter
    chunk = sorted(fullest.values(), key=attrgetter("wire_id"))
    new = _insert_absent(connection, job_id, [letter_values(letter) for letter in chunk])
    if new:
        append_event(connection, job_id, "letters_added", reason=f"{new} letters")
    updated = _update_present(connection, job_id, chunk) if new < len(chunk) else 0
    if updated:
        append_event(connection, job_id, "letters_updated", reason=f"{updated} letters")
    return new


def _insert_absent(connection: Connection, job_id: str, rows: list[dict[str, Any]]) -> int:
    """Insert the rows that are not there and return how many that were."""
    dialect = connection.dialect.name
    if dialect not in _UPSERTS:
        return _insert_absent_anywhere(connection, job_id, rows)
    times = {"created_at": clock(), "updated_at": clock()}
    statement = _UPSERTS[dialect](dead_letter).values(times).on_conflict_do_nothing()
    # One statement per row in one trip, which is several times cheaper for psycopg than RETURNING's
    # thousand-row VALUES; its row count is lost unless asked for.
    done = connection.execute(statement, rows, execution_options={"preserve_rowcount": True})
    return done.rowcount


def _insert_absent_anywhere(connection: Connection, job_id: str, rows: list[dict[str, Any]]) -> int:
    """Insert the absent rows in plain SQL: look, and insert. Others who insert for the job wait meanwhile.

    Inserts that meet would keep shared locks on the same rows, and end each other as deadlocks.
    """
    t = dead_letter.c
    connection.execute(select(job_table.c.job_id).where(job_table.c.job_id == job_id).with_for_update()).all()
    wire_ids = [row["wire_id"] for row in rows]
    present = set(
        connection.execute(select(t.wire_id).where(t.job_id == job_id, t.wire_id.in_(wire_ids))).scalars()
    )
    absent = [row for row in rows if row["wire_id"] not in present]
    insert_rows(connection, dead_letter, absent, "created_at", "updated_at")
    return len(absent)


def _update_present(connection: Connection, job_id: str, letters: Sequence[DeadLetter]) -> int:
    """Bring up to date those whose given attempts are more than the ledger's."""
    t = dead_letter.c
    wire_ids = [letter.wire_id for letter in letters]
    query = (
        select(t.wire_id, t.attempts)
        .where(t.job_id == job_id, t.wire_id.in_(wire_ids))
        .order_by(t.wire_id)
        .with_for_update()
    )
    known = {row.wire_id: _last(attempts_from(row.attempts)) for row in connection.execute(query)}
    updated = 0
    for letter in letters:
        if _last(letter.attempts) <= known[letter.wire_id]:
            continue
        changed = connection.execute(
            _BRING_UP_TO_DATE, {"at_job": job_id, "at_wire": letter.wire_id, **letter_news(letter)}
        )
        updated += changed.rowcount
    return updated


def _last(attempts: Sequence[Attempt]) -> tuple[int, int, int]:
    """Return revision and round of the last attempt, and how many there are."""
    return (attempts[-1].revision, attempts[-1].round, len(attempts)) if attempts else (0, 0, 0)


_BRING_UP_TO_DATE = (
    update(dead_letter)
    .where(
        dead_letter.c.job_id == bindparam("at_job"),
        dead_letter.c.wire_id == bindparam("at_wire"),
    )
    .values(updated_at=clock())
)


def _json_line(value: dict[str, Any]) -> str:
    return json_text({key: clean_text(v) if isinstance(v, str) else v for key, v in value.items()}) + "\n"


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
