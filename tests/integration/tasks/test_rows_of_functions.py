"""``@task.batch_llm_rows``: a function's rows become a job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, get_current_context, task

from airflow_batch_llm import RowPrompt, RowRetry
from airflow_batch_llm.exceptions import ConfigurationError
from tests.integration.tasks.desk import SCHEMA, Books, Traffic
from tests.integration.tasks.metadata import rows_holding
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

START = datetime(2026, 1, 1, tzinfo=UTC)
ASK: dict[str, Any] = {
    "key": "id",
    "llm_conn_id": "llm_batch",
    "prompt": RowPrompt("Label this ticket: {{ row.body }}"),
    "output_schema": SCHEMA,
    "row_retry": RowRetry(max_rounds=1),
    "retries": 1,
    "retry_delay": timedelta(0),
}
#: In pieces: Airflow stores the source of DAG files, which this is one of.
MARKER = "-".join(("b4r7", "a", "customer", "said", "this"))


@pytest.fixture
def calls() -> list[Any]:
    """What the functions of a test note when they are called."""
    return []


def test_a_generator_is_called_once_for_each_reading_of_the_source(
    runs: Runs, server: LocalServer, traffic: Traffic, calls: list[Any]
) -> None:
    server.set_scenario({"pace": {"statuses": ["in_progress"]}})
    with DAG("rows_generator", schedule=None, start_date=START) as dag:

        @task.batch_llm_rows(**ASK)
        def tickets(first: int, number: int = 3, ds: str | None = None, **context: Any) -> Iterator[Any]:
            calls.append((first, number, ds, context["run_id"], get_current_context()["run_id"]))
            row: dict[str, Any] = {}
            for n in range(first, first + number):
                # What rests on an event loop of its own works as in any task.
                row["id"], row["body"] = n, asyncio.run(asyncio.sleep(0, f"number {n} {MARKER}"))
                yield row

        tickets(10, number=4)

    run = runs.run(dag)
    assert run.state == "success"
    assert [process.state for process in runs.of("tickets")] == ["deferred", "success"]
    day = calls[0][2]
    assert calls == [(10, 4, day, run.run_id, run.run_id)] and day is not None
    assert traffic.sent == 4
    assert runs.xcom(run, "tickets")["counts"]["answered"] == 4
    assert len(runs.xcoms(run)["tickets/return_value"]) < 4096
    assert rows_holding(MARKER) == []

    traffic.forget()
    assert runs.rerun(dag, run, "tickets") == "success"
    assert len(calls) == 2 and not traffic.anything


def test_arguments_are_rendered_and_rows_among_them_are_not_kept_by_airflow(
    runs: Runs, traffic: Traffic, calls: list[Any]
) -> None:
    with DAG("rows_arguments", schedule=None, start_date=START) as dag:

        @task
        def found() -> list[dict[str, Any]]:
            return [{"id": n, "body": f"number {n}"} for n in range(3)]

        @task.batch_llm_rows(**ASK)
        def tickets(rows: list[dict[str, Any]], run: str) -> list[dict[str, Any]]:
            calls.append(run)
            return rows

        tickets(found(), run="{{ run_id }}")

    run = runs.run(dag)
    assert run.state == "success" and traffic.sent == 3 and calls == [run.run_id]
    assert rendered_fields(run.dag_id, "tickets")["op_args"] == ["<list of 3>"]


def test_a_reference_is_read_and_the_answers_of_a_mapped_function_can_be_asked_about(
    runs: Runs, traffic: Traffic, tmp_path: Path
) -> None:
    for n in range(2):
        (tmp_path / f"{n}.jsonl").write_text(f'{{"id": "{n}", "body": "number {n}"}}\n')
    with DAG("rows_mapped", schedule=None, start_date=START) as dag:

        @task.batch_llm_rows(**ASK)
        def tickets(path: str) -> str:
            return path

        answers = tickets.override(task_id="first").expand(
            path=[str(tmp_path / f"{n}.jsonl") for n in range(2)]
        )

        @task.batch_llm_rows(**{**ASK, "prompt": RowPrompt("Right? {{ row.label }}")})
        def judge(refs: Any) -> list[dict[str, Any]]:
            from airflow_batch_llm import read_results

            found = [answer for ref in refs for answer in read_results(ref)]
            return [{"id": answer["custom_id"], "label": answer["output"]["label"]} for answer in found]

        judge(answers)

    run = runs.run(dag)
    assert run.state == "success" and traffic.sent == 4
    assert [Books.of(run, "first", n).job.counts["answered"] for n in (0, 1)] == [1, 1]
    assert Books.of(run, "judge").job.counts["answered"] == 2


@pytest.mark.parametrize(
    ("returned", "told"),
    [(None, "returned a NoneType"), ([1], "row 1 is a int"), ({"id": 1}, "rows are a list of dicts")],
)
def test_what_is_no_rows_is_told_before_anything_is_sent(
    runs: Runs, traffic: Traffic, returned: Any, told: str
) -> None:
    with DAG(f"rows_none_{type(returned).__name__}", schedule=None, start_date=START) as dag:

        @task.batch_llm_rows(**ASK)
        def tickets() -> Any:
            return returned

        tickets()
    run = runs.run(dag)
    assert run.state == "failed" and told in str(runs.error_of("tickets"))
    assert runs.tries(run) == {"tickets": 1} and not traffic.anything


def test_wrong_arguments_are_told_when_the_dag_is_read() -> None:
    async def later(n: int) -> list[Any]:
        return []

    def now(n: int) -> list[Any]:
        return []

    with DAG("rows_wrong", schedule=None, start_date=START):
        for function, arguments, told in (
            (now, {**ASK, "key": None}, "key is missing"),
            (later, ASK, "is a coroutine function"),
            (now, {**ASK, "source": []}, "source cannot be given"),
            (now, {**ASK, "prompt": "Label"}, "prompt must be RowPrompt or None, not str"),
        ):
            with pytest.raises(ConfigurationError, match=told):
                task.batch_llm_rows(**{"task_id": "t", **arguments})(function)(1)
            with pytest.raises(ConfigurationError, match=told):
                task.batch_llm_rows(**{"task_id": "m", **arguments})(function).expand(n=[1])


def rendered_fields(dag_id: str, task_id: str) -> dict[str, Any]:
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(RenderedTaskInstanceFields.rendered_fields).where(
            RenderedTaskInstanceFields.dag_id == dag_id, RenderedTaskInstanceFields.task_id == task_id
        )
        return dict(session.scalars(query).one())
