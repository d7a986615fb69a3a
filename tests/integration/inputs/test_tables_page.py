"""The statements of docs/tables.md run, make what create=True makes, and are enough."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from airflow_batch_llm.sinks.table_sink import SqlTableSink
from airflow_batch_llm.sources.database import Database
from tests.integration.inputs.conftest import SCHEMA
from tests.integration.inputs.sink_rows import INFO, answer_of, sink_of

Sql = Callable[..., list[tuple[Any, ...]]]

PAGE = (Path(__file__).parents[3] / "docs" / "tables.md").read_text()
HEADINGS = {"postgresql": "PostgreSQL", "mysql": "MySQL and MariaDB", "sqlite": "SQLite"}


class TicketLabel(BaseModel):
    label: str
    urgent: bool
    stars: int | None
    tags: list[str]


ANSWER = answer_of(
    7,
    {"label": "bug", "urgent": True, "stars": 3, "tags": ["a"]},
    carry={"updated_at": "2026-01-01T00:00:00Z"},
)


def _statements(heading: str) -> list[str]:
    section = re.split(rf"^##+ {heading}$", PAGE, flags=re.MULTILINE)[1].partition("\n## ")[0]
    section = section.partition("\n### ")[0]
    return [block.rstrip().rstrip(";") for block in re.findall(r"^```sql\n(.*?)^```$", section, re.M | re.S)]


def _sink(conn_id: str, **arguments: Any) -> SqlTableSink:
    return sink_of(
        conn_id, "ticket_labels", TicketLabel, carry=("updated_at",), version_column="updated_at", **arguments
    )


def _columns(conn_id: str) -> dict[str, Any]:
    with Database(conn_id).connect() as connection:
        _, table = _sink(conn_id)._open()
        facts = table.facts(connection, (), ())
    assert facts is not None
    return dict(facts.columns)


def test_the_page_shows_what_is_made_and_the_queries_run(each_database: str, sql: Sql) -> None:
    (statement,) = _statements(HEADINGS[Database(each_database).dialect])
    sql(statement)
    written = _columns(each_database)
    sink = _sink(each_database)
    sink.check()
    assert (sink.land([ANSWER], INFO), sink.land([ANSWER], INFO)) == (1, 0)
    for query in _statements("Reading"):
        sql(query)
    sql("DROP TABLE ticket_labels")

    _sink(each_database, create=True).land([ANSWER], INFO)
    assert _columns(each_database) == written


def test_the_grants_of_the_page_are_enough(
    postgres_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(_statements("PostgreSQL")[0])
    sql("DROP ROLE IF EXISTS airflow")
    sql("CREATE ROLE airflow LOGIN")
    sql(f"GRANT USAGE ON SCHEMA {SCHEMA} TO airflow")
    (grant,) = _statements("Grants")
    sql(grant)
    name = "AIRFLOW_CONN_WAREHOUSE"
    owner = os.environ[name]
    monkeypatch.setenv(name, json.dumps(json.loads(owner) | {"login": "airflow"}))
    try:
        _sink(postgres_database).check()
        assert _sink(postgres_database).land([ANSWER], INFO) == 1
        sql("SELECT count(*) FROM ticket_labels")
    finally:
        monkeypatch.setenv(name, owner)
        sql("DROP OWNED BY airflow")
        sql("DROP ROLE airflow")
