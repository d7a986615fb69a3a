"""``batch_llm_group`` in a real DAG run (``dag.test()``): real Airflow, real HTTP, real databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_batch_llm import RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group
from tests.local_server import LocalServer

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["billing", "bug", "other"]}},
    "required": ["label"],
    "additionalProperties": False,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    path = tmp_path / "warehouse.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, body TEXT)")
        db.executemany("INSERT INTO tickets VALUES (?, ?)", [(n, f"ticket number {n}") for n in range(1, 21)])
    return path


@pytest.fixture(autouse=True)
def surroundings(
    monkeypatch: pytest.MonkeyPatch, server: LocalServer, warehouse: Path, tmp_path: Path, airflow_home: Path
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_LLM_BATCH",
        f'{{"conn_type": "batch_llm", "host": "{server.url}", "password": "{server.api_key}",'
        ' "extra": {"dialect": "generic", "model": "m-1"}}',
    )
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f'{{"conn_type": "sqlite", "host": "{warehouse}"}}')
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY", "0")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN", "0.05")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{tmp_path}/ws")


def make_dag(dag_id: str, **values: Any) -> DAG:
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        batch_llm_group(
            **{
                "group_id": "label",
                "llm_conn_id": "llm_batch",
                "source": SqlSource("warehouse", "SELECT id, body FROM tickets", key=["id"]),
                "prompt": RowPrompt("Label this ticket: {{ row.body }}"),
                "output_schema": SCHEMA,
                "max_tokens": 100,
                "sink": SqlSink("warehouse", "labels", key=["id"], create=True),
                "row_retry": RowRetry(max_rounds=2),
                "task_args": {"retries": 0},
                **values,
            }
        )
    return dag


def labels(warehouse: Path) -> dict[int, str]:
    with sqlite3.connect(warehouse) as db:
        return dict(db.execute("SELECT id, label FROM labels").fetchall())


@pytest.mark.parametrize("deferrable", [True, False])
def test_rows_become_labels(
    sync_dag: Callable[[DAG], DAG], server: LocalServer, warehouse: Path, deferrable: bool
) -> None:
    server.set_scenario(
        {
            "rows": [{"match": {"contains": "number 3"}, "fault": "server_error", "times": 1}],
            "pace": {"statuses": ["validating", "in_progress"]},
        }
    )
    run = sync_dag(make_dag(f"labels_{deferrable}", deferrable=deferrable)).test()
    assert str(run.state) == "success"
    found = labels(warehouse)
    assert sorted(found) == list(range(1, 21))
    assert set(found.values()) <= {"billing", "bug", "other"}
    assert server.summary()["answered_twice"] == 0
    assert server.summary()["charged"] == 20
