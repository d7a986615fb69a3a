"""Mapped tasks: one job for each map index."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task_group

from airflow_batch_llm import BatchLLMSubmitOperator, FileSource, RowPrompt, batch_llm_group
from airflow_batch_llm.core.model import JobState
from tests.integration.tasks.desk import SCHEMA, Books, Traffic, group_values
from tests.integration.tasks.runs import Runs


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = []
    for n in range(2):
        path = tmp_path / f"part-{n}.jsonl"
        path.write_text("".join(f'{{"id":"{n}-{i}","body":"text {i}"}}\n' for i in range(n + 1)))
        paths.append(str(path))
    return paths


def test_a_mapped_submit_makes_a_job_of_each_index(runs: Runs, traffic: Traffic, files: list[str]) -> None:
    with DAG("mapped_submit", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        BatchLLMSubmitOperator.partial(
            task_id="submit",
            llm_conn_id="llm_batch",
            source=FileSource(files[1], key="id"),
            prompt=RowPrompt("{{ row.body }}"),
            output_schema=SCHEMA,
            retries=0,
        ).expand(model=["m-1", "m-2"])
    run = runs.run(dag)
    assert run.state == "success"
    assert (traffic.creates, traffic.sent) == (2, 4)
    jobs = [Books.of(run, "submit", map_index).job for map_index in (0, 1)]
    assert [job.model for job in jobs] == ["m-1", "m-2"]


def test_a_mapped_group_keeps_its_jobs_apart(runs: Runs, traffic: Traffic, files: list[str]) -> None:
    with DAG("mapped_group", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task_group
        def part(path: Any) -> None:
            values = {"source": {"path": path}, "key": "id", "sink": None}
            batch_llm_group(**{**group_values(), **values})

        part.expand(path=files)
    run = runs.run(dag)
    assert run.state == "success"
    assert (traffic.creates, traffic.sent) == (2, 3)
    jobs = [Books.of(run, "part.label.submit", map_index).job for map_index in (0, 1)]
    assert [job.counts["answered"] for job in jobs] == [1, 2]
    assert {job.state for job in jobs} == {JobState.SETTLED}

    traffic.forget()
    runs.rerun(dag, run, "part.label.submit")
    assert "BLLM-034" in str(runs.error_of("part.label.submit"))
    assert not traffic.anything
