"""The whole group with its books and its warehouse in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.pool import NullPool

from airflow_batch_llm import SqlSink, SqlSource
from airflow_batch_llm.storage.migrate import migrate
from tests.integration.tasks.desk import DEAD_LETTER, SUBMIT, TASKS, Books, Traffic, desk_dag
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer


def _connection(url: URL) -> str:
    fields = {
        "conn_type": "postgres",
        "host": url.host or url.query["host"],
        "login": url.username,
        "password": url.password or "",
        "schema": url.database,
        "port": url.port,
    }
    return json.dumps(fields)


def _rows(url: URL, statement: str) -> list[Any]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture
def postgres(postgres_url: Callable[[], URL], monkeypatch: pytest.MonkeyPatch) -> tuple[URL, URL]:
    """A ledger that is not migrated yet and a warehouse with eight tickets, as connections."""
    ledger, warehouse = postgres_url(), postgres_url()
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", _connection(ledger))
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__LEDGER_CONN_ID", "ledger")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", _connection(warehouse))
    _rows(warehouse, "CREATE TABLE tickets (id BIGINT PRIMARY KEY, body TEXT NOT NULL)")
    _rows(
        warehouse, "INSERT INTO tickets SELECT n, 'ticket number ' || n || '.' FROM generate_series(1, 8) n"
    )
    return ledger, warehouse


def test_a_group_keeps_its_books_in_postgresql(
    runs: Runs, traffic: Traffic, server: LocalServer, postgres: tuple[URL, URL]
) -> None:
    ledger, warehouse = postgres
    server.set_scenario(
        {
            "pace": {"statuses": ["in_progress"]},
            "rows": [
                {"match": {"contains": "number 2."}, "fault": "server_error", "times": 1},
                {"match": {"contains": "number 5."}, "fault": "bad_request", "code": "invalid_value"},
            ],
        }
    )
    dag = desk_dag(
        "postgres",
        source=SqlSource(
            "warehouse",
            "SELECT id, body FROM tickets WHERE id >= %(least)s",
            parameters={"least": "1"},
            key=["id"],
        ),
        sink=SqlSink("warehouse", "labels", key=["id"], create=True),
        max_dead_letter_ratio=0.2,
    )

    refused = runs.run(dag)
    assert "BLLM-003" in str(runs.error_of(SUBMIT)) and "batch-llm db migrate" in str(runs.error_of(SUBMIT))
    assert runs.tries(refused)[SUBMIT] == 1 and not traffic.anything

    migrate(create_engine(ledger, poolclass=NullPool))
    run = runs.run(dag)
    assert run.state == "success"
    assert _rows(warehouse, "SELECT id FROM labels ORDER BY id") == [(n,) for n in (1, 2, 3, 4, 6, 7, 8)]
    assert _rows(ledger, "SELECT custom_id, code, state FROM batch_llm_dead_letter") == [
        ("5", "invalid_value", "open")
    ]
    assert runs.xcom(run, DEAD_LETTER)["counts"]["answered"] == 7
    assert (traffic.creates, traffic.sent) == (2, 9)

    traffic.forget()
    _rows(warehouse, "UPDATE tickets SET body = 'another text' WHERE id = 7")
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert (traffic.creates, traffic.sent) == (1, 1)
    assert Books.of(run).open_codes() == {"5": "invalid_value"}
