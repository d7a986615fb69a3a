from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from airflow_batch_llm.declared import Declared, Renderer
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.import_paths import load_path, path_of
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sinks import SqlSink
from airflow_batch_llm.sources import FileSource, OpenAIBatchFile, RowsSource, SqlSource


def declarations() -> list[Declared]:
    return [
        SqlSource("db", "SELECT 1", {"a": "{{ ds }}", "b": datetime(2026, 1, 1, tzinfo=UTC)}, key=["id"]),
        SqlSource("db", "SELECT ?", [Decimal("1.5"), None], key=["id", "lang"], chunk_size=10),
        FileSource("s3://bucket/{{ ds }}.csv", key="id", conn_id="s3"),
        RowsSource([{"id": 1, "body": "a"}], key="id"),
        RowsSource({"path": "rows.jsonl"}, key="id"),
        OpenAIBatchFile("requests.jsonl"),
        RowPrompt("{{ row.body }}", system="s", vars={"day": "{{ ds }}"}),
        RowPrompt(messages=[{"role": "user", "content": "{{ row.body }}"}]),
        SqlSink("db", "labels", key=["id"], columns={"label": "label_col"}, create=True),
    ]


def test_declarations_are_shown_the_same_in_every_process() -> None:
    script = (
        "from tests.unit.inputs.test_declared import declarations as d;"
        "import json; print(json.dumps([[repr(x), x.serialize()] for x in d()]))"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(shown) == 1
    assert b" at 0x" not in shown.pop()


def test_declarations_are_equal_when_they_say_the_same() -> None:
    first, second = declarations(), declarations()

    assert first == second
    assert set(first) == set(second)
    assert copy.deepcopy(first) == first
    assert all(one != other for i, one in enumerate(first) for other in first[i + 1 :])
    json.dumps([declaration.serialize() for declaration in first])


def test_what_a_dag_file_imports_does_not_import_airflow_or_databases() -> None:
    script = (
        "import sys, airflow_batch_llm.prompts, airflow_batch_llm.schemas, airflow_batch_llm.sources,"
        " airflow_batch_llm.sinks; print([m for m in ('airflow', 'sqlalchemy', 'psycopg', 'psycopg2',"
        " 'pydantic', 'jsonschema') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)

    assert found.stdout.strip() == "[]"


def test_resolving_renders_with_the_task_and_leaves_the_declaration_alone() -> None:
    def render_template(value: Any, context: Any) -> Any:
        return value.replace("{{ ds }}", context["ds"])

    source = FileSource("{{ ds }}.csv", key="id")
    before = source.serialize()
    context = {"task": SimpleNamespace(render_template=render_template), "ds": "2026-01-01"}

    one = source.resolve(context)
    other = source.resolve(context | {"ds": "2026-01-02"})

    assert one is not other
    assert source.serialize() == before


def test_without_a_task_only_plain_values_pass() -> None:
    render = Renderer({})

    assert render({"a": [1, "b"]}) == {"a": [1, "b"]}
    with pytest.raises(ConfigurationError):
        render({"a": ["{{ ds }}"]})
    assert Renderer({"render": str.upper})("a") == "A"


def test_a_template_that_renders_to_nothing_is_named() -> None:
    with pytest.raises(ConfigurationError, match="the source's path"):
        FileSource("{{ ds }}", key="id").resolve({"render": lambda value: ""})


@pytest.mark.parametrize(
    "make",
    [
        lambda: SqlSource("db", "SELECT 1", {"a": object()}, key="id"),
        lambda: SqlSource("db", "SELECT 1", "a", key="id"),
        lambda: SqlSource("db", "SELECT 1", key="id", chunk_size=0),
        lambda: SqlSource("db", "SELECT 1", key="id", chunk_size="10"),
        lambda: SqlSource("db", "SELECT 1", 5, key="id"),
        lambda: SqlSource("db", "SELECT 1", key=[]),
        lambda: SqlSource("db", "SELECT 1", key=None),
        lambda: SqlSource("db", "SELECT 1", key=[1]),
        lambda: SqlSource("db", "SELECT 1", key={"id", "lang"}),
        lambda: SqlSource("db", ["SELECT 1"], key="id"),
        lambda: SqlSource("db", "  ", key="id"),
        lambda: SqlSource(None, "SELECT 1", key="id"),
        lambda: SqlSource("db", "SELECT {{ data_interval_start }}", key="id", lookback=2),
        lambda: SqlSource("db", "SELECT {{ data_interval_start }}", key="id", lookback=timedelta(0)),
        lambda: FileSource(None, key="id"),
        lambda: FileSource("", key="id"),
        lambda: FileSource("a.csv", key=7),
        lambda: FileSource("a.csv", key="id", conn_id=5),
        lambda: OpenAIBatchFile(5),
        lambda: RowsSource([{"id": 1}], key=""),
        lambda: SqlSink(None, "t", key="id"),
        lambda: SqlSink("db", ["t"], key="id"),
        lambda: SqlSink("db", "t", key={}),
        lambda: SqlSink("db", "t", key=5),
        lambda: SqlSink("db", "t", key={1: "id"}),
        lambda: SqlSink("db", "t", key="id", columns=5),
        lambda: SqlSink("db", "t", key="id", columns={}),
        lambda: SqlSink("db", "t", key="id", columns={"label": 1}),
        lambda: SqlSink("db", "t", key="id", mode=None),
        lambda: SqlSink("db", "t", key="id", mode="replace"),
        lambda: SqlSink("db", "t", key="id", mode="replace_partition"),
        lambda: SqlSink("db", "t", key="id", mode="replace_partition", partition={}),
        lambda: SqlSink(
            "db", "t", key="id", mode="replace_partition", partition={"d": "1"}, publish="each_round"
        ),
        lambda: SqlSink("db", "t", key="id", mode="append", version_column="v"),
        lambda: SqlSink("db", "t", key="id", partition=["day"]),
        lambda: SqlSink("db", "t", key="id", partition={"day": object()}),
        lambda: SqlSink("db", "t", key="id", publish="sometimes"),
        lambda: SqlSink("db", "t", key="id", on_withdrawn="forget"),
        lambda: SqlSink("db", "t", key="id", version_column=["v"]),
        lambda: SqlSink("db", "t", key={"a": "x", "b": "x"}),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_the_dag_file(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELECT 1", None),
        ("SELECT '{{ dag_run.data_interval_start }}'", {"a": ["{{ data_interval_end }}"]}),
        ("SELECT '{{ prev_data_interval_start_success }}'", None),
    ],
)
def test_a_lookback_that_would_move_nothing_is_refused(sql: str, parameters: Any) -> None:
    with pytest.raises(ConfigurationError, match="lookback moves data_interval_start, which neither"):
        SqlSource("db", sql, parameters, key="id", lookback=timedelta(hours=2))


def test_a_lookback_stands_in_what_is_shown() -> None:
    def source(lookback: Any) -> SqlSource:
        return SqlSource("db", "SELECT 1", {"a": ["{{ data_interval_start }}"]}, key="id", lookback=lookback)

    assert source(timedelta(days=1, hours=2)).serialize()["lookback"] == "1 day, 2:00:00"
    assert source(timedelta(days=1)) != source(None)


def test_an_address_in_the_place_of_a_connection_id_is_not_shown() -> None:
    for make in (
        lambda: SqlSource("postgres://user:hidden-word@host/db", "SELECT 1", key="id"),
        lambda: SqlSink("postgres://user:hidden-word@host/db", "t", key="id"),
    ):
        with pytest.raises(
            ConfigurationError, match="conn_id must be the id of an Airflow connection"
        ) as caught:
            make()
        assert "hidden-word" not in str(caught.value)


def test_a_file_with_a_statement_is_refused_in_the_dag_file_and_after_rendering() -> None:
    message = "takes the statement itself, not a file .*read_text"

    with pytest.raises(ConfigurationError, match=message):
        SqlSource("db", "sql/tickets.sql", key="id")
    rendered = SqlSource("db", "{{ params.sql }}", key="id")
    with pytest.raises(ConfigurationError, match=message):
        rendered.resolve({"render": lambda value: value.replace("{{ params.sql }}", "tickets.sql")})
    SqlSource("db", "SELECT * FROM mart.sql", key="id")


def test_a_path_may_be_a_path_object() -> None:
    assert FileSource(Path("rows.csv"), key="id") == FileSource("rows.csv", key="id")
    assert OpenAIBatchFile(Path("rows.jsonl")) == OpenAIBatchFile("rows.jsonl")


def test_an_import_path_leads_to_the_object_and_back() -> None:
    assert load_path(path_of(RowPrompt)) is RowPrompt
    assert load_path(path_of(RowPrompt.resolve)) is RowPrompt.resolve


def test_a_module_that_breaks_on_import_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_on_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match="'breaks_on_import'.*ZeroDivisionError"):
        load_path("breaks_on_import:x")


def test_a_template_that_names_what_the_run_does_not_have_is_a_wrong_argument() -> None:
    def render(value: str) -> str:
        return jinja2.Template(value, undefined=jinja2.StrictUndefined).render(ds="2026-01-01")

    source = SqlSource("db", "SELECT 1", {"a": "{{ data_interval_start }}"}, key=["id"])
    with pytest.raises(ConfigurationError, match="'data_interval_start' is undefined") as raised:
        source.resolve({"render": render})  # type: ignore[typeddict-item]
    assert raised.value.__cause__ is None and raised.value.__context__ is None
