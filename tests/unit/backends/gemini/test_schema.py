"""JSON schemas in Gemini's own form, where that can say them."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from google.genai import types
from pydantic import BaseModel, Field

from airflow_batch_llm.backends.gemini_schema import to_gemini_schema


class Part(BaseModel):
    name: str
    weight: float | None = None


class Thing(BaseModel):
    """A thing."""

    kind: Literal["a", "b"]
    only: Literal["x"]
    size: int = Field(ge=1, le=9, description="in cm")
    parts: list[Part] = Field(min_length=1)
    first: Part
    level: Literal[1, 2, 3]
    both: int | str
    done: bool = False


def test_a_pydantic_class_is_said_whole() -> None:
    schema = Thing.model_json_schema()
    made = to_gemini_schema(schema)
    assert made is not None
    part = {
        "title": "Part",
        "type": "OBJECT",
        "properties": {
            "name": {"title": "Name", "type": "STRING"},
            "weight": {"title": "Weight", "type": "NUMBER", "nullable": True},
        },
        "required": ["name"],
        "propertyOrdering": ["name", "weight"],
    }
    properties = made["properties"]
    assert properties["kind"] == {"title": "Kind", "type": "STRING", "enum": ["a", "b"], "format": "enum"}
    assert properties["only"]["enum"] == ["x"]
    assert properties["size"] == {
        "title": "Size", "type": "INTEGER", "minimum": 1, "maximum": 9, "description": "in cm",
    }  # fmt: skip
    assert properties["parts"] == {"title": "Parts", "type": "ARRAY", "items": part, "minItems": 1}
    assert properties["first"] == part
    assert (properties["level"]["type"], properties["level"]["description"]) == ("INTEGER", "one of 1, 2, 3")
    assert [one["type"] for one in properties["both"]["anyOf"]] == ["INTEGER", "STRING"]
    assert made["propertyOrdering"] == list(Thing.model_fields)
    assert "done" not in made["required"]
    assert schema == Thing.model_json_schema(), "the caller's schema stays as it was"


def test_the_vendors_own_type_takes_what_is_made() -> None:
    made = to_gemini_schema(Thing.model_json_schema())
    read = types.Schema.model_validate(made)
    assert read.properties is not None and read.properties["kind"].enum == ["a", "b"]
    assert read.property_ordering == list(Thing.model_fields)


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "array", "items": {"type": "string"}}, {"type": "ARRAY", "items": {"type": "STRING"}}),
        ({"type": ["string", "null"]}, {"type": "STRING", "nullable": True}),
        ({"enum": ["a", None]}, None),
        ({"type": ["string", "null"], "enum": ["a", None]},
         {"type": "STRING", "nullable": True, "enum": ["a"], "format": "enum"}),
        ({"enum": ["a", "b"]}, {"type": "STRING", "enum": ["a", "b"], "format": "enum"}),
        ({"type": "string", "format": "date-time"}, {"type": "STRING", "format": "date-time"}),
        ({"type": "string", "format": "uri", "pattern": "^h"}, {"type": "STRING"}),
        ({"allOf": [{"type": "integer"}], "title": "n"}, {"type": "INTEGER", "title": "n"}),
        ({"type": "integer", "enum": [1, 2], "description": "how many"},
         {"type": "INTEGER", "description": "how many (one of 1, 2)"}),
    ],
)  # fmt: skip
def test_single_forms(schema: dict[str, Any], made: dict[str, Any] | None) -> None:
    assert to_gemini_schema(schema) == made


def _holding_itself() -> dict[str, Any]:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {}},
        {},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"not": {}}}},
        {"type": ["string", "integer"]},
        {"type": "array"},
        {"type": "null"},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"allOf": [{"type": "object"}, {"type": "object"}]},
        {"anyOf": [{"type": "null"}]},
        {"$ref": "#/$defs/Nobody"},
        {"$ref": "https://example.com/schema"},
        _holding_itself(),
    ],
)
def test_what_the_form_cannot_say_is_not_said(schema: dict[str, Any]) -> None:
    assert to_gemini_schema(schema) is None
