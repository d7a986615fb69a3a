"""The charge log: one row for every request that was executed, with what it would have cost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.server.database import Database

_PAGE = 2_000
_INSERT = (
    "INSERT INTO charge (batch, line, custom_id, body_sha256, model, status, fault, input_tokens,"
    " output_tokens, charged, at) VALUES (?,?,?,?,?,?,?,?,?,?,?)"
)
_COLUMNS = (
    "charge.id, batch.id AS batch_id, line, custom_id, hex(body_sha256) AS body_sha256, charge.model,"
    " charge.status, charge.fault, charge.input_tokens, charge.output_tokens, charged, at"
)


@dataclass(frozen=True, slots=True)
class Charge:
    """One executed request. ``status`` 0: nothing was returned; ``fault`` names what a scenario did.

    ``charged`` is true for every answer that came back with 200, also a truncated or refused one.
    """

    batch: int
    line: int
    custom_id: str
    body_sha256: bytes
    model: str
    status: int
    fault: str | None
    input_tokens: int
    output_tokens: int
    charged: bool


def insert_charges(connection: sqlite3.Connection, charges: Iterable[Charge], at: float) -> None:
    """Log executed requests in the caller's transaction.

    :raises sqlite3.IntegrityError: a line of this batch is logged already (the engine never does that).
    """
    connection.executemany(
        _INSERT,
        (
            (
                c.batch,
                c.line,
                c.custom_id,
                c.body_sha256,
                c.model,
                c.status,
                c.fault,
                c.input_tokens,
                c.output_tokens,
                c.charged,
                at,
            )
            for c in charges
        ),
    )


def withhold_charges(connection: sqlite3.Connection, batch: int) -> None:
    """Note that nobody gets this batch's answers, in the caller's transaction: they are not charged."""
    connection.execute(
        "UPDATE charge SET charged = 0, fault = 'withheld' WHERE batch = ? AND charged", (batch,)
    )


class ChargeLog:
    """Reads the charge log, in pages and summed up."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def rows(self, batch_id: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield every executed request in the order of execution, or those of one batch."""
        last = 0
        where, values = ("AND batch.id = ?", (batch_id,)) if batch_id else ("", ())
        while True:
            page = (
                self._db.connection()
                .execute(
                    f"SELECT {_COLUMNS} FROM charge JOIN batch ON batch.seq = charge.batch "
                    f"WHERE charge.id > ? {where} ORDER BY charge.id LIMIT {_PAGE}",
                    (last, *values),
                )
                .fetchall()
            )
            if not page:
                return
            for row in page:
                entry = dict(row)
                entry["body_sha256"] = entry["body_sha256"].lower()
                entry["charged"] = bool(entry["charged"])
                yield entry
            last = page[-1]["id"]

    def summary(self) -> dict[str, int]:
        """Sum up: what was executed and charged, and what was paid for more than once.

        ``charged_twice``: distinct (custom_id, body) charged more than once, whatever the answers were.
        ``answered_twice``: those with more than one answer without a fault.
        ``sent_after_answer``: executions of a (custom_id, body) that had such an answer already.
        """
        connection = self._db.connection()
        sums = connection.execute(
            "SELECT count(*) AS executed, coalesce(sum(charged), 0) AS charged,"
            " coalesce(sum(charged AND fault IS NULL), 0) AS answered,"
            " coalesce(sum(CASE WHEN charged THEN input_tokens END), 0) AS input_tokens,"
            " coalesce(sum(CASE WHEN charged THEN output_tokens END), 0) AS output_tokens FROM charge"
        ).fetchone()
        # A pair's row ids are in the order of execution: rows after its first good answer were sent in vain.
        pairs = connection.execute(
            "WITH pair AS (SELECT sum(charged) AS charged, sum(charged AND fault IS NULL) AS answered,"
            " min(CASE WHEN charged AND fault IS NULL THEN id END) AS first, custom_id, body_sha256"
            " FROM charge GROUP BY custom_id, body_sha256 HAVING count(*) > 1)"
            " SELECT coalesce(sum(charged > 1), 0) AS charged_twice,"
            " coalesce(sum(answered > 1), 0) AS answered_twice,"
            " (SELECT count(*) FROM charge JOIN pair USING (custom_id, body_sha256) WHERE id > first)"
            " AS sent_after_answer FROM pair"
        ).fetchone()
        return {**dict(sums), **dict(pairs)}
