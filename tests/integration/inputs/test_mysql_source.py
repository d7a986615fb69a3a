"""Queries on MariaDB through PyMySQL; Airflow's own hook needs a C compiler."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL

from airflow_batch_llm.exceptions import DatabaseUnavailable, SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import SqlSource
from tests.integration.inputs.conftest import CONN_ID, ENV
from tests.mariadb import execute

PROMPT = RowPrompt("{{ row.body }}").resolve({})


@pytest.fixture(scope="module")
def database(mariadb_url: Callable[[], URL]) -> URL:
    """A database with three tickets."""
    url = mariadb_url()
    execute(
        url,
        "CREATE TABLE tickets (id BIGINT, body LONGTEXT CHARACTER SET utf8mb4)",
        "INSERT INTO tickets VALUES (1, 'a'), (2, '日本, 🙂'), (3, NULL)",
    )
    return url


@pytest.fixture(autouse=True)
def warehouse(database: URL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The database as connection ``warehouse``."""
    extra = {"unix_socket": database.query["unix_socket"], "client": "pymysql"}
    fields = {"conn_type": "mysql", "login": database.username, "schema": database.database, "extra": extra}
    monkeypatch.setenv(ENV, json.dumps(fields))
    yield


def _drafts(statement: str, parameters: Any = None, chunk_size: int = 2) -> Iterator[Any]:
    return (
        SqlSource(CONN_ID, statement, parameters, key="id", chunk_size=chunk_size).resolve({}).drafts(PROMPT)
    )


def test_rows_come_in_order_with_all_characters() -> None:
    drafts = list(_drafts("SELECT id, COALESCE(body, '-') AS body FROM tickets ORDER BY id"))
    assert [(d.line, d.custom_id, d.row["body"]) for d in drafts] == [
        (1, "1", "a"),
        (2, "2", "日本, 🙂"),
        (3, "3", "-"),
    ]


def test_values_are_bound_by_the_driver() -> None:
    statement = "SELECT id, body FROM tickets WHERE body = %(body)s OR body LIKE '%%本%%'"
    assert [d.custom_id for d in _drafts(statement, {"body": "a"})] == ["1", "2"]
    assert [d.custom_id for d in _drafts("SELECT id, body FROM tickets WHERE id = %s", ["1"])] == ["1"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT id, nope FROM tickets", "Unknown column 'nope'"),
        ("SELECT id FROM nowhere", "nowhere' doesn't exist"),
        ("SELECT id, no_such_function(1) FROM tickets", "no_such_function does not exist"),
        ("SELECT a.id FROM tickets a, tickets b WHERE id = 1", "ambiguous"),
        ("SELECT id, (SELECT body FROM tickets) AS body FROM tickets", "1242"),
        ("SELECT id, body FROM tickets WHERE id = 9223372036854775807 + id", "1690"),
        ("SELEKT 1", "1064"),
    ],
)
def test_a_statement_that_is_at_fault_is_not_tried_again(statement: str, said: str) -> None:
    with pytest.raises(SourceError, match="refuses") as caught:
        list(_drafts(statement))
    assert said in str(caught.value)


def test_a_syntax_error_quotes_no_value() -> None:
    with pytest.raises(SourceError) as caught:
        list(_drafts("SELECT id FROM tickets WHERE %(word)s SYNTAX", {"word": "secret-word"}))
    assert "secret-word" not in str(caught.value)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_large_result_is_streamed_and_a_connection_that_breaks_off_is_tried_again(database: URL) -> None:
    reading = _drafts("SELECT seq AS id, REPEAT('x', 100000) AS body FROM seq_1_to_2000")
    next(reading)
    # A result that was fetched as a whole would leave the session asleep.
    others = "SELECT id FROM information_schema.processlist WHERE command = 'Query' AND id <> CONNECTION_ID()"
    (session,) = _rows(others)
    execute(database, f"KILL {session['id']}")
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        list(reading)
    del reading
    gc.collect()


def test_a_reading_that_is_given_up_closes_its_connection() -> None:
    reading = _drafts("SELECT seq AS id, 'a' AS body FROM seq_1_to_100")
    next(reading)
    reading.close()
    assert _rows("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()") == []


def _rows(statement: str) -> list[dict[str, Any]]:
    return [d.row for d in _drafts(f"SELECT t.*, '-' AS body FROM ({statement}) t")]
