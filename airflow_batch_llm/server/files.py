"""Stored files: rows in SQLite, bytes in one folder. A file is there whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_batch_llm.server.database import Database

#: Files live 30 days unless asked otherwise (OpenAI's rule for the purposes batch and batch_output).
DEFAULT_LIFE = 30 * 86_400
_COLUMNS = "seq, id, filename, purpose, bytes, lines, created_at, expires_at, dialect, extra"
_UNFINISHED = (
    "SELECT input_file_id FROM batch"
    " WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
)
_LIVES = "deleted = 0 AND (expires_at IS NULL OR expires_at > ?)"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file as clients see it. Times are unix seconds; ``lines`` is counted on upload, 0 for results.

    ``dialect`` is the protocol it came over, ``extra`` what that protocol keeps with it (JSON text).
    """

    seq: int
    id: str
    filename: str
    purpose: str
    bytes: int
    lines: int
    created_at: int
    expires_at: int | None
    dialect: str = "openai"
    extra: str | None = None

    @property
    def kept(self) -> dict[str, Any]:
        """Return what the protocol keeps with it."""
        return json.loads(self.extra) if self.extra else {}


class FileStore:
    """Files by id. Bytes lie in ``<folder>/files/<id>``, unfinished ones in ``<folder>/tmp``."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._db = database
        self._folder = folder / "files"
        self._temporary = folder / "tmp"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._temporary.mkdir(parents=True, exist_ok=True)

    def new_temporary(self) -> Path:
        """Return a fresh path to write an upload to."""
        return self._temporary / f"upload-{secrets.token_hex(12)}"

    def path(self, file_id: str) -> Path:
        """Return where the bytes of a file are (they may be gone)."""
        return self._folder / file_id

    def add(
        self,
        temporary: Path,
        *,
        filename: str,
        purpose: str,
        lines: int,
        life: int | None,
        file_id: str | None = None,
        dialect: str = "openai",
        extra: Mapping[str, Any] | None = None,
    ) -> StoredFile:
        """Keep an upload: record it and rename it into place.

        :param life: seconds until the file expires; None: never.
        :param file_id: None for an id such as OpenAI's.
        :raises FileExistsError: a file has, or had, this id.
        """
        file_id = file_id or "file-" + secrets.token_hex(12)
        size = temporary.stat().st_size
        with self._db.write() as connection:
            try:
                insert_file(
                    connection,
                    file_id,
                    filename=filename,
                    purpose=purpose,
                    size=size,
                    lines=lines,
                    life=life,
                    dialect=dialect,
                    extra=extra,
                )
            except sqlite3.IntegrityError as e:
                raise FileExistsError(file_id) from e
            # Within the transaction: bytes of which no row tells are removed at the next start.
            os.replace(temporary, self.path(file_id))
        found = self.get(file_id)
        assert found is not None
        return found

    def get(self, file_id: str) -> StoredFile | None:
        """Return the file unless it is unknown, deleted or expired."""
        row = (
            self._db.connection()
            .execute(
                f"SELECT {_COLUMNS} FROM file WHERE id = ? AND {_LIVES}",
                (file_id, int(time.time())),
            )
            .fetchone()
        )
        return StoredFile(*row) if row else None

    def page(
        self,
        *,
        purpose: str | None,
        after: str | None,
        limit: int,
        newest_first: bool,
        dialect: str = "openai",
    ) -> tuple[Sequence[StoredFile], bool]:
        """Return one page of a protocol's files and whether more follow.

        :raises KeyError: ``after`` is unknown.
        """
        where = [_LIVES, "dialect = ?"]
        values: list[object] = [int(time.time()), dialect]
        if purpose is not None:
            where.append("purpose = ?")
            values.append(purpose)
        if after is not None:
            row = self._db.connection().execute("SELECT seq FROM file WHERE id = ?", (after,)).fetchone()
            if row is None:
                raise KeyError(after)
            where.append("seq < ?" if newest_first else "seq > ?")
            values.append(row["seq"])
        rows = (
            self._db.connection()
            .execute(
                f"SELECT {_COLUMNS} FROM file WHERE {' AND '.join(where)} "
                f"ORDER BY seq {'DESC' if newest_first else 'ASC'} LIMIT ?",
                (*values, limit + 1),
            )
            .fetchall()
        )
        return [StoredFile(*row) for row in rows[:limit]], len(rows) > limit

    def delete(self, file_id: str) -> bool:
        """Delete a file and say whether it was there. A running batch keeps the bytes of its input."""
        if self.get(file_id) is None:
            return False
        with self._db.write() as connection:
            changed = connection.execute(
                "UPDATE file SET deleted = 1 WHERE id = ? AND deleted = 0", (file_id,)
            ).rowcount
        self.sweep(file_id)
        return changed == 1

    def sweep(self, file_id: str) -> None:
        """Remove the bytes of a deleted or expired file that no unfinished batch reads."""
        needed = (
            self._db.connection()
            .execute(f"SELECT 1 FROM ({_UNFINISHED}) WHERE input_file_id = ? LIMIT 1", (file_id,))
            .fetchone()
        )
        if needed is None and self.get(file_id) is None:
            self.path(file_id).unlink(missing_ok=True)

    def sweep_all(self) -> None:
        """After a start: remove what a killed process left half done, and expired files."""
        for leftover in self._temporary.iterdir():
            leftover.unlink(missing_ok=True)
        for stored in self._folder.iterdir():
            self.sweep(stored.name)


def insert_file(
    connection: sqlite3.Connection,
    file_id: str,
    *,
    filename: str,
    purpose: str,
    size: int,
    lines: int,
    life: int | None,
    dialect: str = "openai",
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Record a file in the caller's transaction. :raises sqlite3.IntegrityError: the id is taken."""
    now = int(time.time())
    connection.execute(
        "INSERT INTO file (id, filename, purpose, bytes, lines, created_at, expires_at, dialect, extra)"
        " VALUES (?,?,?,?,?,?,?,?,?)",
        (
            file_id,
            filename,
            purpose,
            size,
            lines,
            now,
            None if life is None else now + life,
            dialect,
            None if extra is None else json.dumps(extra),
        ),
    )
