"""The ticket desk that the tests in this folder run: a warehouse, a server, and the group in a DAG."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from airflow_batch_llm import RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group
from airflow_batch_llm.core.model import DeadLetter, Job, JobKey, LetterState
from airflow_batch_llm.hooks.state import open_ledger
from tests.local_server import LocalServer

if TYPE_CHECKING:
    from airflow_batch_llm.core.ledger_port import Ledger
    from tests.integration.tasks.runs import Run

#: What the group in :func:`desk_dag` holds, in order.
TASKS = ("label.submit", "label.reconcile", "label.retry", "label.dead_letter")
SUBMIT, RECONCILE, RETRY, DEAD_LETTER = TASKS

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["billing", "bug", "other"]}},
    "required": ["label"],
    "additionalProperties": False,
}


def desk_dag(dag_id: str, **values: Any) -> DAG:
    """Return a DAG with one group ``label`` over the warehouse's tickets; ``values`` go to the group.

    A failed task is tried once more, at once.
    """
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        batch_llm_group(**{**group_values(), **values})
    return dag


def group_values() -> dict[str, Any]:
    """Return the arguments of the group as :func:`desk_dag` makes it."""
    return {
        "group_id": "label",
        "llm_conn_id": "llm_batch",
        "source": SqlSource("warehouse", "SELECT id, body FROM tickets ORDER BY id", key=["id"]),
        "prompt": RowPrompt("Label this ticket: {{ row.body }}"),
        "output_schema": SCHEMA,
        "max_tokens": 100,
        "sink": SqlSink("warehouse", "labels", key=["id"], create=True),
        "row_retry": RowRetry(max_rounds=1),
        "task_args": {"retries": 1, "retry_delay": timedelta(0)},
    }


@dataclass(frozen=True)
class Warehouse:
    """The SQLite file with table ``tickets``."""

    path: Path

    def __post_init__(self) -> None:
        self.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, body TEXT)")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        db = sqlite3.connect(self.path, isolation_level=None)
        try:
            return db.execute(statement, parameters).fetchall()
        finally:
            db.close()

    def fill(self, bodies: Mapping[int, str]) -> None:
        """Add tickets: id -> text."""
        with sqlite3.connect(self.path) as db:
            db.executemany("INSERT INTO tickets VALUES (?, ?)", list(bodies.items()))
        db.close()

    def labels(self) -> dict[int, Any]:
        """Return id -> label of every answer that was landed; empty where no table was made."""
        if not self.execute("SELECT 1 FROM sqlite_master WHERE name = 'labels'"):
            return {}
        return dict(self.execute("SELECT id, label FROM labels"))


class Traffic:
    """What the server saw since this was made, or since :meth:`forget`."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._calls = self._charges = 0
        self.forget()

    def forget(self) -> None:
        """Begin again."""
        self._calls, self._charges = len(self._server.requests()), len(self._server.charges())

    def calls(self, method: str, path: str) -> list[dict[str, Any]]:
        """Return the calls whose path begins with ``path`` below ``/v1``."""
        return [
            call
            for call in self._server.requests()[self._calls :]
            if call["method"] == method and call["path"].startswith(f"/v1{path}")
        ]

    @property
    def uploads(self) -> int:
        """Files sent."""
        return len(self.calls("POST", "/files"))

    @property
    def creates(self) -> int:
        """Create calls."""
        return len([call for call in self.calls("POST", "/batches") if call["path"] == "/v1/batches"])

    @property
    def charges(self) -> list[dict[str, Any]]:
        """Requests that the server executed."""
        return self._server.charges()[self._charges :]

    @property
    def sent(self) -> int:
        """How many requests the server executed."""
        return len(self.charges)

    @property
    def anything(self) -> bool:
        """Whether any file was sent or any batch asked for."""
        return bool(self.uploads or self.creates)


@dataclass(frozen=True)
class Books:
    """What the ledger says about the job of a run."""

    ledger: Ledger
    job_id: str

    @classmethod
    def of(cls, run: Run, submit_task_id: str = SUBMIT, map_index: int = -1) -> Books:
        """Open the ledger that is configured."""
        ledger = open_ledger()
        key = JobKey(ledger.namespace(), run.dag_id, run.run_id, submit_task_id, map_index)
        return cls(ledger, key.job_id)

    @property
    def job(self) -> Job:
        """The job's row."""
        found = self.ledger.get_job(self.job_id)
        assert found is not None
        return found

    def letters(self, *states: LetterState) -> list[DeadLetter]:
        """Return the dead letters in these states, all without any."""
        return list(self.ledger.dead_letters(self.job_id, states=states or None))

    def open_codes(self) -> dict[str, str]:
        """custom_id -> code of the open dead letters."""
        return {letter.custom_id: letter.code for letter in self.letters(LetterState.OPEN)}
