"""Tickets of every night into a table; some arrive days late. ``WORKLOAD_TICKETS=200000``: a large desk."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_batch_llm import BatchLLMOperator, Reuse, RowPrompt, RowRetry, SqlSink, SqlSource
from tests.integration.tasks.desk import SCHEMA, Traffic, Warehouse
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

TICKETS = int(os.environ.get("WORKLOAD_TICKETS", "50000"))
LATE = 300
FIRST = datetime(2026, 3, 1, tzinfo=UTC)

with DAG("every_ticket", schedule=None, start_date=FIRST) as dag:
    BatchLLMOperator(
        task_id="label",
        llm_conn_id="llm_batch",
        source=SqlSource(
            "warehouse",
            "SELECT id, body, updated_at FROM inbox WHERE updated_at >= :since AND updated_at < :until",
            parameters={"since": "{{ data_interval_start | ts }}", "until": "{{ data_interval_end | ts }}"},
            key="id",
            lookback=timedelta(days=2),
        ),
        prompt=RowPrompt("Label this ticket: {{ row.body }}"),
        model="gpt-5-mini",
        output_schema=SCHEMA,
        max_tokens=50,
        carry=["updated_at"],
        reuse=Reuse(scope="task"),
        row_retry=RowRetry(max_rounds=2),
        sink=SqlSink("warehouse", "ticket_labels", key="id", version_column="updated_at", create=True),
    )


def fill(warehouse: Warehouse, numbers: range, moment: datetime) -> None:
    with sqlite3.connect(warehouse.path) as db:
        db.executemany(
            "INSERT INTO inbox VALUES (?, ?, ?)",
            (
                (n, f"My invoice {n} was charged twice, please refund it.", moment.isoformat())
                for n in numbers
            ),
        )
    db.close()


def test_late_tickets_are_labelled_the_next_night_and_nothing_is_paid_twice(
    runs: Runs, warehouse: Warehouse, server: LocalServer, traffic: Traffic
) -> None:
    server.set_scenario({"rows": [{"match": {"fraction": 0.01}, "fault": "server_error", "times": 1}]})
    warehouse.execute("CREATE TABLE inbox (id INTEGER PRIMARY KEY, body TEXT, updated_at TEXT)")
    fill(warehouse, range(TICKETS), FIRST + timedelta(hours=9))
    first = runs.run(dag, interval=(FIRST, FIRST + timedelta(days=1)))
    assert first.state == "success"
    assert warehouse.execute("SELECT COUNT(*), COUNT(label) FROM ticket_labels") == [(TICKETS, TICKETS)]
    assert server.summary()["answered"] == TICKETS

    # The next night: new ones, and some of the first day that only arrive now.
    fill(warehouse, range(TICKETS, TICKETS + LATE), FIRST + timedelta(hours=20))
    fill(warehouse, range(TICKETS + LATE, TICKETS + 2 * LATE), FIRST + timedelta(days=1, hours=3))
    second = runs.run(dag, interval=(FIRST + timedelta(days=1), FIRST + timedelta(days=2)))
    assert second.state == "success"
    summary = server.summary()
    assert summary["answered"] == TICKETS + 2 * LATE and summary["answered_twice"] == 0
    labelled = warehouse.execute("SELECT COUNT(*), MIN(id), MAX(id) FROM ticket_labels")
    assert labelled == [(TICKETS + 2 * LATE, 0, TICKETS + 2 * LATE - 1)]
