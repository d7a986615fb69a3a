"""Jobs of few rows for the tests of what people do in the UI; the rows of a run are in a file of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import DAG, Param, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_batch_llm import BatchLLMOperator, FileSource, RowPrompt, RowRetry, SqlSink, batch_llm_group

#: Where the tests put rows that no run's conf names: one file for each night.
ROWS = Path(os.environ.get("E2E_ROWS", "/nonexistent"))
NIGHTS = ROWS / "nights"


AGAIN: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}
DEFAULTS: dict[str, Any] = {
    "llm_conn_id": "{{ params.conn_id }}",
    "prompt": RowPrompt("{{ row.body }}"),
    "model": "gpt-5-mini",
    "row_retry": RowRetry(max_rounds=0),
    "sink": SqlSink("warehouse", "answers", key=["id"], create=True),
    "max_dead_letter_ratio": 0.5,
    "poll_interval": 1,
}


def job_of_rows(dag: DAG, path: str = "{{ params.rows }}", **arguments: Any) -> None:
    """The group ``job`` in ``dag``: no row is sent again by itself, one row in two may be dead."""
    with dag:
        batch_llm_group(
            group_id="job", source=FileSource(path, key="id"), task_args=AGAIN, **DEFAULTS | arguments
        )


def started_by_hand(dag_id: str) -> DAG:
    """A DAG whose runs name their file of rows."""
    return DAG(
        dag_id,
        schedule=None,
        catchup=False,
        max_active_runs=32,
        max_active_tasks=32,
        params={
            "rows": Param("/nonexistent/rows.jsonl", type="string"),
            "conn_id": Param("llm_stories", type="string"),
        },
    )


def given_time(dag_id: str) -> timedelta:
    """The job_timeout of a DAG, which the tests change as a person would: seconds, in a file."""
    file = ROWS / f"{dag_id}.seconds"
    return timedelta(seconds=int(file.read_text())) if file.exists() else timedelta(days=7)


job_of_rows(kept := started_by_hand("rows_kept"))
job_of_rows(cancelled := started_by_hand("rows_cancelled"), cancel_on_kill=True)
job_of_rows(strict := started_by_hand("rows_strict"), max_dead_letter_ratio=0.0)
job_of_rows(
    judged := started_by_hand("rows_judged"),
    output_schema="answer_of_a_row:Answer",
    sink=SqlSink("warehouse", "words", key=["id"], create=True),
)
job_of_rows(collected := started_by_hand("rows_collected"), job_timeout=given_time("rows_collected"))
job_of_rows(left := started_by_hand("rows_left"), job_timeout=given_time("rows_left"), on_deadline="fail")
job_of_rows(slowly := started_by_hand("rows_looked_at_slowly"), poll_interval=4)

with started_by_hand("rows_one_task"):
    source = FileSource("{{ params.rows }}", key="id")
    BatchLLMOperator(task_id="ask", source=source, cancel_on_kill=True, **AGAIN, **DEFAULTS)

with started_by_hand("rows_of_a_function"):

    @task.batch_llm_rows(key="id", **AGAIN, **DEFAULTS)
    def ask(params: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        for line in Path((params or {})["rows"]).read_text().splitlines():
            yield json.loads(line)

    ask()

nights = DAG(
    "rows_by_night",
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2026, 1, 31, tz="UTC"),
    catchup=False,
    max_active_runs=8,
)
job_of_rows(
    nights,
    f"{NIGHTS}/{{{{ data_interval_start | ds }}}}.jsonl",
    llm_conn_id="llm_stories",
    max_dead_letter_ratio=0.0,
)
