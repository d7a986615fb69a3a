"""Requests become lines of the upload, byte for byte; what cannot be sent is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.backends.openai_lines import line_encoder
from airflow_batch_llm.backends.strict_schema import to_strict
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import Refused

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "é \u2028 \ud7ff"}]
BODY = jsonl.dumps({"messages": MESSAGES})
LABEL = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}


def encode(body: bytes, params: Mapping[str, Any] | None = None, row: str = "openai", **template: Any) -> Any:
    encoder = line_encoder(RequestTemplate(CHAT, "m-1", params or {}, **template), DIALECTS[row])
    line = encoder("aW-1_x", body)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    return json.loads(line, object_pairs_hook=unique)


def test_a_line_holds_id_address_model_parameters_and_the_body() -> None:
    assert encode(BODY, {"max_tokens": 200, "temperature": 0}) == {
        "custom_id": "aW-1_x",
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m-1", "max_completion_tokens": 200, "temperature": 0, "messages": MESSAGES},
    }


def test_the_body_goes_in_byte_for_byte() -> None:
    body = b'{"messages":[{"content": "\xc3\xa9 \\u00e9 1.0e0", "n": 1.50}]}'
    line = line_encoder(RequestTemplate(CHAT, "m-1"), DIALECTS["openai"])("w", body)
    assert line.endswith(body[1:] + b"}\n")


@pytest.mark.parametrize(("row", "field"), [("openai", "max_completion_tokens"), ("generic", "max_tokens")])
def test_the_output_limit_has_the_dialects_name(row: str, field: str) -> None:
    assert encode(BODY, {"max_tokens": 9}, row)["body"] == {"model": "m-1", field: 9, "messages": MESSAGES}


@pytest.mark.parametrize("body", [b"{}", b" { } "])
def test_an_empty_body_gives_a_whole_line(body: bytes) -> None:
    assert encode(body, {"seed": 1})["body"] == {"model": "m-1", "seed": 1}


def test_a_rows_own_member_wins_over_the_shared_one() -> None:
    body = jsonl.dumps({"messages": MESSAGES, "model": "m-2", "max_tokens": 5, "stream": False})
    sent = encode(body, {"max_tokens": 200, "seed": 1})["body"]
    assert sent == {"model": "m-2", "max_completion_tokens": 5, "seed": 1, "messages": MESSAGES}


def test_a_pretty_printed_body_stays_on_one_line() -> None:
    pretty = json.dumps({"messages": MESSAGES}, indent=2).replace("\n", "\r\n").encode()
    assert encode(pretty)["body"]["messages"] == MESSAGES


def test_parameters_without_a_value_are_left_out() -> None:
    assert encode(BODY, {"temperature": None})["body"] == {"model": "m-1", "messages": MESSAGES}


def test_a_native_body_is_sent_as_it_is() -> None:
    body = {"model": "m-9", "max_tokens": 3, "messages": MESSAGES}
    assert encode(jsonl.dumps(body), {"temperature": 1}, native=True)["body"] == body


def test_a_schema_becomes_a_strict_response_format() -> None:
    sent = encode(BODY, output_schema=LABEL, schema_name="ticket label!")["body"]["response_format"]
    assert sent == {
        "type": "json_schema",
        "json_schema": {
            "name": "ticket_label_",
            "strict": True,
            "schema": {**LABEL, "additionalProperties": False},
        },
    }
    assert "additionalProperties" not in LABEL


def test_a_schema_that_cannot_be_strict_is_sent_as_it_is() -> None:
    free = {"type": "object", "additionalProperties": {"type": "integer"}}
    sent = encode(BODY, output_schema=free)["body"]["response_format"]["json_schema"]
    assert (sent["strict"], sent["schema"]) == (False, free)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"x"', b"null", b"7", b'{"messages":', b'{"a":NaN}', b"[" * 100_000]
)
@pytest.mark.parametrize("native", [False, True])
def test_a_body_that_is_no_object_is_refused(body: bytes, native: bool) -> None:
    with pytest.raises(Refused):
        encode(body, native=native)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("value", [b"true", b"1", b'"yes"'])
def test_a_body_that_wants_a_stream_is_refused(native: bool, value: bytes) -> None:
    with pytest.raises(Refused) as caught:
        encode(b'{"model":"m","stream":' + value + b"}", native=native)
    assert caught.value.reason == "stream"


@pytest.mark.parametrize("body", [b'{"messages":[]}', b'{"model":null}', b'{"model":""}'])
def test_a_native_body_without_a_model_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        encode(body, native=True)
    assert caught.value.reason == "missing_model"


@pytest.mark.parametrize(
    ("params", "reason"),
    [({"stream": True}, "stream"), ({"n": 2}, "n"), ({"stop": object()}, "not_json")],
)
def test_parameters_that_a_batch_cannot_have_are_refused(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused) as caught:
        encode(BODY, params)
    assert caught.value.reason == reason


def test_a_schema_and_a_response_format_contradict_each_other() -> None:
    with pytest.raises(Refused):
        encode(BODY, {"response_format": {"type": "json_object"}}, output_schema=LABEL)


def test_an_endpoint_the_dialect_lacks_is_refused() -> None:
    with pytest.raises(Refused, match="/v1/images"):
        line_encoder(RequestTemplate("/v1/images/generations", "m-1"), DIALECTS["openai"])


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text().filter(lambda name: name not in ("stream", "model", "n", "max_tokens")), _json)
)
def test_any_body_comes_through_unchanged(body: dict[str, Any]) -> None:
    assert encode(jsonl.dumps(body))["body"] == {"model": "m-1", **body}


# -- strict schemas --------------------------------------------------------------------------------


def test_objects_are_closed_and_complete_at_every_depth() -> None:
    item = {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}}
    schema = {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": item},
            "note": {"anyOf": [{"type": "null"}, item]},
        },
        "required": ["items"],
    }
    closed = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    assert to_strict(schema) == {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": closed},
            "note": {"anyOf": [{"type": "null"}, closed]},
        },
        "required": ["items", "note"],
        "additionalProperties": False,
    }


def test_a_reference_with_words_beside_it_is_written_out() -> None:
    kind = {"enum": ["a", "b"], "type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "plain": {"$ref": "#/$defs/Kind"},
            "told": {"$ref": "#/$defs/Kind", "description": "which", "default": "a"},
            "wrapped": {"allOf": [{"$ref": "#/$defs/Kind"}], "default": "a"},
        },
        "$defs": {"Kind": kind},
    }
    strict = to_strict(schema)
    assert strict is not None
    assert strict["properties"] == {
        "plain": {"$ref": "#/$defs/Kind"},
        "told": {**kind, "description": "which"},
        "wrapped": {"$ref": "#/$defs/Kind"},
    }
    assert strict["$defs"] == {"Kind": kind}


def test_a_schema_that_refers_to_itself_ends() -> None:
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node", "title": "n"}, {"type": "null"}]}},
    }
    strict = to_strict({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert strict is not None
    assert strict["type"] == "object"
    jsonschema.Draft202012Validator(strict).validate({"next": {"next": None}})


def test_a_choice_of_objects_becomes_any_of() -> None:
    cat = {"type": "object", "properties": {"kind": {"const": "cat", "type": "string"}}}
    schema = {
        "type": "object",
        "properties": {"pet": {"oneOf": [cat], "discriminator": {"propertyName": "kind"}}},
    }
    strict = to_strict(schema)
    assert strict is not None
    assert list(strict["properties"]["pet"]) == ["anyOf"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": True, "properties": {"a": {"type": "string"}}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"$ref": "other.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/Gone"}}},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 3}]}}},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [{"type": "object", "properties": {}}]},
        {"type": "object", "properties": "none"},
        {},
    ],
)
def test_what_strict_mode_cannot_say_is_not_strict(schema: dict[str, Any]) -> None:
    assert to_strict(schema) is None
