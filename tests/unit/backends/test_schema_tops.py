"""What may stand at the top of an output schema."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, RootModel

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.backends.openai_lines import line_encoder
from airflow_batch_llm.core.endpoints import CHAT, RESPONSES
from airflow_batch_llm.core.jsonl import loads
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import OutputSchemaError

TREE: dict[str, Any] = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "title": "Node",
            "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
            "additionalProperties": {"type": "string"},
        }
    },
}


class Labels(RootModel[list[str]]):
    """A list."""


class Kind(RootModel[Literal["a", "b"]]):
    """One word."""


class One(BaseModel):
    n: int


class Two(BaseModel):
    s: str


class Either(RootModel[One | Two]):
    """A choice."""


def _sent(schema: dict[str, Any], endpoint: str = CHAT) -> dict[str, Any]:
    template = RequestTemplate(endpoint, "m", {}, output_schema=schema, schema_name="labels")
    body = loads(line_encoder(template, DIALECTS["openai"])("w", b'{"messages":[]}'))["body"]
    found = body["text"]["format"] if endpoint == RESPONSES else body["response_format"]["json_schema"]
    return {"strict": found["strict"], **found["schema"]}


def test_a_reference_at_the_top_is_followed_also_where_the_schema_cannot_be_strict() -> None:
    sent = _sent(TREE)

    assert (sent["strict"], sent["type"]) == (False, "object")
    assert sent["properties"] == TREE["$defs"]["Node"]["properties"] and sent["$defs"] == TREE["$defs"]
    assert "$ref" not in sent


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "integer"}}},
        {"required": ["a"]},
        {"allOf": [{"type": "object"}, {"required": ["a"]}]},
    ],
)
def test_an_object_that_is_not_said_to_be_one_is_said_to_be_one(schema: dict[str, Any]) -> None:
    assert _sent(schema)["type"] == "object"


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("schema", "top"),
    [
        (Labels.model_json_schema(), "of type 'array'"),
        (Kind.model_json_schema(), "of type 'string'"),
        (Either.model_json_schema(), "a choice between forms"),
        ({}, "not said to be an object"),
        ({"enum": ["a"]}, "not said to be an object"),
        ({"type": ["object", "null"], "properties": {}}, "of type"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "not said to be an object"),
    ],
)
def test_what_is_no_object_is_refused_by_its_name_before_anything_is_sent(
    schema: dict[str, Any], top: str, endpoint: str
) -> None:
    with pytest.raises(OutputSchemaError, match=f"output schema 'labels' cannot be sent: .*its top is {top}"):
        _sent(schema, endpoint)
