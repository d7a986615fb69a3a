"""The measured process of ``large_job``: one DAG run with ``dag.test()``, timed from inside."""

from __future__ import annotations

import functools
import inspect
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

import airflow_batch_llm.core.engine as engine_steps
import airflow_batch_llm.core.settle as settle_steps
import airflow_batch_llm.core.submit as submit_steps
from airflow_batch_llm import RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group
from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.hooks.state import open_ledger
from airflow_batch_llm.sinks import sql as sql_sink
from airflow_batch_llm.triggers.batches import BatchLLMTrigger
from benchmarks.processes import peak_mb

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["billing", "bug", "other"]},
        "summary": {"type": "string", "maxLength": 200},
    },
    "required": ["label", "summary"],
    "additionalProperties": False,
}


class Stopwatch:
    """Seconds by phase; what runs inside another phase counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stack: list[float] = []

    def times(self, owner: Any, name: str, phase: str) -> None:
        """Replace a function or method of ``owner`` by one that is timed as ``phase``."""
        self.seconds[phase] += 0.0
        setattr(owner, name, self._timed(getattr(owner, name), phase))

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def timed_events(*args: Any, **kwargs: Any) -> Any:
                began = self._begin()
                try:
                    async for event in function(*args, **kwargs):
                        yield event
                finally:
                    self._end(phase, began)

            return timed_events
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_call(*args: Any, **kwargs: Any) -> Any:
                began = self._begin()
                try:
                    return await function(*args, **kwargs)
                finally:
                    self._end(phase, began)

            return timed_call

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self._begin()
            try:
                return function(*args, **kwargs)
            finally:
                self._end(phase, began)

        return timed

    def _begin(self) -> float:
        self._stack.append(0.0)
        return time.perf_counter()

    def _end(self, phase: str, began: float) -> None:
        spent = time.perf_counter() - began
        self.seconds[phase] += spent - self._stack.pop()
        if self._stack:
            self._stack[-1] += spent


def make_dag() -> DAG:
    """Return the job's DAG."""
    with DAG("large_job", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        batch_llm_group(
            group_id="label",
            llm_conn_id="llm_batch",
            source=SqlSource("warehouse", "SELECT id, body FROM tickets ORDER BY id", key=["id"]),
            prompt=RowPrompt("Label this ticket.\n\n{{ row.body }}"),
            output_schema=SCHEMA,
            max_tokens=200,
            row_retry=RowRetry(max_rounds=2),
            sink=SqlSink("warehouse", "answers", key=["id"], create=True),
            max_dead_letter_ratio=0.01,
            task_args={"retries": 0},
        )
    return dag


def know(dag: DAG) -> None:
    """Write the DAG into the metadata database, as ``dag.test()`` needs it."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="bench"))
        session.flush()
        lazy = LazyDeserializedDAG.from_dag(dag)
        SerializedDAG.bulk_write_to_db("bench", None, [lazy], session=session)
        SerializedDagModel.write_dag(lazy, bundle_name="bench", session=session)


def main() -> None:
    """Run the DAG and write what was measured to the file that BATCH_LLM_BENCH_FACTS names."""
    watch = Stopwatch()
    watch.times(engine_steps, "stage", "stage (read, render, shard, write)")
    watch.times(submit_steps, "_upload", "upload (encode, send)")
    watch.times(BatchLLMTrigger, "run", "server run (waiting)")
    watch.times(engine_steps, "reconcile_batch", "reconcile (download, judge)")
    watch.times(engine_steps, "plan_next_round", "plan retry rounds")
    watch.times(engine_steps, "settle", "settle (account, dead letters)")
    watch.times(settle_steps, "publish", "publish (results)")
    watch.times(sql_sink.SqlTableSink, "land", "sink (read results, upsert)")
    dag = make_dag()
    know(dag)
    before = peak_mb()
    run = dag.test()
    ledger = open_ledger()
    key = JobKey(ledger.namespace(), "large_job", run.run_id, "label.submit")
    job = ledger.get_job(key.job_id)
    assert job is not None
    facts = {
        "state": str(run.state),
        "counts": dict(job.counts),
        "letters": sum(ledger.count_dead_letters(job.job_id).values()),
        "batches": [batch.requests for batch in ledger.batches(job.job_id)],
        "phases": watch.seconds,
        "task_mb_before": before,
        "task_mb": peak_mb(),
    }
    Path(os.environ["BATCH_LLM_BENCH_FACTS"]).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
