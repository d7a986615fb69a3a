"""Output schemas: made acceptable on a copy, or refused with what they hold."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from airflow_batch_llm.backends.anthropic_schema import acceptable, answer_format
from airflow_batch_llm.exceptions import OutputSchemaError

KNOWN = {
    "type", "properties", "required", "additionalProperties", "items", "minItems", "anyOf", "enum", "const",
    "format", "title", "description", "$ref", "$defs",
}  # fmt: skip


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def made(of: Any) -> Any:
    """Return what becomes of a property's schema."""
    return acceptable({"type": "object", "properties": {"x": of}}, "s")["properties"]["x"]


def names(schema: Any) -> set[str]:
    """Return all keywords of a schema; names of properties and definitions are none."""
    if isinstance(schema, list):
        return set().union(*map(names, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for name, value in schema.items():
        if name in ("properties", "$defs"):
            found |= set().union(*map(names, value.values())) if value else set()
        elif name not in ("enum", "const"):
            found |= names(value)
    return found


class Address(BaseModel):
    street: str = Field(min_length=1, max_length=80)
    country: Literal["de", "at"] = "de"


class Ticket(BaseModel):
    model_config = {"extra": "allow"}
    label: Literal["bug", "billing"] | None = None
    stars: int = Field(ge=1, le=5, description="How happy they are.")
    place: Address = Field(description="Where they live.")
    others: list[Address] = Field(default=[], max_length=3)
    span: tuple[int, str] = (0, "")
    due: str = Field(default="", json_schema_extra={"format": "date"})


def test_a_pydantic_model_has_only_what_the_protocol_knows_and_loses_no_answer() -> None:
    schema = Ticket.model_json_schema()
    before = copy.deepcopy(schema)
    sent = acceptable(schema, "Ticket")
    assert schema == before, "on a copy"
    assert names(sent) <= KNOWN
    Draft202012Validator.check_schema(sent)
    assert sent["required"] == list(Ticket.model_fields) and sent["additionalProperties"] is False
    answer = {
        "label": "bug", "stars": 5, "place": {"street": "x", "country": "at"}, "others": [], "span": [1, "a"],
        "due": "2026-01-01",
    }  # fmt: skip
    assert Draft202012Validator(sent).is_valid(answer) and Ticket.model_validate(answer)


def test_bounds_that_the_protocol_does_not_know_are_told_in_the_description() -> None:
    assert made({"type": "integer", "minimum": 1, "maximum": 5, "description": "Stars."}) == {
        "type": "integer",
        "description": "Stars. (minimum: 1, maximum: 5)",
    }
    assert made({"type": "string", "pattern": "^a$", "format": "odd"}) == {
        "type": "string",
        "description": '(pattern: "^a$", format: "odd")',
    }
    assert made({"type": "string", "format": "date"}) == {"type": "string", "format": "date"}
    assert made({"type": "array", "items": {"type": "null"}, "minItems": 1}) == {
        "type": "array",
        "items": {"type": "null"},
        "minItems": 1,
    }
    assert made({"type": "array", "items": {"type": "null"}, "minItems": 2})["description"] == "(minItems: 2)"


@pytest.mark.parametrize(
    ("of", "becomes"),
    [
        ({"enum": ["a", 1, None], "type": ["string", "integer", "null"]}, {"enum": ["a", 1, None]}),
        ({"const": True}, {"const": True}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"oneOf": [{"type": "string"}, {"type": "number"}]},
            {"anyOf": [{"type": "string"}, {"type": "number"}]},
        ),
        ({"properties": {"a": {"type": "string"}}}, closed(a={"type": "string"})),
        ({"type": "object", "properties": {}, "additionalProperties": False}, closed()),
        ({"allOf": [{"type": "string"}], "description": "d"}, {"type": "string", "description": "d"}),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "string"}}},
                    {"properties": {"b": {"type": "null"}}},
                ]
            },
            closed(a={"type": "string"}, b={"type": "null"}),
        ),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "string"}]},
            {"type": "array", "items": {"type": "string"}},
        ),
    ],
)
def test_forms_are_written_as_the_protocol_has_them(of: dict[str, Any], becomes: dict[str, Any]) -> None:
    assert made(of) == becomes


def test_definitions_are_kept_and_put_in_where_words_stand_beside_them() -> None:
    sent = acceptable(
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/E"},
                "b": {"$ref": "#/definitions/F", "description": "other"},
            },
            "$defs": {"E": {"enum": ["x"]}, "Unused": {"type": "object"}},
            "definitions": {"F": {"type": "string"}},
        },
        "s",
    )
    assert sent["properties"] == {
        "a": {"$ref": "#/$defs/E"},
        "b": {"type": "string", "description": "other"},
    }
    assert sent["$defs"] == {"E": {"enum": ["x"]}}


@pytest.mark.parametrize(
    "of",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "patternProperties": {"^a": {"type": "integer"}}},
        {},
        True,
        {"type": "array"},
        {"description": "anything"},
        {"enum": [{"a": 1}]},
        {"enum": []},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "https://elsewhere.example/schema"},
        {"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "null"}}}]},
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": "a"},
    ],
)
def test_what_no_form_can_be_given_is_refused_before_anything_is_sent(of: Any) -> None:
    with pytest.raises(OutputSchemaError, match="'answer'"):
        answer_format({"type": "object", "properties": {"x": of}}, "answer")


def test_a_schema_that_refers_to_itself_is_refused() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}}}
    with pytest.raises(OutputSchemaError, match="refers to itself"):
        answer_format({"$ref": "#/$defs/N", "$defs": {"N": node}}, "tree")


@pytest.mark.parametrize("top", [{"type": "array", "items": {"type": "string"}}, {"type": "string"}, {}])
def test_a_top_that_is_no_object_is_refused_as_over_every_protocol(top: dict[str, Any]) -> None:
    with pytest.raises(OutputSchemaError, match="its top is"):
        answer_format(top, "labels")
