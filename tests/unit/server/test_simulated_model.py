from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_batch_llm.server.chat import ChatCompletions
from airflow_batch_llm.server.schema_instances import SchemaError, make_instance
from airflow_batch_llm.server.wire import Request
from airflow_batch_llm.server.word_match import best_option

TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string", "minLength": 50, "maxLength": 60},
    {"type": "string", "maxLength": 3},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "integer", "minimum": 3, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "integer", "minimum": -10, "maximum": -5, "multipleOf": 3},
    {"type": "integer", "maximum": -1000},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
    {"type": "number", "minimum": 10, "multipleOf": 2.5},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"type": ["null", "integer"], "minimum": 7},
    {"const": {"a": 1}},
    {"enum": ["a", 2, None]},
    {"enum": ["only"]},
    {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 4}]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]}, {"type": "null"}]},
    {
        "allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}],
        "type": "object",
    },
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 4},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "object", "additionalProperties": {"type": "integer"}, "required": ["x"]},
    {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
    {
        "$defs": {
            "Label": {"enum": ["x", "y"]},
            "Item": {"type": "object", "properties": {"l": {"$ref": "#/$defs/Label"}}},
        },
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
        "required": ["items"],
    },
    TREE,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
@settings(deadline=None, max_examples=40)
@given(text=st.text(max_size=300))
def test_an_instance_is_valid_and_always_the_same(schema: dict[str, Any], text: str) -> None:
    instance = make_instance(schema, text)
    jsonschema.validate(instance, schema)
    assert make_instance(schema, text) == instance


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/none"},
        {"$ref": "http://elsewhere/schema"},
        {"$ref": "#"},
        {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]},
    ],
)
def test_a_schema_without_an_instance_is_an_error_not_an_endless_loop(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        make_instance(schema, "text")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (
            "Label this ticket: one of billing, bug, shipping, account.\n\nMy invoice was charged twice",
            "billing",
        ),
        ("The app crashes with an error on start", "bug"),
        ("Where is my parcel? The tracking page says nothing", "shipping"),
        ("I cannot log in, my password reset email never came", "account"),
    ],
)
def test_the_label_fits_the_words(text: str, label: str) -> None:
    options = ["account", "billing", "bug", "shipping"]
    place = best_option(text, options)
    assert place is not None and options[place] == label
    assert make_instance({"enum": options}, text) == label


def test_words_that_fit_nothing_choose_nothing() -> None:
    assert best_option("qwerty", ["alpha", "beta"]) is None


def ask(**body: Any) -> tuple[int, dict[str, Any]]:
    raw = msgspec.json.encode({"model": "any", "messages": [{"role": "user", "content": "say it"}], **body})
    reply = ChatCompletions().simulate(Request(1, "r-1", "any", raw), created=7)
    return reply.status, json.loads(reply.body)


def test_max_tokens_cuts_the_answer_and_says_so() -> None:
    _, whole = ask()
    for name in ("max_tokens", "max_completion_tokens"):
        _, cut = ask(**{name: 2})
        assert cut["choices"][0]["finish_reason"] == "length"
        assert whole["choices"][0]["message"]["content"].startswith(cut["choices"][0]["message"]["content"])
        assert cut["usage"]["completion_tokens"] == 2
    assert ask(max_tokens=10_000)[1]["choices"] == whole["choices"]


def test_an_answer_ends_before_the_first_of_its_stop_texts() -> None:
    whole = ask()[1]["choices"][0]
    words = whole["message"]["content"].split(" ")
    for stop in (words[1], ["nowhere", words[2], words[1]]):
        (choice,) = ask(stop=stop)[1]["choices"]
        assert choice["message"]["content"] == words[0] + " "
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", words[1])
    assert ask(stop=["nowhere", ""])[1]["choices"] == [whole]
    assert ask(stop=words[2], max_tokens=1)[1]["choices"][0]["finish_reason"] == "length"


def test_thinking_is_counted_among_the_answer_s_tokens_where_it_was_asked_for() -> None:
    plain, thought = ask()[1], ask(reasoning_effort="low")[1]
    message = thought["choices"][0]["message"]
    assert message.pop("reasoning_content") and message == plain["choices"][0]["message"]
    tokens = thought["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert tokens > 0
    assert thought["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] + tokens
    for none in ({"reasoning_effort": "none"}, {"reasoning_effort": "low", "max_tokens": 9}):
        assert ask(**none)[1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_json_object_is_json() -> None:
    _, body = ask(response_format={"type": "json_object"})
    assert isinstance(json.loads(body["choices"][0]["message"]["content"]), dict)


def test_a_forced_tool_is_called_with_valid_arguments() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "count", "parameters": parameters}}]
    _, body = ask(tools=tools, tool_choice={"type": "function", "function": {"name": "count"}})
    message = body["choices"][0]["message"]
    assert message["content"] is None
    jsonschema.validate(json.loads(message["tool_calls"][0]["function"]["arguments"]), parameters)
    assert ask(tools=tools, tool_choice="required")[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert ask(tools=tools)[1]["choices"][0]["message"]["content"]
    assert ask(tools=tools, tool_choice={"function": {"name": "other"}})[0] == 400


def test_parts_of_a_message_are_read_and_pictures_are_passed_over() -> None:
    parts = [
        {"type": "text", "text": "say it"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a"}},
    ]
    status, body = ask(
        messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": parts}]
    )
    assert status == 200
    assert "say it" in body["choices"][0]["message"]["content"]


def test_a_schema_that_cannot_be_followed_is_a_bad_request() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/none"}}}
    status, body = ask(response_format=wanted)
    assert (status, body["error"]["code"]) == (400, "invalid_json_schema")
