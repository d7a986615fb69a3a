from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.exceptions import ConfigurationError, SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource, OpenAIBatchFile, RowsSource, SqlSource, as_source

PROMPT = RowPrompt("{{ row.body }}").resolve({})


class Reference:
    """Stands for another task's result, by the two methods that tell Airflow's references apart."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def iter_references(self) -> Any:
        raise AssertionError("not needed to resolve")

    def resolve(self, context: Any) -> Any:
        return self._value


def _ids(rows: Any) -> list[Any]:
    return [draft.custom_id for draft in RowsSource(rows, key="id").resolve({}).drafts(PROMPT)]


def test_rows_of_an_upstream_task_are_pulled_when_resolved() -> None:
    assert _ids(Reference([{"id": 1, "body": "a"}, {"id": 2, "body": "b"}])) == ["1", "2"]


def test_lists_of_a_mapped_upstream_task_are_laid_end_to_end() -> None:
    assert _ids(Reference(([{"id": 1, "body": "a"}], [], [{"id": 2, "body": "b"}]))) == ["1", "2"]


@pytest.mark.parametrize("as_dict", [True, False])
def test_a_reference_to_a_file_is_read_as_a_file(tmp_path: Path, as_dict: bool) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "x", "body": "a"}\n')
    reference: Any = {"path": str(path)} if as_dict else str(path)

    assert _ids(Reference(reference)) == _ids(reference) == ["x"]


def test_rows_above_48_kb_are_refused_and_told_where_to_go() -> None:
    rows = [{"id": i, "body": "x" * 1000} for i in range(49)]

    with pytest.raises(SourceError, match="more than 48 KB.*path"):
        RowsSource(rows, key="id")
    with pytest.raises(SourceError, match="more than 48 KB.*path"):
        _ids(Reference(rows))
    assert len(_ids(rows[:47])) == 47


@pytest.mark.parametrize("value", [None, 7, ["a"], [[["a"]]], {"file": "x"}, {"path": ""}, b"x"])
def test_what_is_neither_rows_nor_a_reference_is_refused(value: Any) -> None:
    with pytest.raises(SourceError):
        _ids(Reference(value))


def test_no_rows_are_no_drafts() -> None:
    assert _ids(Reference([])) == []


def test_the_list_of_the_dag_file_is_not_changed_and_its_rows_are_not_shown() -> None:
    rows = [{"id": 1, "body": "secret text"}]
    source = RowsSource(rows, key="id")
    rows.append({"id": 2, "body": "b"})

    assert source.serialize()["rows"]["count"] == 1
    assert "secret" not in repr(source) + str(source.serialize())
    assert source != RowsSource([{"id": 1, "body": "other text"}], key="id")


def test_plain_rows_become_a_source_and_sources_stay_what_they_are() -> None:
    source = FileSource("rows.jsonl", key="id")

    assert as_source(source) is source
    assert as_source([{"id": 1}], key="id") == RowsSource([{"id": 1}], key=["id"])
    with pytest.raises(ConfigurationError, match="need a key"):
        as_source([{"id": 1}])


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "  select\n* from tickets",
        "-- all\n/* of */ (WITH t AS (SELECT 1) SELECT * FROM t)",
        "sql/tickets.sql",
    ],
)
def test_a_query_in_the_place_of_a_source_is_told_where_it_goes(statement: str) -> None:
    for give in (
        lambda: as_source(statement),
        lambda: as_source(statement, key="id"),
        lambda: RowsSource(statement, key="id"),
        lambda: _ids(Reference(statement)),
    ):
        with pytest.raises(ConfigurationError, match=r"give SqlSource\(conn_id, sql, key=...\)"):
            give()


def test_a_path_that_begins_as_a_query_does_is_a_path() -> None:
    assert as_source("select these.jsonl", key="id") == RowsSource("select these.jsonl", key="id")


@pytest.mark.parametrize("row", [{"id": 1, "body": "a"}, {"path": "rows.jsonl", "id": 1}, {"path": None}])
def test_one_dict_in_the_place_of_rows_is_told_what_to_give(row: dict[str, Any]) -> None:
    for give in (lambda: as_source(row), lambda: as_source(row, key="id"), lambda: _ids(Reference(row))):
        with pytest.raises(SourceError, match="rows are a list of dicts"):
            give()


def test_a_path_that_another_task_gives_may_stand_in_a_dict(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "x", "body": "a"}\n')
    source = RowsSource({"path": Reference(str(path))}, key="id")

    rendered = source.resolve({"render": lambda value: {"path": value["path"].resolve({})}})

    assert [draft.custom_id for draft in rendered.drafts(PROMPT)] == ["x"]


@pytest.mark.parametrize("rows", [[[1, "a"], [2, "b"]], [(1, "a")]])
def test_tuples_of_a_cursor_are_told_to_need_their_names(rows: Any) -> None:
    with pytest.raises(SourceError, match="row 1 is in a list of int, not of dicts.*SqlSource"):
        _ids(Reference(rows))


def test_a_source_tells_what_its_ids_are_made_of() -> None:
    query = SqlSource("warehouse", "SELECT 1", key=["id", "lang"]).resolve({})
    file = FileSource("rows.csv", key="id").resolve({})
    ready = OpenAIBatchFile("requests.jsonl").resolve({})

    assert (
        query.id_origin == "ids are the key columns 'id', 'lang' of the query on 'warehouse', counted by row"
    )
    assert file.id_origin == "ids are the key column 'id' of rows.csv, counted by line"
    assert ready.id_origin == "ids are the custom_id of requests.jsonl, counted by line"
