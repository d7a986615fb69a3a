"""The server's SQLite file: its schema, and one connection a thread.

WAL mode, so that readers never wait; every change is one short BEGIN IMMEDIATE transaction. With
``synchronous=NORMAL`` a killed process loses nothing that was committed (only a machine that loses
power may lose the last transactions, which is good enough for a local server).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    lines INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    deleted INTEGER NOT NULL DEFAULT 0,
    dialect TEXT NOT NULL DEFAULT 'openai',
    extra TEXT
);
CREATE TABLE IF NOT EXISTS batch (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    dialect TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT,
    output_seconds INTEGER,
    scenario INTEGER NOT NULL,
    fault TEXT,
    status TEXT NOT NULL,
    model TEXT,
    errors TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER, finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER,
    expired_at INTEGER, cancelling_at INTEGER, cancelled_at INTEGER,
    next_at REAL NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    ending TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    rows_done INTEGER NOT NULL DEFAULT 0,
    input_offset INTEGER NOT NULL DEFAULT 0,
    output_bytes INTEGER NOT NULL DEFAULT 0,
    error_bytes INTEGER NOT NULL DEFAULT 0,
    output_file_id TEXT,
    error_file_id TEXT,
    polls INTEGER NOT NULL DEFAULT 0,
    end_polls INTEGER NOT NULL DEFAULT 0,
    extra TEXT,
    deleted INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS batch_open ON batch (seq)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE TABLE IF NOT EXISTS charge (
    id INTEGER PRIMARY KEY,
    batch INTEGER NOT NULL,
    line INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    body_sha256 BLOB NOT NULL,
    model TEXT NOT NULL,
    status INTEGER NOT NULL,
    fault TEXT,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    charged INTEGER NOT NULL,
    at REAL NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS charge_once ON charge (batch, line);
CREATE TABLE IF NOT EXISTS request (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    status INTEGER NOT NULL,
    request_id TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS scenario (generation INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counter (
    generation INTEGER NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL,
    PRIMARY KEY (generation, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS row_counter (
    generation INTEGER NOT NULL, rule INTEGER NOT NULL, custom_id TEXT NOT NULL, n INTEGER NOT NULL,
    PRIMARY KEY (generation, rule, custom_id)
) WITHOUT ROWID;
"""

#: Columns that the first version did not have.
_ADDED = {
    "batch": {"extra": "TEXT", "deleted": "INTEGER NOT NULL DEFAULT 0"},
    "file": {"dialect": "TEXT NOT NULL DEFAULT 'openai'", "extra": "TEXT"},
}


class Database:
    """One SQLite file, opened once by every thread that asks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        connection = self.connection()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)
        self._add_columns(connection)

    @staticmethod
    def _add_columns(connection: sqlite3.Connection) -> None:
        """Bring a folder of an earlier version up to date."""
        for table, columns in _ADDED.items():
            known = {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
            for name, kind in columns.items():
                if name not in known:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def connection(self) -> sqlite3.Connection:
        """Return this thread's connection, for reading."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self._path, timeout=60, isolation_level=None)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA synchronous = NORMAL")
            found.execute("PRAGMA cache_size = -4096")
            self._local.connection = found
        return found

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that alone may write; it is committed when the block ends well."""
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
