"""Batches: every state change one named method, one compare-and-set on the status."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.server.database import Database
from airflow_batch_llm.server.faults import ScenarioStore
from airflow_batch_llm.server.scenario import BatchRule
from airflow_batch_llm.server.wire import LineError

#: The completion window of every batch, in seconds.
WINDOW = 86_400
_OPEN = "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch. Times are unix seconds, ``metadata``, ``errors`` and ``fault`` JSON text.

    ``dialect`` is the protocol it was created over, ``extra`` what that protocol keeps with it (JSON text).

    ``ending`` says why the rows that are left will not be executed (``expired``, ``cancelled``);
    ``rows_done``, ``input_offset``, ``output_bytes`` and ``error_bytes`` are how far the engine got.
    """

    seq: int
    id: str
    dialect: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str | None
    output_seconds: int | None
    scenario: int
    fault: str | None
    status: str
    model: str | None
    errors: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    next_at: float
    held: int
    ending: str | None
    total: int
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    rows_done: int
    input_offset: int
    output_bytes: int
    error_bytes: int
    output_file_id: str | None
    error_file_id: str | None
    polls: int
    end_polls: int
    extra: str | None
    deleted: int

    @property
    def rule(self) -> BatchRule | None:
        """Return what the scenario does to this batch."""
        return BatchRule.model_validate_json(self.fault) if self.fault else None

    @property
    def kept(self) -> dict[str, Any]:
        """Return what the protocol keeps with it."""
        return json.loads(self.extra) if self.extra else {}

    @property
    def has_error_file(self) -> bool:
        """Say whether one that completes has an error file even where no row failed (``extra``)."""
        return self.ending is None and bool(self.kept.get("error_file"))

    def result_id(self, kind: str) -> str:
        """Return the id of its ``output`` or ``error`` file: the protocol's own (``extra``), or OpenAI's.

        It stays the same, so that a killed server can finish the batch again.
        """
        own: dict[str, str] = self.kept.get("result_ids", {})
        return (
            own.get(kind)
            or "file-" + hashlib.blake2b(f"{self.id}/{kind}".encode(), digest_size=12).hexdigest()
        )

    @property
    def withheld(self) -> bool:
        """Say whether one that ends like this gives nobody its results (``extra``)."""
        return self.ending is not None and self.ending in self.kept.get("withheld", ())


@dataclass(frozen=True, slots=True)
class Progress:
    """What one piece of a batch adds."""

    rows: int
    input_offset: int
    output_bytes: int
    error_bytes: int
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int


class BatchStore:
    """Batches by id."""

    def __init__(self, database: Database, scenarios: ScenarioStore) -> None:
        self._db = database
        self._scenarios = scenarios

    def create(
        self,
        *,
        dialect: str,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        metadata: Mapping[str, str] | None,
        output_seconds: int | None = None,
        batch_id: str | None = None,
        model: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> StoredBatch:
        """Insert a batch, ``validating``, under the scenario in force.

        :param batch_id: None for an id such as OpenAI's.
        :param model: where the whole batch has one that its lines do not name.
        """
        generation, _ = self._scenarios.current()
        now = int(time.time())
        batch_id = batch_id or "batch_" + secrets.token_hex(16)
        with self._db.write() as connection:
            rule = self._scenarios.draw_batch(connection, generation)
            connection.execute(
                "INSERT INTO batch (id, dialect, endpoint, input_file_id, completion_window, metadata,"
                " output_seconds, scenario, fault, status, created_at, expires_at, model, extra)"
                " VALUES (?,?,?,?,?,?,?,?,?,'validating',?,?,?,?)",
                (
                    batch_id,
                    dialect,
                    endpoint,
                    input_file_id,
                    completion_window,
                    None if metadata is None else json.dumps(metadata),
                    output_seconds,
                    generation,
                    rule.model_dump_json() if rule else None,
                    now,
                    now + WINDOW,
                    model,
                    None if extra is None else json.dumps(extra),
                ),
            )
        return self.require(batch_id)

    def get(self, batch_id: str) -> StoredBatch | None:
        """Return a batch."""
        row = (
            self._db.connection()
            .execute("SELECT * FROM batch WHERE id = ? AND deleted = 0", (batch_id,))
            .fetchone()
        )
        return _batch(row) if row else None

    def require(self, batch_id: str) -> StoredBatch:
        """Return a batch that is known to exist."""
        found = self.get(batch_id)
        assert found is not None
        return found

    def page(
        self, *, after: str | None, limit: int, dialect: str | None = None, before: str | None = None
    ) -> tuple[Sequence[StoredBatch], bool]:
        """Return batches, newest first, and whether more follow.

        :param before: the page that comes just before this batch (newer ones), and whether still newer ones
            are there; not together with ``after``.
        :param dialect: of this protocol only.
        :raises KeyError: ``after`` or ``before`` is unknown. One that was deleted still marks its place.
        """
        cursor = after if after is not None else before
        seq = self._place(cursor) if cursor is not None else None
        beyond, order = ("seq > ?", "ASC") if before is not None else ("seq < ?", "DESC")
        rows = (
            self._db.connection()
            .execute(
                f"SELECT * FROM batch WHERE (? IS NULL OR {beyond}) AND (? IS NULL OR dialect = ?)"
                f" AND deleted = 0 ORDER BY seq {order} LIMIT ?",
                (seq, seq, dialect, dialect, limit + 1),
            )
            .fetchall()
        )
        found = [_batch(row) for row in rows[:limit]]
        return found[::-1] if before is not None else found, len(rows) > limit

    def _place(self, batch_id: str) -> int:
        row = self._db.connection().execute("SELECT seq FROM batch WHERE id = ?", (batch_id,)).fetchone()
        if row is None:
            raise KeyError(batch_id)
        place: int = row["seq"]
        return place

    def unfinished(self) -> list[StoredBatch]:
        """Return the batches that the engine has work with, oldest first."""
        rows = self._db.connection().execute(f"SELECT * FROM batch WHERE {_OPEN} ORDER BY seq").fetchall()
        return [_batch(row) for row in rows]

    def count_look(self, batch_id: str) -> StoredBatch | None:
        """Count a look at this batch and return it as it was before."""
        with self._db.write() as connection:
            row = connection.execute("SELECT * FROM batch WHERE id = ?", (batch_id,)).fetchone()
            if row is None:
                return None
            connection.execute(
                f"UPDATE batch SET polls = polls + 1, end_polls = end_polls + (NOT ({_OPEN})) WHERE id = ?",
                (batch_id,),
            )
        return _batch(row)

    def fail(self, batch: StoredBatch, error: LineError) -> bool:
        """``validating -> failed``: nothing ran."""
        data = [{"code": error.code, "message": error.message, "param": error.param, "line": error.line}]
        return self._move(
            batch,
            ("validating",),
            status="failed",
            failed_at=int(time.time()),
            errors=json.dumps({"object": "list", "data": data}),
        )

    def begin(self, batch: StoredBatch, *, total: int, model: str | None) -> bool:
        """``validating -> in_progress``."""
        return self._move(
            batch,
            ("validating",),
            status="in_progress",
            in_progress_at=int(time.time()),
            total=total,
            model=model or batch.model,
        )

    def hold(self, batch: StoredBatch, until: float) -> bool:
        """Let a running batch wait until then, once; one that was released does not wait."""
        with self._db.write() as connection:
            return (
                connection.execute(
                    "UPDATE batch SET held = 1, next_at = ?"
                    " WHERE id = ? AND status = 'in_progress' AND held = 0",
                    (until, batch.id),
                ).rowcount
                == 1
            )

    def expire(self, batch: StoredBatch) -> bool:
        """Decide that the rest of a running batch is not executed."""
        return self._move(batch, ("in_progress",), ending="expired")

    def advance(self, connection: sqlite3.Connection, batch: StoredBatch, progress: Progress) -> bool:
        """Record a piece in the caller's transaction; only where the batch is as the piece found it."""
        return (
            connection.execute(
                "UPDATE batch SET rows_done = rows_done + ?, input_offset = ?,"
                " output_bytes = output_bytes + ?, error_bytes = error_bytes + ?,"
                " completed = completed + ?, failed = failed + ?,"
                " input_tokens = input_tokens + ?, output_tokens = output_tokens + ?"
                " WHERE id = ? AND status = ? AND rows_done = ?",
                (
                    progress.rows,
                    progress.input_offset,
                    progress.output_bytes,
                    progress.error_bytes,
                    progress.completed,
                    progress.failed,
                    progress.input_tokens,
                    progress.output_tokens,
                    batch.id,
                    batch.status,
                    batch.rows_done,
                ),
            ).rowcount
            == 1
        )

    def finalize(self, batch: StoredBatch) -> bool:
        """``in_progress -> finalizing``: all rows are dealt with."""
        return self._move(batch, ("in_progress",), status="finalizing", finalizing_at=int(time.time()))

    def finish(
        self,
        connection: sqlite3.Connection,
        batch: StoredBatch,
        *,
        output: str | None,
        errors: str | None,
        lost: int = 0,
    ) -> bool:
        """``finalizing | cancelling -> completed | expired | cancelled``, in the caller's transaction.

        :param lost: answers that are no longer counted.
        """
        status = batch.ending or "completed"
        return (
            connection.execute(
                f"UPDATE batch SET status = ?, {status}_at = ?, output_file_id = ?, error_file_id = ?,"
                " completed = completed - ? WHERE id = ? AND status = ?",
                (status, int(time.time()), output, errors, lost, batch.id, batch.status),
            ).rowcount
            == 1
        )

    def ask_cancel(self, batch: StoredBatch, *, seconds: float) -> bool:
        """``validating | in_progress -> cancelling``, for at least so many seconds."""
        now = time.time()
        return self._move(
            batch,
            ("validating", "in_progress"),
            status="cancelling",
            cancelling_at=int(now),
            ending="cancelled",
            next_at=now + seconds,
        )

    def delete(self, batch: StoredBatch, *, running: bool = False) -> bool:
        """Take a batch that is at rest off the lists; its charges stay.

        :param running: one that still runs too; it goes on, and nobody sees it.
        """
        with self._db.write() as connection:
            statement = f"UPDATE batch SET deleted = 1 WHERE id = ? AND deleted = 0 AND (? OR NOT ({_OPEN}))"
            return connection.execute(statement, (batch.id, running)).rowcount == 1

    def release(self, batch_id: str | None) -> int:
        """End the waits, present and to come, of unfinished batches; return how many those are."""
        with self._db.write() as connection:
            return connection.execute(
                f"UPDATE batch SET next_at = 0, held = 1 WHERE {_OPEN} AND (? IS NULL OR id = ?)",
                (batch_id, batch_id),
            ).rowcount

    def _move(self, batch: StoredBatch, expected: Sequence[str], **columns: Any) -> bool:
        changes = ", ".join(f"{name} = ?" for name in columns)
        marks = ", ".join("?" * len(expected))
        with self._db.write() as connection:
            return (
                connection.execute(
                    f"UPDATE batch SET {changes} WHERE id = ? AND status IN ({marks})",
                    (*columns.values(), batch.id, *expected),
                ).rowcount
                == 1
            )


def _batch(row: sqlite3.Row) -> StoredBatch:
    return StoredBatch(*row)
