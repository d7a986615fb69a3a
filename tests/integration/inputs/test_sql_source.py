from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.jsonl import dumps, loads
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import ConfigurationError, DatabaseUnavailable, SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import SqlSource
from airflow_batch_llm.sources.database import Database, driver_of

Sql = Callable[..., list[tuple[Any, ...]]]

PROMPT = RowPrompt("{{ row.body }}").resolve({})

_SERIES = {
    "sqlite": (
        "WITH RECURSIVE g(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM g WHERE id < 100000) "
        "SELECT id, printf('%.2000c', 'x') AS body FROM g"
    ),
    "postgresql": "SELECT id, repeat('x', 2000) AS body FROM generate_series(1, 100000) AS id",
}

_LONG_SERIES = {"postgresql": "SELECT id, repeat('x', 500000) AS body FROM generate_series(1, 400) AS id"}

_COUNT_ROWS = """
import sys
from airflow.providers.postgres.hooks import postgres
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import SqlSource
postgres.USE_PSYCOPG3 = sys.argv[2] == "psycopg"
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
source = SqlSource("warehouse", sys.argv[1], key="id").resolve({})
drafts = source.drafts(RowPrompt("{{ row.body }}").resolve({}))
next(drafts)
before = peak()
count = 1 + sum(1 for _ in drafts)
print(count, peak() - before)
"""


def _drafts(conn_id: str, statement: str, *arguments: Any, **more: Any) -> list[Any]:
    return list(SqlSource(conn_id, statement, *arguments, **{"key": "id", **more}).resolve({}).drafts(PROMPT))


def test_rows_come_numbered_with_key_and_body(database: str, sql: Sql) -> None:
    sql("CREATE TABLE tickets (id BIGINT, body TEXT)")
    sql("INSERT INTO tickets VALUES (1, 'a'), (2, 'b'), (3, 'c')")

    drafts = _drafts(database, "SELECT id, body FROM tickets ORDER BY id", chunk_size=2)

    assert [(d.line, d.custom_id, d.key, d.row) for d in drafts] == [
        (1, "1", {"id": 1}, {"id": 1, "body": "a"}),
        (2, "2", {"id": 2}, {"id": 2, "body": "b"}),
        (3, "3", {"id": 3}, {"id": 3, "body": "c"}),
    ]
    assert [d.body["messages"][0]["content"] for d in drafts] == ["a", "b", "c"]


def test_an_empty_result_has_no_drafts(database: str) -> None:
    assert _drafts(database, "SELECT 1 AS id, 'a' AS body WHERE 1 = 0") == []


def test_parameters_are_bound_and_percent_signs_alone_are_text(database: str) -> None:
    postgres = Database(database).dialect == "postgresql"
    statement = "SELECT 1 AS id, CAST({} AS TEXT) AS body".format("%(a)s" if postgres else ":a")
    value = "'; DROP TABLE x; -- 100% %s"

    assert [d.row["body"] for d in _drafts(database, statement, {"a": value})] == [value]
    assert [d.row["body"] for d in _drafts(database, "SELECT 1 AS id, '100%' AS body")] == ["100%"]


def test_templated_values_are_rendered_for_each_task(database: str) -> None:
    mark = "%s" if Database(database).dialect == "postgresql" else "?"
    source = SqlSource(database, f"SELECT 1 AS id, CAST({mark} AS TEXT) AS body", ["{{ ds }}"], key="id")

    for day in ("2026-01-01", "2026-01-02"):
        reader = source.resolve({"render": lambda value, day=day: value.replace("{{ ds }}", day)})
        assert [d.row["body"] for d in reader.drafts(PROMPT)] == [day]


def test_a_null_key_gives_no_id(database: str) -> None:
    drafts = _drafts(database, "SELECT 1 AS id, 'a' AS body UNION ALL SELECT NULL, 'b' ORDER BY body")

    assert [(d.line, d.custom_id) for d in drafts] == [(1, "1"), (2, None)]


@pytest.mark.parametrize("where", ["", " WHERE 1 = 0"])
def test_an_unknown_key_column_is_named_even_without_rows(database: str, where: str) -> None:
    with pytest.raises(SourceError, match="no key column 'id'; it has: ident, body"):
        _drafts(database, f"SELECT 1 AS ident, 'a' AS body{where}")


def test_two_columns_of_one_name_are_refused(database: str) -> None:
    with pytest.raises(SourceError, match="two columns 'id'"):
        _drafts(database, "SELECT 1 AS id, 2 AS id, 'a' AS body")


@pytest.mark.parametrize("statement", ["SELECT nope FROM nowhere", "SELEKT 1", "INSERT INTO t VALUES (1)"])
def test_a_wrong_statement_is_not_tried_again(database: str, sql: Sql, statement: str) -> None:
    sql("CREATE TABLE t (id BIGINT)")

    with pytest.raises(SourceError):
        _drafts(database, statement)
    assert sql("SELECT * FROM t") == []


def test_a_parameter_that_is_missing_is_not_tried_again(database: str) -> None:
    mark = "%(b)s" if Database(database).dialect == "postgresql" else ":b"

    with pytest.raises(SourceError, match="refuses the statement"):
        _drafts(database, f"SELECT {mark} AS id, 'a' AS body", {"a": 1})


def test_an_unknown_connection_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no connection 'nowhere'"):
        _drafts("nowhere", "SELECT 1")


@pytest.mark.parametrize("conn_type", ["smtp", "no-such-type", ""])
def test_a_connection_of_no_database_is_refused(conn_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MAIL", json.dumps({"conn_type": conn_type, "host": "localhost"}))

    with pytest.raises(ConfigurationError, match="connection 'mail'.*is of no SQL database"):
        _drafts("mail", "SELECT 1")


@pytest.mark.parametrize(
    "address",
    ["sqlite:////no-such-folder/x.db", '{"conn_type": "sqlite", "host": "/no-such-folder/x.db"}'],
)
def test_a_sqlite_connection_without_a_file_is_told_how_to_write_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FILE", address)

    hint = re.escape('{"conn_type": "sqlite", "host": "/abs/path.db"}')
    with pytest.raises(ConfigurationError, match=f"connection 'file' names no file.*{hint}"):
        _drafts("file", "SELECT 1")


@pytest.mark.parametrize("psycopg3", [True, False])
def test_a_database_that_does_not_answer_is_tried_again(
    psycopg3: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.postgres.hooks import postgres

    monkeypatch.setattr(postgres, "USE_PSYCOPG3", psycopg3)
    fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": "hidden-word"}
    monkeypatch.setenv("AIRFLOW_CONN_GONE", json.dumps(fields))

    with pytest.raises(DatabaseUnavailable, match="connection 'gone' cannot be reached .OperationalError"):
        _drafts("gone", "SELECT 1")


def test_fields_that_the_driver_does_not_take_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "extra": {"pasword": "hidden-word"}}
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps(fields))

    with pytest.raises(ConfigurationError, match="connection 'odd' cannot be used as it is") as caught:
        _drafts("odd", "SELECT 1")
    assert "hidden-word" not in str(caught.value)


def test_what_is_wrong_with_a_statement_is_told(database: str) -> None:
    for statement, said in (
        ("SELECT nope, 'a' AS body FROM (SELECT 1 AS id) AS t", "nope"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELEKT 1", "SELEKT"),
    ):
        with pytest.raises(SourceError, match=f"'warehouse' refuses .*{said}"):
            _drafts(database, statement)


def test_a_value_that_breaks_the_query_far_down_is_not_told(database: str, sql: Sql) -> None:
    sql("CREATE TABLE t (id BIGINT, body TEXT)")
    rows = ", ".join(f"({number}, '{number}')" for number in range(30))
    sql(f"INSERT INTO t VALUES {rows}, (30, 'my secret')")
    broken = "CAST(body AS INT)"
    if Database(database).dialect == "sqlite":
        broken = "CASE WHEN body = 'my secret' THEN json(body) ELSE body END"

    reading = SqlSource(database, f"SELECT id, {broken} AS body FROM t", key="id", chunk_size=10)
    taken = []
    with pytest.raises(SourceError, match="connection 'warehouse' refuses") as caught:
        taken.extend(reading.resolve({}).drafts(PROMPT))

    assert "secret" not in str(caught.value) and caught.value.__suppress_context__
    assert taken, "the first rows had come by then"


def test_what_the_driver_cannot_hold_is_the_queries_fault(postgres_database: str) -> None:
    with pytest.raises(SourceError, match="connection 'warehouse' refuses") as caught:
        _drafts(postgres_database, "SELECT 1 AS id, '20000-01-01'::timestamp AS body")
    assert "20000" not in str(caught.value)


def test_a_connection_that_breaks_off_is_tried_again(postgres_database: str, sql: Sql) -> None:
    statement = "SELECT id, pg_backend_pid() AS body FROM generate_series(1, 100) AS id"
    reading = SqlSource(postgres_database, statement, key="id", chunk_size=2).resolve({}).drafts(PROMPT)
    pid = next(reading).row["body"]
    sql("SELECT pg_terminate_backend(%s)", pid)

    with pytest.raises(DatabaseUnavailable, match="connection 'warehouse' does not answer"):
        list(reading)


def test_what_postgresql_has_beyond_json_is_stored_as_text(postgres_database: str) -> None:
    (draft,) = _drafts(
        postgres_database,
        "SELECT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS id, 1.50::numeric AS amount, "
        "'2026-01-02T03:04:05+00'::timestamptz AS at, '\\x00ff'::bytea AS raw, '{\"a\": [1]}'::jsonb AS doc, "
        "ARRAY[1, 2] AS list, 'NaN'::float8 AS nan, int4range(1, 5) AS span, 'x' AS body",
    )

    stored = loads(dumps(draft.row))
    assert draft.custom_id == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert (stored["amount"], stored["raw"], stored["doc"]) == ("1.50", "AP8=", {"a": [1]})
    assert (stored["list"], stored["nan"]) == ([1, 2], None)
    assert isinstance(stored["span"], str)


def test_text_in_sqlite_that_is_not_utf8_is_the_fault_of_its_row_alone(
    sqlite_database: str, sql: Sql
) -> None:
    sql("CREATE TABLE t (id INTEGER, body TEXT)")
    sql("INSERT INTO t VALUES (1, CAST(x'61ff' AS TEXT)), (2, 'fine')")

    drafts = _drafts(sqlite_database, "SELECT id, body FROM t ORDER BY id")

    assert [d.fault for d in drafts] == [(Verdict.BAD_REQUEST, "unencodable_text"), None]
    assert loads(dumps(drafts[0].row)) == {"id": 1, "body": "a\ufffd"}


def test_a_reading_that_is_given_up_closes_its_connection(postgres_database: str, sql: Sql) -> None:
    sql("CREATE TABLE t AS SELECT id, 'a' AS body FROM generate_series(1, 100) AS id")
    reading = (
        SqlSource(postgres_database, "SELECT * FROM t", key="id", chunk_size=2).resolve({}).drafts(PROMPT)
    )
    next(reading)
    reading.close()

    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    )
    assert sql(others) == [(0,)]
    sql("DROP TABLE t")


def _read_elsewhere(database: str, statements: dict[str, str]) -> tuple[int, int]:
    """Return the rows that a process of its own read, and the KB that its memory grew by after the first."""
    opened = Database(database)
    with opened.connect() as connection:
        driver = driver_of(connection).__name__
    run = subprocess.run(
        [sys.executable, "-c", _COUNT_ROWS, statements[opened.dialect], driver],
        env=os.environ,
        capture_output=True,
        check=True,
        text=True,
    )
    count, grown_kb = map(int, run.stdout.split()[-2:])
    return count, grown_kb


def test_a_large_result_is_streamed_in_little_memory(database: str) -> None:
    count, grown_kb = _read_elsewhere(database, _SERIES)

    assert count == 100_000
    # The result is 200 MB; 8 MB of it are fetched at a time.
    assert grown_kb < 50_000


def test_rows_of_long_texts_are_fetched_a_few_at_a_time(open_database: Callable[[str], str]) -> None:
    count, grown_kb = _read_elsewhere(open_database("psycopg"), _LONG_SERIES)

    assert count == 400
    # The result is 200 MB, in less rows than a chunk has; the first hundred are 50 MB.
    assert grown_kb < 50_000
