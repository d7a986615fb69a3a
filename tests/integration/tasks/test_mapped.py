"""Mapped tasks: one job for each map index, and arguments that are known only when the tasks run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from airflow_batch_llm import (
    BatchLLMOperator,
    BatchLLMSubmitOperator,
    FileSource,
    ResultsSource,
    RowPrompt,
    RowsSource,
    SqlSink,
    SqlSource,
    batch_llm_group,
)
from airflow_batch_llm.core.files import iter_requests
from airflow_batch_llm.core.model import Job, JobState
from airflow_batch_llm.core.tools import read_description
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.hooks.state import open_ledger, open_workspace
from tests.integration.tasks.desk import SCHEMA, Books, Traffic, Warehouse, group_values
from tests.integration.tasks.runs import Runs

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = []
    for n in range(2):
        path = tmp_path / f"part-{n}.jsonl"
        path.write_text("".join(f'{{"id":"{n}-{i}","body":"text {i}"}}\n' for i in range(n + 1)))
        paths.append(str(path))
    return paths


def asking(path: str, **values: Any) -> dict[str, Any]:
    """Return arguments of a task that asks about the rows of a file."""
    return {
        "llm_conn_id": "llm_batch",
        "source": FileSource(path, key="id"),
        "prompt": RowPrompt("{{ row.body }}"),
        "output_schema": SCHEMA,
        "retries": 0,
        **values,
    }


def asked(job: Job) -> dict[str, Any]:
    """Return what all requests of a job share."""
    workspace = open_workspace()
    template = read_description(workspace, workspace.job_root(job.key), job.plan_id or "")["template"]
    return dict(template)


def prompts(job: Job) -> list[str]:
    """Return the prompts of a job's requests."""
    workspace = open_workspace()
    batch = open_ledger().batches(job.job_id)[0]
    requests = iter_requests(workspace, workspace.job_root(job.key), batch)
    return [json.loads(bytes(request.body))["messages"][0]["content"] for request in requests]


def test_a_mapped_submit_makes_a_job_of_each_index(runs: Runs, traffic: Traffic, files: list[str]) -> None:
    with DAG("mapped_submit", schedule=None, start_date=START) as dag:
        BatchLLMSubmitOperator.partial(task_id="submit", **asking(files[1])).expand(model=["m-1", "m-2"])
    run = runs.run(dag)
    assert run.state == "success"
    assert (traffic.creates, traffic.sent) == (2, 4)
    jobs = [Books.of(run, "submit", map_index).job for map_index in (0, 1)]
    assert [job.model for job in jobs] == ["m-1", "m-2"]


def test_a_mapped_group_keeps_its_jobs_apart(runs: Runs, traffic: Traffic, files: list[str]) -> None:
    with DAG("mapped_group", schedule=None, start_date=START) as dag:

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


def test_whatever_an_argument_of_a_group_takes_may_come_from_the_mapped_group_around_it(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, files: list[str]
) -> None:
    with DAG("mapped_everything", schedule=None, start_date=START, params={"no": "request parameter"}) as dag:

        @task
        def cases() -> list[dict[str, Any]]:
            return [
                {"conn": "llm_batch", "model": "m-2", "limit": 4, "word": "first", "table": "a", "heat": 0.5},
                {"conn": "llm_batch", "model": "m-3", "limit": 2, "word": "other", "table": "b", "heat": 1},
            ]

        @task_group
        def case(conn: Any, model: Any, limit: Any, word: Any, table: Any, heat: Any) -> None:
            group = batch_llm_group(
                group_id="ask",
                llm_conn_id=conn,
                source=SqlSource(
                    "warehouse",
                    "SELECT id, body FROM tickets WHERE id <= :limit",
                    parameters={"limit": limit},
                    key="id",
                ),
                prompt=RowPrompt("{{ word }}: {{ row.body }}", vars={"word": word}),
                model=model,
                max_tokens=limit,
                params={"temperature": heat},
                output_schema=SCHEMA,
                sink=SqlSink("warehouse", table, key=["id"], create=True),
                task_args={"retries": 0},
            )
            batch_llm_group(
                group_id="judge",
                llm_conn_id=conn,
                source=ResultsSource(group.results),
                prompt=RowPrompt("Is it {{ row.output.label }}?"),
                task_args={"retries": 0},
            )

        case.expand_kwargs(cases())

    run = runs.run(dag)
    assert run.state == "success"
    jobs = [Books.of(run, "case.ask.submit", index).job for index in (0, 1)]
    assert [(job.model, job.counts["rows"]) for job in jobs] == [("m-2", 4), ("m-3", 2)]
    assert [warehouse.execute(f"SELECT count(*) FROM {table}") for table in "ab"] == [[(4,)], [(2,)]]
    assert [asked(job)["model"] for job in jobs] == ["m-2", "m-3"]
    assert [asked(job)["params"] for job in jobs] == [
        {"temperature": 0.5, "max_tokens": 4},
        {"temperature": 1, "max_tokens": 2},
    ]
    assert [prompts(job)[0].partition(":")[0] for job in jobs] == ["first", "other"]
    judges = [Books.of(run, "case.judge.submit", index).job for index in (0, 1)]
    assert [job.counts["answered"] for job in judges] == [4, 2]


def test_one_task_is_mapped_over_sources_models_and_what_upstream_returns(
    runs: Runs, traffic: Traffic, files: list[str]
) -> None:
    with DAG("mapped_one_task", schedule=None, start_date=START) as dag:

        @task
        def models() -> list[str]:
            return ["m-1", "m-2"]

        @task
        def word() -> str:
            return "Sort"

        prompt = RowPrompt("{{ w }} {{ row.body }}", vars={"w": word()})
        values = asking(files[0], prompt=prompt)
        BatchLLMOperator.partial(task_id="by_model", **values).expand(model=models())
        del values["source"]
        sources = [FileSource(files[0], key="id"), RowsSource([{"id": 1, "body": "x"}] * 1, key="id")]
        by_source = BatchLLMOperator.partial(task_id="by_source", **values).expand(source=sources)
        BatchLLMOperator.partial(
            task_id="judge",
            **asking(
                files[0],
                source=ResultsSource(by_source.output, key=["map_index", "custom_id"]),
                prompt=RowPrompt("{{ row.output }}"),
            ),
        ).expand_kwargs([{"model": "m-4", "params": {"temperature": 0}}, {"model": "m-5", "max_tokens": 9}])

    run = runs.run(dag)
    assert run.state == "success"
    assert [Books.of(run, "by_model", n).job.model for n in (0, 1)] == ["m-1", "m-2"]
    assert [Books.of(run, "by_source", n).job.counts["answered"] for n in (0, 1)] == [1, 1]
    judged = [Books.of(run, "judge", n).job for n in (0, 1)]
    assert [(asked(job)["model"], asked(job)["params"]) for job in judged] == [
        ("m-4", {"temperature": 0}),
        ("m-5", {"max_tokens": 9}),
    ]
    assert [job.counts["answered"] for job in judged] == [2, 2]
    assert prompts(Books.of(run, "by_model", 1).job) == ["Sort text 0"]


def test_a_job_key_for_each_index_finds_its_job_when_the_order_changes(
    runs: Runs, traffic: Traffic, files: list[str]
) -> None:
    def dag_of(*models: str) -> DAG:
        with DAG("mapped_key_order", schedule=None, start_date=START) as dag:
            pairs = [{"model": model, "job_key": f"ask {model}"} for model in models]
            BatchLLMOperator.partial(task_id="ask", **asking(files[1])).expand_kwargs(pairs)
        return dag

    run = runs.run(dag_of("m-1", "m-2"))
    assert run.state == "success" and traffic.sent == 4
    assert Books.of(run, "ask m-1").job.model == "m-1"

    traffic.forget()
    turned = runs.sync(dag_of("m-2", "m-1"))
    assert runs.rerun(turned, run, "ask") == "success"
    assert not traffic.anything
    assert [Books.of(run, f"ask {model}").job.revision for model in ("m-1", "m-2")] == [2, 2]


def test_two_indices_do_not_share_a_job(runs: Runs, traffic: Traffic, files: list[str]) -> None:
    with DAG("mapped_key_shared", schedule=None, start_date=START) as dag:
        BatchLLMOperator.partial(task_id="ask", **asking(files[1])).expand(
            model=["m-1", "m-2"], job_key=["the same"]
        )
        BatchLLMOperator.partial(task_id="tell", **asking(files[1])).expand_kwargs(
            [{"model": "m-1", "job_key": "same"}, {"model": "m-2", "job_key": "same"}]
        )
    run = runs.run(dag)
    assert run.state == "failed"
    for name in ("ask", "tell"):
        errors = [process.error for process in runs.of(name) if process.error is not None]
        assert len(errors) == 1 and isinstance(errors[0], AirflowFailException)
        assert "BLLM-036" in str(errors[0]) and f"{name}[0]" in str(errors[0])
    assert traffic.sent == 4

    traffic.forget()
    assert runs.rerun(dag, run, "tell") == "failed"
    assert not traffic.anything and Books.of(run, "same").job.model == "m-1"


def test_mapped_tasks_have_the_retries_of_the_others() -> None:
    values = asking("/x.jsonl")
    del values["retries"]
    with DAG("mapped_retries", schedule=None, start_date=START):
        plain = BatchLLMOperator(task_id="plain", **values)
        mapped = BatchLLMOperator.partial(task_id="mapped", **values).expand(model=["m-1"])
        rows = task.batch_llm_rows(task_id="rows", key="id", prompt=values["prompt"])(lambda n: []).expand(
            n=[1]
        )
    with DAG("default_retries", schedule=None, start_date=START, default_args={"retries": 1}):
        less = BatchLLMOperator(task_id="plain", **values)
        mapped_less = BatchLLMOperator.partial(task_id="mapped", **values).expand(model=["m-1"])
    assert (plain.retries, mapped.retries, rows.operator.retries) == (3, 3, 3)
    assert (less.retries, mapped_less.retries) == (1, 1)


@pytest.mark.parametrize(
    ("fixed", "mapped", "told"),
    [
        ({}, {"model": ["m-1", 5]}, "model must be str or None, not int"),
        ({"prompt": "Label"}, {"model": ["m-1"]}, "prompt must be RowPrompt or None, not str"),
        ({}, {"on_empty": ["skip", "sometimes"]}, "on_empty is 'sometimes'; it can be skip, fail, success"),
        ({"retry_delay": timedelta(0)}, {"max_tokens": [1, 0]}, "max_tokens is 0; it must be 1 or more"),
    ],
)
def test_arguments_of_mapped_tasks_are_looked_at_when_the_dag_is_read(
    fixed: dict[str, Any], mapped: dict[str, list[Any]], told: str
) -> None:
    with DAG("mapped_wrong", schedule=None, start_date=START), pytest.raises(ConfigurationError, match=told):
        BatchLLMOperator.partial(task_id="t", **asking("/x.jsonl", **fixed)).expand(**mapped)


def test_what_a_template_makes_of_an_argument_is_looked_at_before_anything_is_sent(
    runs: Runs, traffic: Traffic, files: list[str]
) -> None:
    with DAG("late_arguments", schedule=None, start_date=START, params={"n": "many", "e": "chat"}) as dag:
        BatchLLMOperator(task_id="number", **asking(files[0], max_tokens="{{ params.n }}"))
        BatchLLMOperator(task_id="word", **asking(files[0], rerun="{{ params.n }}"))
        BatchLLMOperator(task_id="good", **asking(files[0], endpoint="{{ params.e }}", samples="{{ 1 + 1 }}"))
    run = runs.run(dag)
    assert runs.states(run) == {"number": "failed", "word": "failed", "good": "success"}
    assert "max_tokens does not render to a whole number" in str(runs.error_of("number"))
    assert "rerun is 'many'; it can be missing, failed, fresh" in str(runs.error_of("word"))
    assert traffic.sent == 2
