from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, RootModel

from airflow_batch_llm.core.drafts import Answer, LandingInfo
from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.exceptions import ConfigurationError, SinkError
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.sinks import SqlSink
from airflow_batch_llm.sinks.cells import cell
from airflow_batch_llm.sinks.columns import layout
from airflow_batch_llm.sources.database import quote, split_table

INFO = LandingInfo(JobKey("n", "d", "run", "t"), "job", 2, 1.5)


class Inner(BaseModel):
    a: int


class Label(BaseModel):
    label: Literal["bug", "other"]
    count: int | None
    score: float
    urgent: bool
    tags: list[str]
    inner: Inner
    either: int | str


def _answer(output: Any, **changes: Any) -> Answer:
    fields: dict[str, Any] = {"key": {"id": 1}, "custom_id": "1", "wire_id": "w", "model": "m", "usage": {}}
    return Answer(**{**fields, "output": output, "finish_reason": "stop", "round": 0, **changes})


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def test_every_property_of_the_schema_is_a_column_of_its_kind() -> None:
    found = layout({"id": "id"}, None, answer_schema(Label))

    assert found.columns[:8] == ("id", "label", "count", "score", "urgent", "tags", "inner", "either")
    kinds = {name: kind for name, kind in found.kinds.items() if not name.startswith("_")}
    assert kinds == {
        "label": "text",
        "count": "integer",
        "score": "number",
        "urgent": "boolean",
        "tags": "json",
        "inner": "json",
        "either": "text",
    }


def test_values_stand_in_the_order_of_the_columns() -> None:
    found = layout(
        {"id": "id"}, _same("tags", "count"), answer_schema(Label), carry=["at"], constants={"day": "d"}
    )

    values = found.values(_answer({"tags": ["é"], "count": None}, carry={"at": 5}), INFO, "now")

    assert found.columns[:5] == ("day", "id", "tags", "count", "at")
    assert values == ("d", 1, ["é"], None, 5, "1", "m", "job", "run", 1.5, 2, 0, "now")


def test_what_is_no_scalar_is_json_text() -> None:
    assert [cell(value) for value in (["é"], {"a": 1}, None, True)] == ['["é"]', '{"a":1}', None, True]


@pytest.mark.parametrize("schema", [None, RootModel[list[int]], {"type": "array"}, {}])
def test_an_answer_that_is_no_object_goes_to_one_column(schema: Any) -> None:
    found = layout({"id": "id"}, None, answer_schema(schema))

    assert list(found.outputs) == ["output"]
    assert found.values(_answer([1, 2]), INFO, "now")[1] == [1, 2]


def test_columns_select_and_rename() -> None:
    found = layout({"id": "ticket_id"}, {"label": "label_col"}, answer_schema(Label))

    assert found.columns[:2] == ("ticket_id", "label_col")


def test_a_column_the_answers_do_not_have_is_named_with_those_they_have() -> None:
    with pytest.raises(SinkError, match="have no 'lable'; they have: label, count"):
        layout({"id": "id"}, _same("lable"), answer_schema(Label))


def test_two_values_for_one_column_are_refused() -> None:
    with pytest.raises(SinkError, match="two values go to the column 'label'"):
        layout({"label": "label"}, None, answer_schema(Label))
    with pytest.raises(SinkError, match="'_model'"):
        layout({"id": "id"}, {"output": "_model"}, None)


def test_an_answer_without_the_key_column_is_named() -> None:
    with pytest.raises(SinkError, match=r"answer 'r-1' has no key column 'id'; it has: \['other'\]"):
        layout({"id": "id"}, None, None).values(_answer("x", custom_id="r-1", key={"other": 1}), INFO, "now")


def test_a_key_that_is_not_the_sources_is_refused_before_any_money() -> None:
    sink = SqlSink("db", "t", key=["id"])

    with pytest.raises(SinkError, match="'id' is not a key column of the source; there are: ident"):
        sink.resolve({}, None, source_key=["ident"])
    with pytest.raises(SinkError, match="leaves out 'lang'"):
        sink.resolve({}, None, source_key=["id", "lang"])
    sink.resolve({}, None, source_key=["id"])
    SqlSink("db", "t", key=["_custom_id"]).resolve({}, None, source_key=["id", "lang"])


@pytest.mark.parametrize("value", ["a\0b", ["a\0b"], {"a\0": "\0"}])
def test_nul_becomes_a_replacement_character_everywhere(value: Any) -> None:
    assert "\0" not in cell(value) and "\\u0000" not in cell(value)
    assert "\ufffd" in cell(value)


def test_text_that_only_looks_like_an_escaped_nul_stays() -> None:
    assert cell(["\\u0000"]) == '["\\\\u0000"]'


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("labels", (None, "labels")),
        ("mart.labels", ("mart", "labels")),
        ('"a.b"."c ""d"""', ("a.b", 'c "d"')),
        ("Über labels; DROP TABLE x", (None, "Über labels; DROP TABLE x")),
    ],
)
def test_a_table_name_is_split_and_quoted_as_it_is(name: str, parts: tuple[str | None, str]) -> None:
    assert split_table(name) == parts
    assert quote('a"b') == '"a""b"'


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a.b.c", '"a', 'a"b', "a..b", "a\0"])
def test_what_is_no_table_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        split_table(name)
