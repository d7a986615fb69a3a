"""What the columns hold: embeddings, moderations, dates, JSON, carried columns; and what is MySQL's own."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from airflow_batch_llm.core.drafts import LandingInfo
from airflow_batch_llm.core.endpoints import EMBEDDINGS, MODERATIONS
from airflow_batch_llm.exceptions import ConfigurationError, SinkError
from airflow_batch_llm.sinks import table_sink
from airflow_batch_llm.sources.database import Database
from airflow_batch_llm.sources.pymysql_hook import PyMySqlHook
from tests.integration.inputs.sink_rows import BOOKKEEPING, INFO, KEY, answer_of, plain_json, sink_of

Sql = Callable[..., list[tuple[Any, ...]]]


class Event(BaseModel):
    day: date
    at: datetime | None = None
    people: dict[str, int] = {}


def test_carried_columns_stand_beside_the_answer_typed_by_the_first_answers(
    table_database: str, sql: Sql
) -> None:
    carry = ("lang", "stars", "price", "seen", "tags", "none_yet")
    sink = sink_of(table_database, carry=carry, columns={"output": "label", "lang": "language"}, create=True)
    carried = {"lang": "a\0ü", "stars": 3, "price": 1.5, "seen": True, "tags": ["x", 1], "none_yet": None}
    other = {"lang": "de", "stars": 4, "price": 2, "seen": None, "tags": None, "none_yet": None}

    assert sink.land([answer_of(1, carry=carried), answer_of(2, carry=other)], INFO) == 2
    assert sink.land([answer_of(1, carry=carried)], INFO) == 0
    sink.check()

    assert sql("SELECT label, language, stars, price, seen, none_yet FROM labels ORDER BY id") == [
        ("text", "a\ufffdü", 3, 1.5, True, None),
        ("text", "de", 4, 2.0, None, None),
    ]
    assert plain_json(sql("SELECT tags FROM labels WHERE id = 1")[0][0]) == ["x", 1]
    assert sql("SELECT sum(stars), sum(price) FROM labels") == [(7, 3.5)]


def test_a_moderation_fills_three_columns(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, endpoint=MODERATIONS, create=True)
    output = {"flagged": True, "categories": {"hate": True}, "category_scores": {"hate": 0.25}}

    assert (sink.land([answer_of(1, output)], INFO), sink.land([answer_of(1, output)], INFO)) == (1, 0)
    ((flagged, categories, scores),) = sql("SELECT flagged, categories, category_scores FROM labels")
    assert (flagged, plain_json(categories), plain_json(scores)) == (True, {"hate": True}, {"hate": 0.25})


VECTOR = [0.25, -1.5, 3.0]


def test_an_embedding_is_json_where_the_database_has_no_arrays(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, endpoint=EMBEDDINGS, columns={"output": "embedding"}, create=True)

    assert sink.land([answer_of(1, VECTOR)], INFO) == 1
    assert sink.land([answer_of(1, VECTOR)], INFO) == 0
    sink.check()
    assert plain_json(sql("SELECT embedding FROM labels")[0][0]) == VECTOR


def test_an_embedding_is_an_array_on_postgresql_without_pgvector(postgres_database: str, sql: Sql) -> None:
    sql("DROP EXTENSION IF EXISTS vector")
    sink = sink_of(postgres_database, endpoint=EMBEDDINGS, create=True)
    sink.land([answer_of(1, VECTOR)], INFO)

    assert sql("SELECT output[2], pg_typeof(output)::text FROM labels") == [(-1.5, "double precision[]")]


def test_an_embedding_is_a_vector_of_its_length_where_pgvector_is(postgres_database: str, sql: Sql) -> None:
    sql("CREATE EXTENSION IF NOT EXISTS vector")
    sink = sink_of(postgres_database, endpoint=EMBEDDINGS, create=True)

    assert sink.land([answer_of(1, VECTOR), answer_of(2, [0.1, 0.2, 0.3])], INFO) == 2
    assert sink.land([answer_of(2, [0.1, 0.2, 0.3])], INFO) == 0
    ((kind,),) = sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'labels'::regclass AND attname = 'output'"
    )
    assert kind == "vector(3)"
    assert sql("SELECT id FROM labels ORDER BY output <-> '[0.1,0.2,0.31]' LIMIT 1") == [(2,)]
    with pytest.raises(SinkError, match="refused 1 answers.*'3'"):
        sink.land([answer_of(3, [1.0])], INFO)


def test_dates_that_a_model_checked_are_dates_and_times(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, schema=Event, create=True)
    output = {"day": "2024-02-29", "at": "2026-01-01T10:00:00.5+02:00", "people": {"é": 1}}

    assert sink.land([answer_of(1, output), answer_of(2, {"day": "0900-01-01"})], INFO) == 2
    assert sink.land([answer_of(1, output)], INFO) == 0

    assert sql("SELECT id FROM labels WHERE day > '1999-01-01'") == [(1,)]
    ((day, at, people),) = sql("SELECT day, at, people FROM labels WHERE id = 1")
    assert (str(day), plain_json(people)) == ("2024-02-29", {"é": 1})
    moment = at if isinstance(at, datetime) else datetime.fromisoformat(at)  # SQLite has no such type
    assert moment.replace(tzinfo=moment.tzinfo or UTC) == datetime(2026, 1, 1, 8, 0, 0, 500_000, UTC)


def test_dates_that_nobody_checked_are_text(table_database: str, sql: Sql) -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    sink_of(table_database, schema=schema, create=True).land([answer_of(1, {"day": "2024-02-30"})], INFO)

    assert sql("SELECT day FROM labels") == [("2024-02-30",)]


def test_any_text_comes_back_as_it_was(table_database: str, sql: Sql) -> None:
    texts = [
        "it's %s %(a)s ? :b",
        '"q" \\ \\n',
        "日本 🙂 \u202eright",
        "\x01\x1f\r\n\t",
        "x" * 1_000_000,
        "",
        " a ",
    ]
    sink = sink_of(table_database, create=True)

    assert sink.land([answer_of(n, text) for n, text in enumerate(texts)], INFO) == len(texts)
    assert [text for (text,) in sql("SELECT output FROM labels ORDER BY id")] == texts
    assert sink.land([answer_of(n, text) for n, text in enumerate(texts)], INFO) == 0


def test_json_that_nests_deeply_is_text(table_database: str, sql: Sql) -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    sink_of(table_database, create=True).land([answer_of(1, deep)], INFO)

    assert sql("SELECT output FROM labels") == [("[" * 400 + "1" + "]" * 400,)]


def test_a_row_that_jsonb_cannot_hold_does_not_stop_the_others(postgres_database: str, sql: Sql) -> None:
    sql("CREATE DOMAIN own.short AS JSONB CHECK (length(value::text) < 50)")
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, people own.short, {BOOKKEEPING})")
    sink = sink_of(postgres_database, schema=Event, columns=["people"])

    with pytest.raises(SinkError, match="refused 1 answers.*'2'"):
        sink.land([answer_of(1, {"people": {"a": 1}}), answer_of(2, {"people": {"a" * 99: 1}})], INFO)
    assert sql("SELECT id FROM labels") == [(1,)]


def test_whole_numbers_come_in_either_form(table_database: str, sql: Sql) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    sink = sink_of(table_database, schema=schema, create=True)

    assert sink.land([answer_of(1, {"n": 3.0}), answer_of(2, {"n": -(2**63)})], INFO) == 2
    assert sql("SELECT n FROM labels ORDER BY id") == [(3,), (-(2**63),)]


def test_half_a_surrogate_pair_is_refused_by_row(table_database: str, sql: Sql) -> None:
    with pytest.raises(SinkError, match="refused 1 answers.*'1'"):
        sink_of(table_database, create=True).land([answer_of(1, "\ud800"), answer_of(2, "fine")], INFO)
    assert sql("SELECT id FROM labels") == [(2,)]


# -- MySQL -------------------------------------------------------------------------------------------
def test_a_further_unique_index_is_refused_on_mysql(mysql_database: str, sql: Sql) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output VARCHAR(50), {BOOKKEEPING}, n INT UNIQUE DEFAULT 1)")

    with pytest.raises(SinkError, match=r"its unique index 'n' over \['n'\] beside that of the key"):
        sink_of(mysql_database).check()


def test_a_counted_key_beside_the_own_one_is_fine_on_mysql(mysql_database: str, sql: Sql) -> None:
    columns = "n BIGINT AUTO_INCREMENT PRIMARY KEY, id VARCHAR(20) UNIQUE, output TEXT"
    sql(f"CREATE TABLE labels ({columns}, {BOOKKEEPING})")
    sink = sink_of(mysql_database)
    sink.check()

    assert (sink.land([answer_of(1, "a")], INFO), sink.land([answer_of(1, "b")], INFO)) == (1, 1)
    assert sql("SELECT id, output FROM labels") == [("1", "b")]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("_landed_at DATETIME", "", "'_landed_at' has to be DATETIME"),
        ("_landed_at DATETIME(6)", "ENGINE=MyISAM", "engine MyISAM, which has no transactions"),
    ],
)
def test_a_table_that_cannot_tell_or_cannot_take_back_is_refused_on_mysql(
    mysql_database: str, sql: Sql, columns: str, options: str, said: str
) -> None:
    own = BOOKKEEPING.replace("_landed_at TEXT", columns)
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output LONGTEXT, {own}) {options}")

    with pytest.raises(SinkError, match=said):
        sink_of(mysql_database).check()


def test_a_key_whose_collation_merges_ids_is_told_on_mysql(
    mysql_database: str, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    key = "id VARCHAR(20) COLLATE utf8mb4_general_ci UNIQUE"
    sql(f"CREATE TABLE labels ({key}, output LONGTEXT, {BOOKKEEPING}) CHARACTER SET utf8mb4")

    with caplog.at_level(logging.WARNING):
        sink_of(mysql_database).check()
    assert "'id' takes ids for the same that differ in case" in caplog.text


def test_ids_that_differ_in_case_only_are_two_rows_in_a_table_made_here(
    table_database: str, sql: Sql
) -> None:
    sink = sink_of(table_database, key=["_custom_id"], create=True)

    assert sink.land([answer_of(1, custom_id="a"), answer_of(2, custom_id="A")], INFO) == 2
    assert sql("SELECT count(*) FROM labels") == [(2,)]


def test_a_value_that_is_too_long_is_refused_and_not_cut_short_on_mysql(
    mysql_database: str, sql: Sql
) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output VARCHAR(5), {BOOKKEEPING})")

    with pytest.raises(SinkError, match="refused 1 answers.*'2'"):
        sink_of(mysql_database).land([answer_of(1, "short"), answer_of(2, "too long")], INFO)
    assert sql("SELECT id, output FROM labels") == [(1, "short")]


def test_rights_that_are_missing_are_named_on_mysql(
    mysql_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink_of(mysql_database, create=True).land([], INFO)
    name = "AIRFLOW_CONN_WAREHOUSE"
    owner = json.loads(os.environ[name])
    sql("CREATE OR REPLACE USER reader@localhost IDENTIFIED BY ''")
    sql(f'GRANT SELECT, INSERT ON "{owner["schema"]}".labels TO reader@localhost')
    monkeypatch.setenv(name, json.dumps(owner | {"login": "reader"}))
    try:
        with pytest.raises(SinkError, match="lacks UPDATE, DELETE"):
            sink_of(mysql_database, on_withdrawn="delete").check()
        with pytest.raises(SinkError, match="no right to create"):
            sink_of(mysql_database, "other", create=True).check()
    finally:
        monkeypatch.setenv(name, json.dumps(owner))
        sql("DROP USER reader@localhost")


def test_mysql_without_airflows_provider_is_reached_through_pymysql(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowException

    def not_installed(self: Any) -> Any:
        raise AirflowException('Unknown hook type "mysql"')

    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "mysql://nobody@127.0.0.1:1/x")
    monkeypatch.setattr(Connection, "get_hook", not_installed)
    assert isinstance(Database("warehouse").hook, PyMySqlHook)

    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "oracle://nobody@127.0.0.1:1/x")
    with pytest.raises(ConfigurationError, match="is of no SQL database that is installed here"):
        Database("warehouse")


def test_two_landings_in_the_same_microsecond_are_told_apart_on_mysql(
    mysql_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr(table_sink, "datetime", Stopped)
    sink = sink_of(mysql_database, create=True)
    sink.land([answer_of(1, "newer")], LandingInfo(KEY, "job-2", 1, 2.0))

    assert sink.land([answer_of(1, "older")], LandingInfo(KEY, "job-1", 1, 1.0)) == 0
    assert sql("SELECT output, _job_id FROM labels") == [("newer", "job-2")]
