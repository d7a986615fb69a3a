"""The DAG of ``large_job``, and the scales under its tasks: each writes down what its process needed."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

import airflow_batch_llm.core.engine as engine_steps
import airflow_batch_llm.core.settle as settle_steps
import airflow_batch_llm.core.submit as submit_steps
from airflow_batch_llm import FileSource, RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group
from airflow_batch_llm.operators.base import BatchLLMJobOperator
from airflow_batch_llm.sinks import sql as sql_sink
from benchmarks.large_job_names import DAG_ID, FACTS, GROUP_ID, PARQUET, PHASES
from benchmarks.processes import cpu_seconds
from benchmarks.stopwatch import Stopwatch

#: Where the functions are that do the phases.
DONE_BY = (
    (engine_steps, "stage"),
    (submit_steps, "_upload"),
    (engine_steps, "reconcile_batch"),
    (engine_steps, "plan_next_round"),
    (engine_steps, "settle"),
    (settle_steps, "publish"),
    (sql_sink.SqlTableSink, "land"),
)

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["billing", "bug", "other"]},
        "summary": {"type": "string", "maxLength": 200},
    },
    "required": ["label", "summary"],
    "additionalProperties": False,
}


def large_job() -> DAG:
    """Return the DAG. Its tasks are weighed from now on."""
    _put_on_scales()
    with DAG(DAG_ID, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        batch_llm_group(
            group_id=GROUP_ID,
            llm_conn_id="llm_batch",
            source=_source(),
            prompt=RowPrompt("Label this ticket.\n\n{{ row.body }}"),
            output_schema=SCHEMA,
            max_tokens=200,
            row_retry=RowRetry(max_rounds=2),
            sink=SqlSink("warehouse", "answers", key=["id"], create=True),
            max_dead_letter_ratio=0.01,
            task_args={"retries": 0},
        )
    return dag


def _source() -> FileSource | SqlSource:
    if os.environ[PARQUET]:
        return FileSource(os.environ[PARQUET], key=["id"])
    return SqlSource("warehouse", "SELECT id, body FROM tickets ORDER BY id", key=["id"])


def _put_on_scales() -> None:
    watch = Stopwatch()
    for phase, (owner, name) in zip(PHASES, DONE_BY, strict=True):
        watch.times(owner, name, phase)
    for name in ("execute", "resume_execution"):
        setattr(BatchLLMJobOperator, name, _written_down(getattr(BatchLLMJobOperator, name), watch))


def _written_down(function: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(self: BatchLLMJobOperator, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        finally:
            watch.weigh()
            found = {
                "task": self.task_id.removeprefix(f"{GROUP_ID}."),
                "seconds": watch.seconds,
                "peaks": watch.peaks,
                "cpu": cpu_seconds(),
            }
            Path(os.environ[FACTS], f"{os.getpid()}.json").write_text(json.dumps(found))

    return run
