"""The measured process of ``large_job``: one DAG run with ``dag.test()``, timed and weighed from inside."""

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
from airflow_batch_llm import FileSource, RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group
from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.hooks.state import open_ledger
from airflow_batch_llm.sinks import sql as sql_sink
from airflow_batch_llm.triggers.batches import BatchLLMTrigger
from benchmarks.processes import cpu_seconds, forget_peak, peak_mb

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["billing", "bug", "other"]},
        "summary": {"type": "string", "maxLength": 200},
    },
    "required": ["label", "summary"],
    "additionalProperties": False,
}


#: What is none of the phases: Airflow around them.
OTHER = "other"


class Stopwatch:
    """Seconds and VmHWM by phase; what runs inside another phase counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.peaks: dict[str, float] = defaultdict(float)
        self._stack: list[tuple[str, float]] = []

    def times(self, owner: Any, name: str, phase: str) -> None:
        """Replace a function or method of ``owner`` by one that is timed as ``phase``."""
        self.seconds[phase] += 0.0
        setattr(owner, name, self._timed(getattr(owner, name), phase))

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def timed_events(*args: Any, **kwargs: Any) -> Any:
                began = self._begin(phase)
                try:
                    async for event in function(*args, **kwargs):
                        yield event
                finally:
                    self._end(phase, began)

            return timed_events
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_call(*args: Any, **kwargs: Any) -> Any:
                began = self._begin(phase)
                try:
                    return await function(*args, **kwargs)
                finally:
                    self._end(phase, began)

            return timed_call

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self._begin(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._end(phase, began)

        return timed

    def _begin(self, phase: str) -> float:
        self.weigh()
        self._stack.append((phase, 0.0))
        return time.perf_counter()

    def _end(self, phase: str, began: float) -> None:
        self.weigh()
        spent = time.perf_counter() - began
        self.seconds[phase] += spent - self._stack.pop()[1]
        if self._stack:
            outer, inner = self._stack.pop()
            self._stack.append((outer, inner + spent))

    def weigh(self) -> None:
        """Count the peak since the last call for the phase that is on now."""
        phase = self._stack[-1][0] if self._stack else OTHER
        self.peaks[phase] = max(self.peaks[phase], peak_mb())
        forget_peak()


def make_dag() -> DAG:
    """Return the job's DAG."""
    with DAG("large_job", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        batch_llm_group(
            group_id="label",
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
    pattern = os.environ.get("BATCH_LLM_BENCH_PARQUET")
    if pattern:
        return FileSource(pattern, key=["id"])
    return SqlSource("warehouse", "SELECT id, body FROM tickets ORDER BY id", key=["id"])


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
    before, cpu_before = peak_mb(), cpu_seconds()
    run = dag.test()
    watch.weigh()
    cpu = cpu_seconds() - cpu_before
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
        "peaks": watch.peaks,
        "task_cpu": cpu,
        "task_mb_before": before,
        "task_mb": max(watch.peaks.values()),
    }
    Path(os.environ["BATCH_LLM_BENCH_FACTS"]).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
