"""The request log: method, path, status and request id of every API call. Never a body, never a key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from airflow_batch_llm.server.database import Database

_PAGE = 2_000


class RequestLog:
    """Appends calls and reads them in pages."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, method: str, path: str, status: int, request_id: str) -> None:
        """Log a call. ``status`` 0: the connection was closed without a reply."""
        with self._db.write() as connection:
            connection.execute(
                "INSERT INTO request (at, method, path, status, request_id) VALUES (?,?,?,?,?)",
                (time.time(), method, path, status, request_id),
            )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the calls in the order of their replies."""
        last = 0
        while True:
            page = (
                self._db.connection()
                .execute(
                    "SELECT id, at, method, path, status, request_id FROM request"
                    f" WHERE id > ? ORDER BY id LIMIT {_PAGE}",
                    (last,),
                )
                .fetchall()
            )
            if not page:
                return
            yield from (dict(row) for row in page)
            last = page[-1]["id"]
