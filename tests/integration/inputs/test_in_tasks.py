from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task

from airflow_batch_llm.declared import Declared
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import RowsSource, SqlSource

FOUND: dict[str, Any] = {}


class Reading(BaseOperator):
    """Reads a source with a prompt, as the submitting task does."""

    def __init__(self, source: Any, prompt: RowPrompt, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.source, self.prompt = source, prompt
        for declared in (source, prompt):
            declared.bind(self)

    def execute(self, context: Any) -> None:
        prompt = self.prompt.resolve(context)
        FOUND[self.task_id] = [
            (draft.custom_id, draft.body and draft.body["messages"][0]["content"])
            for draft in self.source.resolve(context).drafts(prompt)
        ]


def test_rows_parameters_and_vars_of_upstream_tasks_reach_the_prompt(
    sync_dag: Callable[[DAG], DAG], sqlite_database: str, tmp_path: Path
) -> None:
    with DAG("inputs_in_tasks", schedule=None) as dag:

        @task
        def rows() -> list[dict[str, Any]]:
            return [{"id": 1, "body": "a {{ ds }}"}]

        @task
        def part(number: int) -> list[dict[str, Any]]:
            return [{"id": number, "body": f"part {number}"}]

        @task
        def written() -> dict[str, str]:
            path = tmp_path / "rows.jsonl"
            path.write_text('{"id": "f", "body": "from a file"}\n')
            return {"path": f"file://{path}"}

        @task
        def word() -> str:
            return "bound"

        prompt = RowPrompt("{{ row.body }}/{{ run }}/{{ w }}", vars={"run": "{{ run_id }}", "w": word()})
        made = {
            "plain": RowsSource(rows(), key="id"),
            "mapped": RowsSource(part.expand(number=[1, 2]), key="id"),
            "by_reference": RowsSource(written(), key="id"),
            "query": SqlSource(
                sqlite_database, "SELECT 1 AS id, ? || ? AS body", [word(), "{{ run_id }}"], key="id"
            ),
        }
        tasks = {name: Reading(task_id=name, source=source, prompt=prompt) for name, source in made.items()}

    assert tasks["plain"].upstream_task_ids == {"rows", "word"}
    assert tasks["query"].upstream_task_ids == {"word", "word__1"}
    FOUND.clear()
    run = sync_dag(dag).test()

    assert run is not None and run.state == "success"
    tail = f"/{run.run_id}/bound"
    assert {
        "plain": [("1", "a {{ ds }}" + tail)],
        "mapped": [("1", "part 1" + tail), ("2", "part 2" + tail)],
        "by_reference": [("f", "from a file" + tail)],
        "query": [("1", f"bound{run.run_id}" + tail)],
    } == FOUND


def test_a_reference_to_a_task_is_shown_by_its_name_and_survives_a_copy_of_the_dag() -> None:
    with DAG("inputs_copied", schedule=None):

        @task
        def rows() -> list[dict[str, Any]]:
            return []

        source: Declared = RowsSource(rows(), key="id")

    assert source.serialize()["rows"] == {"xcom": [["rows", "return_value"]]}
    assert copy.deepcopy(source) == source


def test_a_lookback_moves_the_start_of_the_interval_and_nothing_else(
    sync_dag: Callable[[DAG], DAG], sqlite_database: str
) -> None:
    columns = "? AS id, ? || ' ' || ? || ' ' || ? AS body"
    values = ["{{ data_interval_start }}", "{{ data_interval_end }}", "{{ logical_date }}", "{{ ds }}"]
    with DAG("inputs_look_back", schedule=None) as dag:
        for name, lookback in (("back", timedelta(days=2, hours=1)), ("plain", None)):
            source = SqlSource(sqlite_database, f"SELECT {columns}", values, key="id", lookback=lookback)
            Reading(task_id=name, source=source, prompt=RowPrompt("{{ row.body }}"))

    FOUND.clear()
    run = sync_dag(dag).test(logical_date=datetime(2026, 3, 1, tzinfo=UTC))

    assert run is not None and run.state == "success"
    rest = "2026-03-01 00:00:00+00:00 2026-03-01 00:00:00+00:00 2026-03-01"
    assert {
        "back": [("2026-02-26 23:00:00+00:00", rest)],
        "plain": [("2026-03-01 00:00:00+00:00", rest)],
    } == FOUND


def test_a_run_without_an_interval_is_told_of_it(sqlite_database: str) -> None:
    source = SqlSource(
        sqlite_database,
        "SELECT 1 AS id, ? AS body",
        ["{{ data_interval_start }}"],
        key="id",
        lookback=timedelta(hours=1),
    )
    with DAG("inputs_no_interval", schedule=None):
        operator = Reading(task_id="read", source=source, prompt=RowPrompt("{{ row.body }}"))

    with pytest.raises(ConfigurationError, match="'data_interval_start' is undefined"):
        source.resolve({"task": operator})
