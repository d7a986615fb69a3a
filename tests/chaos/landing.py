"""The table that answers are landed in: no key of its own, so that whatever is landed twice is seen."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_batch_llm.core.drafts import Answer

_TABLE = "CREATE TABLE IF NOT EXISTS landed (job_id TEXT, revision INTEGER, custom_id TEXT, output TEXT)"


class LandingTable:
    """A table in an SQLite file. :param path: the file; made when it is first used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def replace(
        self, job_id: str, revision: int, answers: Sequence[Answer], half_way: Callable[[], None]
    ) -> int:
        """Put these answers in place of what the job landed up to this revision; returns how many.

        :param half_way: called when half of them are in, within the transaction.
        """
        with self._open() as connection:
            newer = "SELECT count(*) FROM landed WHERE job_id = ? AND revision > ?"
            if connection.execute(newer, (job_id, revision)).fetchone()[0]:
                return 0
            connection.execute("DELETE FROM landed WHERE job_id = ?", (job_id,))
            for number, answer in enumerate(answers):
                if number == len(answers) // 2:
                    half_way()
                values = (job_id, revision, answer.custom_id, json.dumps(answer.output))
                connection.execute("INSERT INTO landed VALUES (?, ?, ?, ?)", values)
        return len(answers)

    def rows(self, job_id: str) -> list[tuple[str, Any]]:
        """Return (custom_id, output) of every row of the job."""
        with self._open() as connection:
            found = connection.execute("SELECT custom_id, output FROM landed WHERE job_id = ?", (job_id,))
            return [(custom_id, json.loads(output)) for custom_id, output in found]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            connection.execute(_TABLE)
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()
