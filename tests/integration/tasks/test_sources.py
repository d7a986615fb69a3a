"""Where rows come from, through the whole group: upstream tasks, files, ready-made requests; and schemas."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException
from pydantic import BaseModel

from airflow_batch_llm import FileSource, OpenAIBatchFile, RowPrompt, RowsSource, SqlSink, batch_llm_group
from tests.integration.tasks.desk import SUBMIT, TASKS, Books, Traffic, Warehouse, desk_dag, group_values
from tests.integration.tasks.runs import Run, Runs
from tests.local_server import LocalServer


class TicketLabel(BaseModel):
    """As a DAG file would define it."""

    label: Literal["billing", "bug", "other"]


def rendered_fields(run: Run) -> str:
    """Return all rendered fields of a run as one text."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(RenderedTaskInstanceFields.rendered_fields).where(
            RenderedTaskInstanceFields.dag_id == run.dag_id, RenderedTaskInstanceFields.run_id == run.run_id
        )
        return json.dumps(list(session.scalars(query)))


def upstream_dag(dag_id: str, rows: list[dict[str, Any]]) -> DAG:
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task
        def fetch() -> list[dict[str, Any]]:
            return rows

        batch_llm_group(**{**group_values(), "source": RowsSource(fetch(), key="id")})
    return dag


def test_rows_of_an_upstream_task_make_submit_wait_for_it(runs: Runs, warehouse: Warehouse) -> None:
    dag = upstream_dag("upstream", [{"id": n, "body": f"quokka text {n}"} for n in range(3)])
    assert dag.task_dict[SUBMIT].upstream_task_ids == {"fetch"}
    run = runs.run(dag)
    assert run.state == "success"
    assert sorted(warehouse.labels()) == [0, 1, 2]
    fields = rendered_fields(run)
    assert "llm_batch" in fields and "quokka" not in fields


def test_too_many_rows_of_an_upstream_task_are_refused(runs: Runs, traffic: Traffic) -> None:
    run = runs.run(upstream_dag("upstream_large", [{"id": n, "body": "x" * 1000} for n in range(60)]))
    error = runs.error_of(SUBMIT)
    assert isinstance(error, AirflowFailException) and "48 KB" in str(error)
    assert run.state == "failed" and not traffic.anything


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.jsonl", '{"id": "a", "body": "one"}\n{"id": "b", "body": "two"}\n'),
        ("in.csv", 'id,body\na,"one\nand more"\nb,two\n'),
    ],
)
def test_rows_of_a_file(runs: Runs, warehouse: Warehouse, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    source = FileSource(f"{tmp_path}/{{{{ params.name }}}}", key="id")
    dag = desk_dag(f"file_{name.partition('.')[2]}", source=source)
    dag.params["name"] = name
    assert runs.run(dag).state == "success"
    assert sorted(warehouse.labels()) == ["a", "b"]


def test_ready_made_requests_are_sent_as_they_are(
    runs: Runs, warehouse: Warehouse, server: LocalServer, tmp_path: Path
) -> None:
    path = tmp_path / "native.jsonl"
    lines = [
        {
            "custom_id": f"docs/{n}.md#1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": f"m-{n % 2}", "messages": [{"role": "user", "content": f"say {n}"}]},
        }
        for n in range(4)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sink = SqlSink("warehouse", "labels", key={"custom_id": "id"}, columns={"output": "label"}, create=True)
    # The file goes while the batch runs: what was staged needs it no more.
    server.set_scenario({"pace": {"statuses": ["in_progress"]}})
    runs.after(SUBMIT, path.unlink)
    values = {"source": OpenAIBatchFile(str(path)), "prompt": None, "output_schema": None, "max_tokens": None}
    run = runs.run(desk_dag("native", **values, sink=sink))
    assert [process.state for process in runs.of(SUBMIT)] == ["deferred", "success"]
    assert run.state == "success"
    assert sorted(warehouse.labels()) == sorted(line["custom_id"] for line in lines)


def test_a_prompt_file_may_go_once_the_job_is_staged(
    runs: Runs, warehouse: Warehouse, server: LocalServer, tmp_path: Path
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Label this: {{ row.body }}")
    server.set_scenario({"pace": {"statuses": ["in_progress"]}})
    runs.after(SUBMIT, path.unlink)
    assert runs.run(desk_dag("prompt_file", prompt=RowPrompt(path=str(path)))).state == "success"
    assert len(warehouse.labels()) == 6


def test_a_pydantic_class_of_the_dag_file_and_one_by_its_path_give_the_same_job(
    runs: Runs, warehouse: Warehouse
) -> None:
    found = []
    for name, schema in (("class", TicketLabel), ("path", f"{__name__}:TicketLabel")):
        run = runs.run(desk_dag(f"schema_{name}", output_schema=schema))
        assert run.state == "success"
        found.append((warehouse.labels(), Books.of(run).job.counts["answered"]))
        warehouse.execute("DROP TABLE labels")
    assert found[0] == found[1] and found[0][1] == 6


def test_blocking_and_deferrable_mode_give_the_same_verdicts(
    runs: Runs, warehouse: Warehouse, server: LocalServer
) -> None:
    found = []
    for deferrable in (True, False):
        server.set_scenario(
            {
                "pace": {"statuses": ["validating", "in_progress"]},
                "rows": [
                    {"match": {"contains": "number 2."}, "fault": "server_error", "times": 1},
                    {"match": {"contains": "number 3."}, "fault": "server_error"},
                    {"match": {"contains": "number 4."}, "fault": "bad_request", "code": "invalid_value"},
                    {"match": {"contains": "number 5."}, "fault": "invalid_json", "times": 1},
                ],
            }
        )
        runs.processes.clear()
        run = runs.run(desk_dag(f"mode_{deferrable}", deferrable=deferrable, max_dead_letter_ratio=0.5))
        states = {process.state for process in runs.processes}
        assert ("deferred" in states) is deferrable
        books = Books.of(run)
        attempts = {
            letter.custom_id: [(a.verdict, a.charged) for a in letter.attempts] for letter in books.letters()
        }
        found.append((run.state, warehouse.labels(), books.open_codes(), dict(books.job.counts), attempts))
        assert {*runs.states(run)} == {*TASKS}
        warehouse.execute("DROP TABLE labels")
    assert found[0] == found[1]
    assert found[0][0] == "success" and set(found[0][2]) == {"3", "4"}
