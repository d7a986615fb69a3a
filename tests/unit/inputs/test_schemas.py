from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, computed_field, field_validator
from pydantic_core import PydanticCustomError

from airflow_batch_llm.core.drafts import AnswerMismatch, AnswerSchema
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Row
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import OutputSchemaError
from airflow_batch_llm.schemas import answer_schema, schema_path


class Label(BaseModel):
    label: Literal["bug", "other"]
    score: float = 0.0
    tags: dict[str, int] = Field(default_factory=dict)


class Checked(BaseModel):
    label: str

    @field_validator("label")
    @classmethod
    def refuse(cls, value: str) -> str:
        if value == "explode":
            raise RuntimeError(value)
        raise ValueError(f"never {value}")


class Aliased(BaseModel):
    label: str = Field(alias="theLabel")

    @computed_field
    def size(self) -> int:
        return len(self.label)


class Marked(BaseModel):
    label: Annotated[str, AfterValidator(str.strip)]


NOT_A_MODEL = 7
SCHEMA: dict[str, Any] = {
    "title": "Ticket label!",
    "type": "object",
    "properties": {"label": {"enum": ["bug", "other"]}, "n": {"$ref": "#/$defs/n"}},
    "required": ["label"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer"}},
}


def _schema(value: Any) -> AnswerSchema:
    schema = answer_schema(value)
    assert schema is not None
    return schema


def test_no_schema_is_none() -> None:
    assert answer_schema(None) is None


def test_a_class_and_its_import_path_are_the_same_schema() -> None:
    by_class, by_path = _schema(Label), _schema(f"{__name__}:Label")

    assert by_class.fingerprint == by_path.fingerprint
    assert by_class.name == "Label"
    assert by_class.parse('{"label": "bug"}') == {"label": "bug", "score": 0.0, "tags": {}}


def test_a_json_schema_is_checked_too() -> None:
    schema = _schema(SCHEMA)

    assert schema.parse('{"label": "bug", "n": 3}') == {"label": "bug", "n": 3}
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", schema.name)


@pytest.mark.parametrize("value", [Label, SCHEMA], ids=["model", "schema"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        '```json\n{"label": "bug"}\n```',
        '{"label": "secret"}',
        '{"label": "bug"} secret',
        '{"label": "bug", "score": NaN, "n": 1.5}',
        '{"label": "bug", "score": 1e999, "n": 1.5}',
        '{"label": "bug", "tags": {"secret": "x"}, "secret": 1}',
        '{"label": "bug\ud83d"}',
        '{"label": "\\ud83d"}',
        "[" * 100_000,
    ],
)
def test_what_does_not_fit_is_refused_without_quoting_it(value: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        _schema(value).parse(text)

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, AnswerMismatch)
    assert 3 < len(caught.value.where) <= 200


def _mismatch(value: Any, text: str) -> tuple[str, str]:
    with pytest.raises(AnswerMismatch) as caught:
        _schema(value).parse(text)
    return caught.value.code, caught.value.where


@pytest.mark.parametrize("value", [Label, SCHEMA], ids=["model", "schema"])
@pytest.mark.parametrize("text", ["", "secret", '{"label": "bug"} more', "[" * 100_000])
def test_text_that_is_no_json_is_told_apart(value: Any, text: str) -> None:
    assert _mismatch(value, text) == ("not_json", "$: json_invalid")


class Deep(BaseModel):
    items: list[Label]
    odd: int = Field(alias="odd name")


DEEP: dict[str, Any] = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": SCHEMA}, "odd name": {"type": "integer"}},
    "required": ["items", "odd name"],
    "$defs": SCHEMA["$defs"],
}


@pytest.mark.parametrize(
    ("value", "text", "where"),
    [
        (Label, '{"label": "x"}', "$.label: literal_error"),
        (SCHEMA, '{"label": "x"}', "$.label: enum"),
        (Label, "{}", "$.label: missing"),
        (SCHEMA, "{}", "$.label: required"),
        (Label, "[]", "$: model_type"),
        (SCHEMA, "[]", "$: type"),
        (Label, '{"label": "bug", "tags": {"secret": "x"}}', "$.tags.*: int_parsing"),
        (SCHEMA, '{"label": "bug", "secret": 1}', "$: additionalProperties"),
        (
            Deep,
            '{"items": [{}, {}], "odd name": ""}',
            '$.items[*].label: missing; $["odd name"]: int_parsing',
        ),
        (DEEP, '{"items": [{}, {}]}', '$["odd name"]: required; $.items[*].label: required'),
    ],
)
def test_an_error_names_fields_and_kinds_and_no_content(value: Any, text: str, where: str) -> None:
    code, found = _mismatch(value, text)

    assert code == "schema_mismatch"
    assert sorted(found.split("; ")) == sorted(where.split("; "))


def test_the_judge_passes_on_what_is_wrong_and_where() -> None:
    judge = Judge(_schema(Label))

    def judged(text: str | None) -> tuple[Verdict, str, str]:
        return judge.check(Row("w", Verdict.OK, text=text))

    assert judged('{"label": "bug"}')[0] is Verdict.OK
    assert judged('{"label": "x"}') == (Verdict.INVALID_OUTPUT, "schema_mismatch", "$.label: literal_error")
    assert judged("x") == (Verdict.INVALID_OUTPUT, "not_json", "$: json_invalid")
    assert judged(None)[:2] == (Verdict.INVALID_OUTPUT, "no_text")
    said = Row("w", Verdict.SERVER_ERROR, "server_error", "the provider's text")
    assert judge.check(said) == (Verdict.SERVER_ERROR, "server_error", "the provider's text")


def test_where_an_answer_is_wrong_is_told_shortly() -> None:
    names = [f"a_rather_long_name_{number}" for number in range(20)]
    properties = {name: {"type": "integer"} for name in names}
    schema = {"type": "object", "properties": properties, "required": names}

    _, where = _mismatch(schema, "{}")

    assert len(where) <= 200 and where.startswith("$.a_rather_long_name_0: required; ")


class Custom(BaseModel):
    label: str

    @field_validator("label")
    @classmethod
    def refuse(cls, value: str) -> str:
        raise PydanticCustomError(f"no {value}", "never")  # type: ignore[type-var]


def test_a_kind_of_fault_that_a_validator_makes_up_is_not_told() -> None:
    assert _mismatch(Custom, '{"label": "secret"}') == ("schema_mismatch", "$.label: custom_error")


@pytest.mark.parametrize("label", ["secret", "explode"])
def test_a_validator_of_the_users_own_may_refuse_or_break(label: str) -> None:
    with pytest.raises(ValueError) as caught:
        _schema(Checked).parse(f'{{"label": "{label}"}}')

    assert label not in str(caught.value)


def test_answers_have_the_names_that_the_output_schema_has() -> None:
    schema = answer_schema(Aliased)

    assert schema is not None
    assert list(schema.parse('{"theLabel": "abc"}')) == list(schema.output_schema["properties"])  # type: ignore[attr-defined]


def test_the_fingerprint_follows_schema_kind_and_validators() -> None:
    prints = [
        _schema(value).fingerprint for value in (Label, Checked, Marked, SCHEMA, Label.model_json_schema())
    ]

    class Twin(BaseModel):
        label: str

    plain = Twin.model_json_schema() | {"title": "Marked"}
    assert plain == Marked.model_json_schema()
    assert len({*prints, _schema(plain).fingerprint}) == 6


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere_at_all:Label", "cannot import module 'nowhere_at_all'"),
        (f"{__name__}:Nope", "has no 'Nope'"),
        ("no-colon", "not an import path"),
        (f"{__name__}:NOT_A_MODEL", "neither a pydantic model nor a JSON schema"),
        (7, "neither"),
        (dict, "neither"),
        ({"type": "nonsense"}, "no valid JSON schema at type"),
        ({"$ref": "https://example.invalid/schema"}, "outside of itself"),
        ({"$ref": "#/$defs/nope"}, "which it lacks"),
    ],
)
def test_a_schema_that_cannot_be_used_is_named(value: Any, message: str) -> None:
    with pytest.raises(OutputSchemaError, match=re.escape(message)):
        answer_schema(value)


def test_a_class_of_a_dag_file_has_the_same_path_on_every_machine() -> None:
    module = ModuleType(f"unusual_prefix_{'0' * 40}_nightly")
    sys.modules[module.__name__] = module
    try:
        exec("class Label: pass", module.__dict__)
        assert schema_path(module.Label) == "nightly:Label"
    finally:
        del sys.modules[module.__name__]


def test_the_path_of_what_was_given_as_a_path_is_that_path() -> None:
    assert schema_path("labels:Label") == "labels:Label"
    assert schema_path(_schema(Label)) == f"{__name__}:Label"
    assert schema_path(SCHEMA) == SCHEMA
