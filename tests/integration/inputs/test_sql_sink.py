from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from airflow_batch_llm.core.drafts import Answer, LandingInfo
from airflow_batch_llm.exceptions import ConfigurationError, DatabaseUnavailable, SinkError
from airflow_batch_llm.sources import database as database_module
from airflow_batch_llm.sources.database import Database
from tests.integration.inputs.sink_rows import BOOKKEEPING, INFO, KEY, answer_of, plain_json, sink_of

Sql = Callable[..., list[tuple[Any, ...]]]


class Label(BaseModel):
    label: Literal["bug", "other"]
    score: float | None = None
    urgent: bool = False
    tags: list[str] = []


def _mending(error: SinkError, after: str) -> str:
    """Return the statements that an error offers."""
    return str(error).partition(after)[2]


def test_a_table_is_made_and_filled_with_answers_and_bookkeeping(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, schema=Label, create=True)
    sink.check()
    output = {"label": "bug", "score": 0.5, "urgent": True, "tags": ["é", "b"]}

    assert sink.land([answer_of(1, output), answer_of(2, output | {"score": None})], INFO) == 2

    sink.check()
    assert sql("SELECT id, label, score FROM labels ORDER BY id") == [(1, "bug", 0.5), (2, "bug", None)]
    assert [plain_json(tags) for (tags,) in sql("SELECT tags FROM labels")] == [["é", "b"]] * 2
    assert sql(
        'SELECT urgent, "_custom_id", "_model", "_job_id", "_run_id", "_revision", "_round" FROM labels'
    ) == [
        (True, "1", "m-1", "job-1", "run-1", 1, 0),
        (True, "2", "m-1", "job-1", "run-1", 1, 0),
    ]
    assert sql("SELECT count(*) FROM labels WHERE _landed_at IS NOT NULL") == [(2,)]


def test_landing_the_same_answers_again_changes_nothing(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, create=True)
    answers = [answer_of(number, f"text {number}") for number in range(5000)]

    assert sink.land(iter(answers), INFO) == 5000
    before = sql("SELECT * FROM labels ORDER BY id")
    assert sink.land(iter(answers), INFO) == 0

    assert sql("SELECT * FROM labels ORDER BY id") == before


def test_a_changed_answer_replaces_the_old_one_and_only_that(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, create=True)
    sink.land([answer_of(1), answer_of(2)], INFO)

    assert sink.land([answer_of(1), answer_of(2, None), answer_of(3)], INFO) == 2

    assert sql("SELECT id, output FROM labels ORDER BY id") == [(1, "text"), (2, None), (3, "text")]


def test_an_older_revision_of_the_job_never_overwrites_a_newer_one(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, create=True)
    sink.land([answer_of(1, "new")], LandingInfo(KEY, "job-1", 2))

    assert sink.land([answer_of(1, "old")], LandingInfo(KEY, "job-1", 1)) == 0
    assert sql("SELECT output FROM labels") == [("new",)]
    assert sink.land([answer_of(1, "another job")], LandingInfo(KEY, "job-2", 1)) == 1


def test_an_older_job_that_lands_once_more_leaves_the_rows_of_newer_jobs_alone(
    table_database: str, sql: Sql
) -> None:
    sink = sink_of(table_database, create=True)
    monday = LandingInfo(KEY, "job-mon", 1, 1_700_000_000.25)
    tuesday = LandingInfo(KEY, "job-tue", 1, 1_700_086_400.5)
    assert sink.land([answer_of(7, "monday"), answer_of(8, "monday")], monday) == 2
    assert sink.land([answer_of(7, "tuesday")], tuesday) == 1

    # A re-drive of Monday's job has answered one row more, in a later revision, and lands all its answers.
    again = LandingInfo(KEY, "job-mon", 5, monday.created_at)
    assert sink.land([answer_of(7, "monday"), answer_of(8, "mended"), answer_of(9, "monday")], again) == 2

    assert sql("SELECT id, output, _job_id FROM labels ORDER BY id") == [
        (7, "tuesday", "job-tue"),
        (8, "mended", "job-mon"),
        (9, "monday", "job-mon"),
    ]
    assert sink.land([answer_of(8, "tuesday")], tuesday) == 1
    assert sql("SELECT output, _job_created_at FROM labels WHERE id = 8") == [("tuesday", 1_700_086_400.5)]


def test_a_row_that_no_known_job_wrote_is_overwritten(table_database: str, sql: Sql) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT, {BOOKKEEPING})")
    sql("INSERT INTO labels (id, output, _job_id) VALUES (1, 'by hand', NULL), (2, 'before', 'job-0')")

    assert (
        sink_of(table_database).land(
            [answer_of(1, "a"), answer_of(2, "b")], LandingInfo(KEY, "job-1", 1, 5.0)
        )
        == 2
    )
    assert sql("SELECT output FROM labels ORDER BY id") == [("a",), ("b",)]


def test_a_table_of_an_earlier_version_is_told_what_it_lacks_also_on_landing(
    table_database: str, sql: Sql
) -> None:
    columns = BOOKKEEPING.replace("_job_created_at DOUBLE PRECISION, ", "")
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT, {columns})")
    sink = sink_of(table_database, create=True)

    with pytest.raises(SinkError, match="has no column '_job_created_at'; add with: "):
        sink.check()
    with pytest.raises(SinkError, match="has no column '_job_created_at'") as caught:
        sink.land([answer_of(1)], INFO)
    sql(_mending(caught.value, "add with: "))

    assert sink.land([answer_of(1)], INFO) == 1


def test_a_table_that_was_dropped_meanwhile_is_told(table_database: str, sql: Sql) -> None:
    with pytest.raises(SinkError, match="there is no table"):
        sink_of(table_database).land([answer_of(1)], INFO)


def test_odd_identifiers_are_taken_as_they_are(table_database: str, sql: Sql) -> None:
    table = '"Label""s of 100%; DROP"'
    sink = sink_of(
        table_database,
        table,
        key={"id": "ticket id"},
        columns={
            "output": 'out "put" %s?',
        },
        create=True,
    )
    sink.check()

    assert sink.land([answer_of(1)], INFO) == 1
    assert sink.land([answer_of(1, "b")], INFO) == 1
    sink.check()
    assert sql(f'SELECT "ticket id", "out ""put"" %s?" FROM {table}') == [(1, "b")]


def test_nul_becomes_a_replacement_character(table_database: str, sql: Sql) -> None:
    sink_of(table_database, create=True).land([answer_of(1, "a\0b"), answer_of(2, ["a\0"])], INFO)

    assert sql("SELECT output FROM labels ORDER BY id") == [("a\ufffdb",), ('["a\ufffd"]',)]


def test_a_key_of_several_columns_and_a_key_of_ids_work(table_database: str, sql: Sql) -> None:
    answer = answer_of(1, key={"id": 1, "lang": "de"}, custom_id='[1,"de"]')
    for table, key in (("a", ["id", "lang"]), ("b", ["_custom_id"])):
        sink = sink_of(table_database, table, key=key, create=True)
        assert (sink.land([answer], INFO), sink.land([answer], INFO)) == (1, 0)
        sink.check()

    assert sql("SELECT id, lang FROM a") == [(1, "de")]
    assert sql("SELECT _custom_id FROM b") == [('[1,"de"]',)]


def test_a_key_that_would_make_answers_meet_is_refused(table_database: str) -> None:
    sink = sink_of(table_database, create=True)

    with pytest.raises(SinkError, match="leaves out 'lang'"):
        sink.land([answer_of(1, key={"id": 1, "lang": "de"})], INFO)


def test_a_job_without_answers_still_makes_the_table(table_database: str, sql: Sql) -> None:
    sink = sink_of(table_database, create=True)

    assert sink.land([], INFO) == 0
    assert sql("SELECT count(*) FROM labels") == [(0,)]


def test_a_missing_table_is_told_with_the_statement_that_makes_it(table_database: str, sql: Sql) -> None:
    with pytest.raises(SinkError, match="there is no table") as caught:
        sink_of(table_database).check()

    sql(_mending(caught.value, "match): "))
    sink_of(table_database).check()


def test_missing_columns_and_index_are_told_with_the_statements_that_make_them(
    table_database: str, sql: Sql
) -> None:
    sql("CREATE TABLE labels (id BIGINT, output TEXT, _model TEXT)")
    sink = sink_of(table_database)

    with pytest.raises(SinkError, match="has no column '_custom_id', '_job_id'") as caught:
        sink.check()
    for statement in _mending(caught.value, "add with: ").split("; "):
        sql(statement)
    with pytest.raises(SinkError, match=r"no unique index on exactly \['id'\]") as caught:
        sink.check()
    sql(_mending(caught.value, "make it with: "))
    sink.check()

    assert sink.land([answer_of(1)], INFO) == 1


@pytest.mark.parametrize(
    "index",
    [
        "CREATE UNIQUE INDEX u ON labels (id, output)",
        "CREATE UNIQUE INDEX u ON labels (id) WHERE output IS NULL",
        "CREATE UNIQUE INDEX u ON labels (abs(id))",
        "CREATE INDEX u ON labels (id)",
    ],
)
def test_an_index_that_does_not_decide_the_key_is_not_enough(database: str, sql: Sql, index: str) -> None:
    sql(f"CREATE TABLE labels (id BIGINT, output TEXT, {BOOKKEEPING})")
    sql(index)

    with pytest.raises(SinkError, match="no unique index on exactly"):
        sink_of(database).check()


@pytest.mark.parametrize("key", ["id INTEGER PRIMARY KEY", "id BIGINT UNIQUE", "id TEXT PRIMARY KEY"])
def test_a_table_of_the_users_own_will_do(table_database: str, sql: Sql, key: str) -> None:
    sql(f"CREATE TABLE labels ({key}, output TEXT, note TEXT NOT NULL DEFAULT '-', {BOOKKEEPING})")
    sink = sink_of(table_database)
    sink.check()

    assert sink.land([answer_of(1)], INFO) == 1
    assert sink.land([answer_of(1)], INFO) == 0


def test_a_column_that_answers_cannot_fill_is_told(table_database: str, sql: Sql) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT, note TEXT NOT NULL, {BOOKKEEPING})")

    with pytest.raises(SinkError, match="demands a value for 'note'"):
        sink_of(table_database).check()


def test_a_row_the_table_refuses_does_not_stop_the_others(table_database: str, sql: Sql) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT CHECK (output <> 'secret'), {BOOKKEEPING})")
    answers = [answer_of(number, "secret" if number in (3, 2500) else "fine") for number in range(4000)]

    with pytest.raises(SinkError, match="refused 2 answers") as caught:
        sink_of(table_database).land(iter(answers), INFO)

    assert "'3' (" in str(caught.value) and "'2500' (" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None
    assert sql("SELECT count(*) FROM labels") == [(3998,)]


def test_a_number_too_large_for_its_column_names_its_row(table_database: str, sql: Sql) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    sink = sink_of(table_database, schema=schema, create=True)

    with pytest.raises(SinkError, match="refused 1 answers.*'1'"):
        sink.land([answer_of(1, {"n": 10**30}), answer_of(2, {"n": 1})], INFO)
    assert sql("SELECT id, n FROM labels") == [(2, 1)]


def test_a_table_that_takes_no_row_is_given_up_soon(table_database: str, sql: Sql) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT CHECK (output = 'never'), {BOOKKEEPING})")
    taken: list[int] = []

    def answers() -> Iterator[Answer]:
        for number in range(100_000):
            taken.append(number)
            yield answer_of(number)

    with pytest.raises(SinkError, match="takes no answer"):
        sink_of(table_database).land(answers(), INFO)
    assert len(taken) <= 2000


def test_postgresql_columns_of_types_json_and_jsonb_are_filled(postgres_database: str, sql: Sql) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, label TEXT, tags JSON, score JSONB, {BOOKKEEPING})")
    sink = sink_of(postgres_database, schema=Label, columns=["label", "tags", "score"])
    answer = answer_of(1, {"label": "bug", "tags": ["a\0"], "score": None})

    assert (sink.land([answer], INFO), sink.land([answer], INFO)) == (1, 0)
    assert sql("SELECT tags->>0 FROM labels") == [("a\ufffd",)]


def test_a_schema_is_found_by_name(postgres_database: str, sql: Sql) -> None:
    with pytest.raises(SinkError, match="no such schema"):
        sink_of(postgres_database, "mart.labels", create=True).check()
    sql("CREATE SCHEMA mart")
    sink = sink_of(postgres_database, "mart.labels", create=True)
    sink.check()

    assert sink.land([answer_of(1)], INFO) == 1
    assert sql("SELECT count(*) FROM mart.labels") == [(1,)]


def test_a_right_that_is_missing_is_named(
    postgres_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT, {BOOKKEEPING})")
    sql("DROP ROLE IF EXISTS reader")
    sql("CREATE ROLE reader LOGIN")
    sql("GRANT USAGE ON SCHEMA own TO reader")
    sql("GRANT SELECT ON labels TO reader")
    name = "AIRFLOW_CONN_WAREHOUSE"
    owner = os.environ[name]
    monkeypatch.setenv(name, json.dumps(json.loads(owner) | {"login": "reader"}))
    try:
        with pytest.raises(SinkError, match="lacks INSERT, UPDATE"):
            sink_of(postgres_database).check()
        with pytest.raises(SinkError, match="no right to create"):
            sink_of(postgres_database, "other", create=True).check()
    finally:
        monkeypatch.setenv(name, owner)
        sql("DROP OWNED BY reader")
        sql("DROP ROLE reader")


def test_a_database_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": "hidden-word"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(fields))

    for use in (lambda sink: sink.check(), lambda sink: sink.land([answer_of(1)], INFO)):
        with pytest.raises(DatabaseUnavailable, match="'warehouse'.*OperationalError") as caught:
            use(sink_of("warehouse"))
        assert not caught.value.deterministic
        assert "hidden-word" not in str(caught.value)


def test_a_table_that_is_locked_is_tried_again(
    sqlite_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_SQLITE_BUSY_SECONDS", 0)
    sink = sink_of(sqlite_database, create=True)
    sink.land([], INFO)

    with Database(sqlite_database).connect() as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseUnavailable, match="SQLITE_BUSY"):
            sink.land([answer_of(1)], INFO)
        other.rollback()
    assert sink.land([answer_of(1)], INFO) == 1


def test_other_databases_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from airflow.providers.sqlite.hooks.sqlite import SqliteHook

    monkeypatch.setenv(
        "AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "x")})
    )
    monkeypatch.setattr(SqliteHook, "conn_type", "oracle")

    with pytest.raises(
        SinkError, match="oracle, which is not supported; there are mysql, postgresql, sqlite"
    ):
        sink_of("warehouse").check()


def test_an_unknown_connection_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no connection 'nowhere'"):
        sink_of("nowhere").check()
