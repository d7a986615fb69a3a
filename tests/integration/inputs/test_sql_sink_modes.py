"""How answers meet what is in the table already: versions, partitions, added rows, rows that are gone."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Answer, LandingInfo
from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.exceptions import DatabaseUnavailable, SinkError
from airflow_batch_llm.sinks.table_sink import SqlTableSink
from airflow_batch_llm.sources.database import Database
from tests.integration.inputs.sink_rows import BOOKKEEPING, INFO, KEY, answer_of, sink_of

Sql = Callable[..., list[tuple[Any, ...]]]

MONDAY = LandingInfo(KEY, "job-mon", 1, 1000.0)
TUESDAY = LandingInfo(KEY, "job-tue", 1, 2000.0)


# -- versions ----------------------------------------------------------------------------------------
def _versioned(conn_id: str, **arguments: Any) -> SqlTableSink:
    return sink_of(conn_id, carry=("at",), version_column="at", create=True, **arguments)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (9, 10),
        (1.5, 2.25),
        ("2026-01-31", "2026-02-01"),
        ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.5+00:00"),
        ("2026-01-01T10:00:00+02:00", "2026-01-01T08:30:00Z"),
        ("a-1", "a_1"),
        (None, 3),
        (None, "2026-01-01T00:00:00"),
    ],
)
def test_an_older_version_never_overwrites_a_newer_one_whatever_job_it_is_from(
    each_database: str, sql: Sql, older: Any, newer: Any
) -> None:
    sink = _versioned(each_database)
    # The first landing shows what kind of column it is.
    assert sink.land([answer_of(0, carry={"at": newer})], MONDAY) == 1
    assert sink.land([answer_of(1, "new", carry={"at": newer})], MONDAY) == 1

    assert sink.land([answer_of(1, "old", carry={"at": older})], TUESDAY) == 0
    assert sink.land([answer_of(2, "old", carry={"at": older})], TUESDAY) == 1
    assert sink.land([answer_of(2, "new", carry={"at": newer})], MONDAY) == 1

    assert sql("SELECT id, output, _job_id FROM labels WHERE id > 0 ORDER BY id") == [
        (1, "new", "job-mon"),
        (2, "new", "job-mon"),
    ]


@pytest.mark.parametrize("version", [7, "2026-01-01T00:00:00Z", None])
def test_of_equal_versions_the_later_job_stands(each_database: str, sql: Sql, version: Any) -> None:
    sink = _versioned(each_database)
    sink.land([answer_of(1, "tuesday", carry={"at": version})], TUESDAY)

    assert sink.land([answer_of(1, "monday", carry={"at": version})], MONDAY) == 0
    later = LandingInfo(KEY, "job-wed", 1, 3000.0)
    assert sink.land([answer_of(1, "wednesday", carry={"at": version})], later) == 1
    assert sql("SELECT output FROM labels") == [("wednesday",)]


def test_numbers_in_a_column_of_text_are_no_versions(each_database: str, sql: Sql) -> None:
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT, at TEXT, {BOOKKEEPING})")

    with pytest.raises(SinkError, match="'at' are numbers but the column holds text, in which 10 comes"):
        _versioned(each_database).land([answer_of(1, carry={"at": 9})], INFO)


def test_a_version_that_nobody_brings_is_told_before_anything_is_sent() -> None:
    with pytest.raises(SinkError, match=r"'at' is neither carried nor a key column: pass carry=\['at'\]"):
        sink_of("warehouse", version_column="at")
    sink_of("warehouse", version_column="id")


def test_in_a_column_of_times_versions_order_as_time_does(each_database: str, sql: Sql) -> None:
    kind = {"postgresql": "TIMESTAMPTZ", "mysql": "DATETIME(6)", "sqlite": "DATETIME"}[
        Database(each_database).dialect
    ]
    sql(f"CREATE TABLE labels (id BIGINT UNIQUE, output TEXT, at {kind}, {BOOKKEEPING})")
    sink = _versioned(each_database)
    sink.land([answer_of(1, "new", carry={"at": "2026-01-01T08:30:00Z"})], MONDAY)

    assert sink.land([answer_of(1, "old", carry={"at": "2026-01-01T10:00:00+02:00"})], TUESDAY) == 0
    assert sql("SELECT output FROM labels") == [("new",)]


# -- partitions --------------------------------------------------------------------------------------
def _daily(conn_id: str, day: str = "2026-01-01", **arguments: Any) -> SqlTableSink:
    return sink_of(
        conn_id, mode="replace_partition", partition={"day": day, "part": 2}, create=True, **arguments
    )


def _of(info: LandingInfo, rows: int, **changes: Any) -> LandingInfo:
    fields = {"final": True, "rows": rows, "answered": rows, "dead": 0} | changes
    return LandingInfo(info.key, info.job_id, info.revision, info.created_at, **fields)


def test_a_partition_is_replaced_and_the_others_stay(each_database: str, sql: Sql) -> None:
    first = [answer_of(1, "a"), answer_of(2, "b"), answer_of(3, "c")]
    assert _daily(each_database).land(first, _of(MONDAY, 3)) == 3
    assert _daily(each_database, "2026-01-02").land([answer_of(1, "other day")], _of(MONDAY, 1)) == 1

    sink = _daily(each_database)
    sink.check()
    assert sink.land([answer_of(2, "B"), answer_of(4, "d")], _of(TUESDAY, 2)) == 2

    assert sql("SELECT day, id, output, part FROM labels ORDER BY day, id") == [
        ("2026-01-01", 2, "B", 2),
        ("2026-01-01", 4, "d", 2),
        ("2026-01-02", 1, "other day", 2),
    ]


def test_a_partition_that_lands_twice_stays_as_it_is(each_database: str, sql: Sql) -> None:
    sink, answers = _daily(each_database), [answer_of(n, f"text {n}") for n in range(3000)]
    assert sink.land(iter(answers), _of(MONDAY, 3000)) == 3000
    before = sql("SELECT * FROM labels ORDER BY id")

    assert sink.land(iter(answers), _of(MONDAY, 3000)) == 0
    assert sql("SELECT * FROM labels ORDER BY id") == before


@pytest.mark.parametrize("changes", [{"dead": 1, "answered": 1}, {"final": False, "answered": 1}])
def test_a_partition_with_rows_that_have_no_answer_keeps_its_old_content_and_the_log_says_so(
    each_database: str, sql: Sql, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    sink = _daily(each_database)
    sink.land([answer_of(1, "old"), answer_of(2, "old")], _of(MONDAY, 2))

    with caplog.at_level(logging.WARNING):
        assert sink.land([answer_of(1, "new")], _of(TUESDAY, 2, **changes)) == 0

    assert sql("SELECT output FROM labels") == [("old",), ("old",)]
    assert "keeps what it had: of 2 rows 1 have an answer" in caplog.text


def test_an_older_run_that_lands_once_more_leaves_the_partition_of_a_newer_one(
    each_database: str, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    sink = _daily(each_database)
    sink.land([answer_of(1, "tuesday")], _of(TUESDAY, 1))

    with caplog.at_level(logging.WARNING):
        assert sink.land([answer_of(1, "monday"), answer_of(2, "monday")], _of(MONDAY, 2)) == 0
    assert "holds what a later job or revision has landed; job job-mon leaves it" in caplog.text
    earlier = LandingInfo(KEY, "job-tue", 0, TUESDAY.created_at)
    assert sink.land([answer_of(1, "revision 0")], _of(earlier, 1)) == 0
    assert sql("SELECT id, output FROM labels") == [(1, "tuesday")]


def test_a_source_without_rows_empties_its_partition_only_where_it_means_to(
    each_database: str, sql: Sql
) -> None:
    sink = _daily(each_database)
    sink.land([answer_of(1)], _of(MONDAY, 1))
    empty = _of(TUESDAY, 0)

    assert sink.land([], empty) == 0
    assert sql("SELECT count(*) FROM labels") == [(1,)]
    assert sink.land([], replace(empty, empty_is_content=True)) == 0
    assert sql("SELECT count(*) FROM labels") == [(0,)]


def test_readers_never_see_half_a_partition(each_database: str, sql: Sql) -> None:
    sink = _daily(each_database)
    sink.land([answer_of(n, "old") for n in range(4500)], _of(MONDAY, 4500))
    seen: list[Any] = []

    def answers() -> Iterator[Answer]:
        for number in range(4000):
            if number % 1000 == 999:
                seen.append(sql("SELECT output, count(*) FROM labels GROUP BY output"))
            yield answer_of(number, "new")

    sink.land(answers(), _of(TUESDAY, 4000))

    assert seen == [[("old", 4500)]] * 4
    assert sql("SELECT output, count(*) FROM labels GROUP BY output") == [("new", 4000)]


def test_a_partition_with_a_row_that_the_table_refuses_keeps_its_old_content(
    each_database: str, sql: Sql
) -> None:
    columns = "day VARCHAR(20), part BIGINT, id BIGINT, output TEXT CHECK (output <> 'secret')"
    sql(f"CREATE TABLE labels ({columns}, {BOOKKEEPING}, UNIQUE (day, part, id))")
    sink = _daily(each_database)
    sink.land([answer_of(1, "old")], _of(MONDAY, 1))
    answers = [answer_of(n, "secret" if n in (2100, 2500) else "new") for n in range(3000)]

    with pytest.raises(SinkError, match="the partition keeps what it had") as caught:
        sink.land(answers, _of(TUESDAY, 3000))

    assert "'2100' (" in str(caught.value) and "secret" not in str(caught.value)
    assert sql("SELECT id, output FROM labels") == [(1, "old")]


def test_rows_written_by_hand_go_with_their_partition(each_database: str, sql: Sql) -> None:
    sink = _daily(each_database)
    sink.land([answer_of(1)], _of(MONDAY, 1))
    sql("INSERT INTO labels (day, part, id) VALUES ('2026-01-01', 2, 7), ('2026-01-09', 2, 7)")

    sink.land([answer_of(1)], _of(TUESDAY, 1))
    assert sql("SELECT day, id FROM labels ORDER BY day") == [("2026-01-01", 1), ("2026-01-09", 7)]


def test_a_partition_value_that_its_column_cannot_hold_is_told_before_anything_is_sent(
    postgres_database: str, sql: Sql
) -> None:
    sql(f"CREATE TABLE labels (day DATE, part INT, id BIGINT, output TEXT, {BOOKKEEPING})")
    sql("CREATE UNIQUE INDEX ON labels (day, part, id)")

    with pytest.raises(SinkError, match="refuses the statement, or a value"):
        _daily(postgres_database, "yesterday-ish").check()
    _daily(postgres_database).check()
    assert _daily(postgres_database).land([answer_of(1)], _of(MONDAY, 1)) == 1
    assert _daily(postgres_database).land([answer_of(1)], _of(MONDAY, 1)) == 0


def test_two_processes_that_replace_a_partition_take_turns(
    postgres_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    _daily(postgres_database).land([answer_of(1, "old")], _of(MONDAY, 1))
    name = "AIRFLOW_CONN_WAREHOUSE"
    fields = json.loads(os.environ[name])
    fields["extra"]["options"] += " -c lock_timeout=50ms"

    def answers() -> Iterator[Answer]:
        # The first 2,000 are read before the partition is taken.
        for number in range(2001):
            yield answer_of(number, "new")
        monkeypatch.setenv(name, json.dumps(fields))
        with pytest.raises(DatabaseUnavailable, match="55P03"):
            _daily(postgres_database).land([answer_of(1, "other")], _of(TUESDAY, 1))

    assert _daily(postgres_database).land(answers(), _of(TUESDAY, 2001)) == 2001
    assert sql("SELECT DISTINCT output FROM labels") == [("new",)]


# -- added rows --------------------------------------------------------------------------------------
def test_every_job_adds_its_rows_once(each_database: str, sql: Sql) -> None:
    sink = sink_of(each_database, mode="append", create=True)
    sink.check()
    answers = [answer_of(1, "a"), answer_of(2, "b")]

    assert (sink.land(answers, MONDAY), sink.land(answers, MONDAY)) == (2, 0)
    assert (sink.land(answers, TUESDAY), sink.land(answers, MONDAY)) == (2, 0)
    sink.check()

    assert sql("SELECT _job_id, id, output FROM labels ORDER BY _job_id, id") == [
        ("job-mon", 1, "a"),
        ("job-mon", 2, "b"),
        ("job-tue", 1, "a"),
        ("job-tue", 2, "b"),
    ]


def test_a_row_that_its_job_answered_anew_is_changed_and_not_added(each_database: str, sql: Sql) -> None:
    sink = sink_of(each_database, mode="append", create=True)
    sink.land([answer_of(1, "a")], MONDAY)

    assert sink.land([answer_of(1, "b")], LandingInfo(KEY, "job-mon", 2, 1000.0)) == 1
    assert sink.land([answer_of(1, "a")], MONDAY) == 0
    assert sql("SELECT output, _revision FROM labels") == [("b", 2)]


def test_a_table_that_is_only_added_to_needs_job_and_id_to_be_unique(each_database: str, sql: Sql) -> None:
    columns = BOOKKEEPING.replace("_custom_id TEXT", "_custom_id VARCHAR(99)")
    columns = columns.replace("_job_id TEXT", "_job_id VARCHAR(99)")
    sql(f"CREATE TABLE labels (id BIGINT, output TEXT, {columns})")
    sink = sink_of(each_database, mode="append")

    with pytest.raises(SinkError, match=r"no unique index on exactly \['_job_id', '_custom_id'\]") as caught:
        sink.check()
    sql(str(caught.value).partition("make it with: ")[2])
    sink.check()
    assert sink.land([answer_of(1)], MONDAY) == 1


# -- rows that are gone ------------------------------------------------------------------------------
def _members(*there: int) -> Callable[[Sequence[str]], set[str]]:
    return lambda ids: {str(number) for number in there} & set(ids)


def test_rows_that_left_the_source_are_deleted_and_only_those_of_the_job(
    each_database: str, sql: Sql
) -> None:
    sink = sink_of(each_database, on_withdrawn="delete", create=True)
    sink.check()
    assert sink.deletes_withdrawn
    sink.land([answer_of(n) for n in range(1, 6)], MONDAY)
    sink.land([answer_of(5, "taken over"), answer_of(6)], TUESDAY)
    again = LandingInfo(KEY, "job-mon", 2, 1000.0)
    sink.land([answer_of(1)], again)

    # 1 landed again, 2 is dead in this revision, 3 and 4 are gone, 5 and 6 are another job's.
    assert sink.withdraw(_members(1, 2), again) == 2
    assert sink.withdraw(_members(1, 2), again) == 0
    assert sql("SELECT id FROM labels ORDER BY id") == [(1,), (2,), (5,), (6,)]


def test_rows_are_kept_unless_told_otherwise(each_database: str, sql: Sql) -> None:
    sink = sink_of(each_database, create=True)
    sink.land([answer_of(1)], MONDAY)

    assert not sink.deletes_withdrawn
    assert sink.withdraw(_members(), LandingInfo(KEY, "job-mon", 2, 1000.0)) == 0
    assert sql("SELECT id FROM labels") == [(1,)]


def test_nothing_is_deleted_where_there_is_no_table(each_database: str) -> None:
    sink = sink_of(each_database, on_withdrawn="delete", create=True)

    assert sink.withdraw(_members(), INFO) == 0


def test_the_right_to_delete_is_asked_for_where_it_is_needed(
    postgres_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink_of(postgres_database, create=True).land([], INFO)
    sql("DROP ROLE IF EXISTS writer")
    sql("CREATE ROLE writer LOGIN")
    sql("GRANT USAGE ON SCHEMA own TO writer")
    sql("GRANT SELECT, INSERT, UPDATE ON labels TO writer")
    name = "AIRFLOW_CONN_WAREHOUSE"
    owner = os.environ[name]
    monkeypatch.setenv(name, json.dumps(json.loads(owner) | {"login": "writer"}))
    try:
        sink_of(postgres_database).check()
        with pytest.raises(SinkError, match="lacks DELETE"):
            sink_of(postgres_database, on_withdrawn="delete").check()
    finally:
        monkeypatch.setenv(name, owner)
        sql("DROP OWNED BY writer")
        sql("DROP ROLE writer")


def test_landing_in_each_round_is_told_to_the_engine() -> None:
    assert sink_of("warehouse", publish="each_round").each_round
    assert not sink_of("warehouse").each_round


def test_a_connection_that_commits_by_itself_replaces_a_partition_as_a_whole_all_the_same(
    postgres_database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    opened = PostgresHook.get_conn

    def by_itself(self: Any) -> Any:
        connection = opened(self)
        connection.autocommit = True
        return connection

    _daily(postgres_database).land([answer_of(1, "old")], _of(MONDAY, 1))
    monkeypatch.setattr(PostgresHook, "get_conn", by_itself)

    def breaks_off() -> Iterator[Answer]:
        for number in range(2500):
            yield answer_of(number, "new")
        raise OSError("the storage does not answer")

    with pytest.raises(OSError):
        _daily(postgres_database).land(breaks_off(), _of(TUESDAY, 2500))
    assert sql("SELECT id, output FROM labels") == [(1, "old")]


def test_two_map_indices_never_take_each_other_out_of_a_partition(each_database: str, sql: Sql) -> None:
    def index(number: int, created_at: float) -> LandingInfo:
        key = JobKey("n", "d", "run-1", "t", number)
        return LandingInfo(key, key.job_id, 1, created_at, rows=1, answered=1)

    sink = _daily(each_database)
    assert sink.land([answer_of(1, "first")], index(3, 1000.0)) == 1
    for other in (index(0, 2000.0), index(4, 500.0)):
        with pytest.raises(SinkError, match=r"has the answers of map index 3, which those of map index"):
            sink.land([answer_of(2, "second")], other)
    assert sql("SELECT id, output FROM labels") == [(1, "first")]
    assert _daily(each_database, "2026-01-02").land([answer_of(2, "second")], index(0, 2000.0)) == 1
    assert sink.land([answer_of(1, "again")], index(3, 1000.0)) == 1


def test_of_two_ids_that_differ_in_case_only_the_one_that_is_gone_is_deleted(
    each_database: str, sql: Sql
) -> None:
    sink = sink_of(each_database, on_withdrawn="delete", create=True)
    sink.land([answer_of(1, custom_id="a"), answer_of(2, custom_id="A")], MONDAY)

    again = LandingInfo(KEY, "job-mon", 2, 1000.0, rows=1, dead=1)
    assert sink.withdraw(lambda ids: {"A"} & set(ids), again) == 1
    assert sql("SELECT _custom_id FROM labels") == [("A",)]
