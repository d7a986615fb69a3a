"""A disk-backed map for one pass over a job's rows, so that memory does not grow with the job."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType


class DiskRowIndex:
    """Text key -> (number, number, bytes), in a temporary SQLite file that is gone when closed."""

    def __init__(self) -> None:
        handle, self._path = tempfile.mkstemp(prefix="batch-llm-index-", suffix=".db")
        os.close(handle)
        self._db = sqlite3.connect(self._path, isolation_level=None)
        self._db.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-32768;"
            # Sorting for an index goes to a file as well: in memory it would grow with the job.
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=FILE;"
            "CREATE TABLE rows (key BLOB PRIMARY KEY, a INTEGER NOT NULL, b INTEGER NOT NULL,"
            " data BLOB) WITHOUT ROWID;"
        )

    def insert(self, items: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        """Insert ``(key, a, b)`` where the key is new; return those whose key was there, with a as stored.

        Two items with the same key are told apart by (a, b). Each returned item is ``(key, a of the
        refused one, a of the one that stands)``.
        """
        rows = [(key.encode("utf-8"), a, b) for key, a, b in items]
        self._db.execute("BEGIN")
        before = self._db.total_changes
        self._db.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, NULL)", rows)
        inserted = self._db.total_changes - before
        self._db.execute("COMMIT")
        if inserted == len(rows):
            return []
        refused = []
        for (key, a, b), (raw, _, _) in zip(items, rows, strict=True):
            standing = self._db.execute("SELECT a, b FROM rows WHERE key = ?", (raw,)).fetchone()
            if standing != (a, b):
                refused.append((key, a, standing[0]))
        return refused

    def update(self, items: Iterable[tuple[str, int, int]], *, where_a: Sequence[int]) -> None:
        """Set (a, b) of keys whose a is one of ``where_a``; keys that are not there stay out."""
        marks = ",".join(str(int(a)) for a in where_a)
        self._db.execute("BEGIN")
        self._db.executemany(
            f"UPDATE rows SET a = ?, b = ? WHERE key = ? AND a IN ({marks})",
            ((a, b, key.encode("utf-8")) for key, a, b in items),
        )
        self._db.execute("COMMIT")

    def put(self, items: Iterable[tuple[str, int, int, bytes | None]], *, unless_a: int) -> None:
        """Write ``(key, a, b, data)``, over what is there unless that stands at ``unless_a``."""
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO rows VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
            f" a = excluded.a, b = excluded.b, data = excluded.data WHERE rows.a != {int(unless_a)}",
            ((key.encode("utf-8"), a, b, data) for key, a, b, data in items),
        )
        self._db.execute("COMMIT")

    def get(self, key: str) -> tuple[int, int, bytes | None] | None:
        """Return (a, b, data) of a key, None where it is not there."""
        found = self._db.execute(
            "SELECT a, b, data FROM rows WHERE key = ?", (key.encode("utf-8"),)
        ).fetchone()
        return (found[0], found[1], found[2]) if found else None

    def keys(self, *, a: int, b: int | None = None) -> Iterator[str]:
        """Yield the keys that stand at ``a`` (and ``b``)."""
        query, values = "SELECT key FROM rows WHERE a = ?", [a]
        if b is not None:
            # Asked once per batch: without an index each time would read the whole job.
            self._db.execute("CREATE INDEX IF NOT EXISTS by_b ON rows (b, a)")
            query, values = query + " AND b = ?", [a, b]
        for (key,) in self._db.execute(query, values):
            yield key.decode("utf-8")

    def counts(self) -> dict[int, int]:
        """Return a -> number of keys."""
        return dict(self._db.execute("SELECT a, count(*) FROM rows GROUP BY a").fetchall())

    def close(self) -> None:
        """Forget everything and delete the file."""
        self._db.close()
        os.unlink(self._path)

    def __enter__(self) -> DiskRowIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
