"""What each endpoint is sent, and what is refused by its name because an endpoint lacks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam, ToolParam, response_create_params
from pydantic import TypeAdapter

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.backends.openai_lines import line_encoder
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ENDPOINTS,
    MODERATIONS,
    RESPONSES,
)
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import Refused

LABEL = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "é"}]},
    COMPLETIONS: {"prompt": "é \u2028"},
    RESPONSES: {"messages": [{"role": "user", "content": "é"}]},
    EMBEDDINGS: {"input": "é"},
    MODERATIONS: {"input": "é"},
}


def sent(
    endpoint: str,
    body: Mapping[str, Any] | bytes | None = None,
    params: Mapping[str, Any] | None = None,
    row: str = "openai",
    **template: Any,
) -> dict[str, Any]:
    """Return the body of the line that a request becomes."""
    encode = line_encoder(RequestTemplate(endpoint, "m-1", params or {}, **template), DIALECTS[row])
    raw = body if isinstance(body, bytes) else jsonl.dumps(BODIES[endpoint] if body is None else body)
    line = encode("w-1", raw)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    whole = json.loads(line)
    assert (whole["custom_id"], whole["method"], whole["url"]) == ("w-1", "POST", endpoint)
    found: dict[str, Any] = whole["body"]
    return found


def refused(endpoint: str, body: Any = None, params: Any = None, **template: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        sent(endpoint, body, params, **template)
    return caught.value


@pytest.mark.parametrize("row", ["openai", "generic"])
@pytest.mark.parametrize("endpoint", [COMPLETIONS, EMBEDDINGS, MODERATIONS])
def test_a_body_is_sent_as_it_is_beside_the_shared_members(endpoint: str, row: str) -> None:
    assert sent(endpoint, params={"user": "u"}, row=row) == {"model": "m-1", "user": "u", **BODIES[endpoint]}


@pytest.mark.parametrize(
    ("endpoint", "row", "name"),
    [
        (CHAT, "openai", "max_completion_tokens"),
        (CHAT, "generic", "max_tokens"),
        (COMPLETIONS, "openai", "max_tokens"),
        (COMPLETIONS, "generic", "max_tokens"),
        (RESPONSES, "openai", "max_output_tokens"),
        (RESPONSES, "generic", "max_output_tokens"),
    ],
)
def test_the_output_limit_has_the_endpoints_name_in_parameters_and_bodies(
    endpoint: str, row: str, name: str
) -> None:
    assert sent(endpoint, params={"max_tokens": 9}, row=row)[name] == 9
    own = sent(endpoint, {**BODIES[endpoint], "max_tokens": 5}, {"max_tokens": 9}, row)
    assert own[name] == 5
    assert own.keys() - BODIES[endpoint].keys() <= {"model", "input", name}


def test_dimensions_and_encoding_of_an_embedding_are_passed_on() -> None:
    params = {"dimensions": 256, "encoding_format": "base64"}
    assert sent(EMBEDDINGS, params=params) == {"model": "m-1", **params, "input": "é"}


def test_pictures_to_moderate_are_passed_on() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    assert sent(MODERATIONS, {"input": parts}) == {"model": "m-1", "input": parts}


LACKING = [
    (EMBEDDINGS, "max_tokens", 5),
    (EMBEDDINGS, "temperature", 0),
    (EMBEDDINGS, "tools", [{}]),
    (EMBEDDINGS, "response_format", {"type": "json_object"}),
    (EMBEDDINGS, "messages", [{}]),
    (MODERATIONS, "max_tokens", 5),
    (MODERATIONS, "dimensions", 5),
    (MODERATIONS, "tools", [{}]),
    (COMPLETIONS, "tools", [{}]),
    (COMPLETIONS, "tool_choice", "auto"),
    (COMPLETIONS, "messages", [{}]),
    (RESPONSES, "response_format", {"type": "json_object"}),
    (RESPONSES, "reasoning_effort", "low"),
    (RESPONSES, "background", True),
]


@pytest.mark.parametrize(("endpoint", "name", "value"), LACKING)
def test_what_an_endpoint_lacks_is_refused_by_its_name(endpoint: str, name: str, value: Any) -> None:
    of_all = refused(endpoint, params={name: value})
    of_one = refused(endpoint, {**BODIES[endpoint], name: value})
    for error in (of_all, of_one):
        assert error.reason == name
        assert repr(name) in str(error) and endpoint in str(error)


@pytest.mark.parametrize(("endpoint", "name", "value"), LACKING)
def test_a_member_without_a_value_is_no_wish(endpoint: str, name: str, value: Any) -> None:
    assert name not in sent(endpoint, {**BODIES[endpoint], name: None}, {name: None})


@pytest.mark.parametrize("endpoint", [COMPLETIONS, EMBEDDINGS, MODERATIONS])
def test_a_schema_is_refused_where_answers_have_none(endpoint: str) -> None:
    assert refused(endpoint, output_schema=LABEL).reason == "output_schema"


@pytest.mark.parametrize("endpoint", [COMPLETIONS, RESPONSES, EMBEDDINGS, MODERATIONS])
def test_a_body_that_asks_nothing_is_refused(endpoint: str) -> None:
    assert refused(endpoint, {"user": "u"}).reason.startswith("missing_")


@pytest.mark.parametrize("endpoint", ENDPOINTS.values())
def test_several_answers_to_one_request_and_streams_are_refused(endpoint: str) -> None:
    for name, value in (("n", 2), ("stream", True)):
        assert refused(endpoint, params={name: value}).reason == name
        assert refused(endpoint, {**BODIES[endpoint], name: value}).reason == name


@pytest.mark.parametrize("endpoint", ENDPOINTS.values())
def test_a_native_body_of_any_endpoint_is_sent_as_it_is(endpoint: str) -> None:
    body = {"model": "m-9", "max_tokens": 3, "input": ["a", "b"], "odd": {"x": [1, None]}}
    assert sent(endpoint, body, {"temperature": 1}, native=True) == body


@given(st.text(), st.sampled_from([COMPLETIONS, EMBEDDINGS, MODERATIONS]))
def test_any_text_comes_through_unchanged(text: str, endpoint: str) -> None:
    member = "prompt" if endpoint == COMPLETIONS else "input"
    assert sent(endpoint, {member: text})[member] == text


# -- responses -------------------------------------------------------------------------------------
_items = TypeAdapter(list[ResponseInputItemParam])
_tools = TypeAdapter(list[ToolParam])
_choice = TypeAdapter(response_create_params.ToolChoice)


def asked(*messages: dict[str, Any], params: Any = None, **members: Any) -> dict[str, Any]:
    body = sent(RESPONSES, {"messages": list(messages), **members}, params)
    _items.validate_python(body["input"])
    return body


@given(st.text(), st.text())
def test_the_system_message_becomes_instructions_and_any_text_comes_through(one: str, two: str) -> None:
    body = asked({"role": "system", "content": one}, {"role": "user", "content": two})
    assert body == {
        "model": "m-1",
        "instructions": one,
        "input": [{"type": "message", "role": "user", "content": two}],
    }


def test_messages_of_a_conversation_keep_their_order_and_roles() -> None:
    body = asked(
        {"role": "system", "content": "one"},
        {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "ye"}, {"type": "text", "text": "s?"}]},
        {"role": "system", "content": "late"},
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
    )
    assert body["instructions"] == "one\n\ntwo"
    assert [(item["role"], item["content"]) for item in body["input"]] == [
        ("user", "hi"),
        ("assistant", "yes?"),
        ("system", "late"),
        ("user", [{"type": "input_text", "text": "look"}]),
    ]


def test_given_instructions_are_not_replaced_by_a_system_message() -> None:
    message = {"role": "system", "content": "of the row"}
    for body in (
        asked(message, params={"instructions": "of all"}),
        asked(message, instructions="of all"),
    ):
        assert body["instructions"] == "of all"
        assert body["input"] == [{"type": "message", "role": "system", "content": "of the row"}]


def test_a_conversation_of_system_messages_alone_stays_an_input() -> None:
    body = asked({"role": "system", "content": "only"})
    assert "instructions" not in body and len(body["input"]) == 1


def test_pictures_and_files_become_their_parts() -> None:
    body = asked(
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "input_file", "file_url": "https://x/b.pdf"},
            ],
        }
    )
    assert body["input"][0]["content"] == [
        {"type": "input_image", "image_url": "https://x/a.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_file", "file_url": "https://x/b.pdf"},
    ]


def test_calls_and_their_results_become_items() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    body = asked(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    )
    assert body["input"][1:] == [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]


def test_a_refusal_of_the_assistant_stays_one() -> None:
    body = sent(RESPONSES, {"messages": [{"role": "assistant", "refusal": "no", "content": None}]})
    assert body["input"][0]["content"] == [{"type": "refusal", "refusal": "no"}]


CHAT_TOOLS = [
    {"type": "function", "function": {"name": "label", "description": "d", "parameters": LABEL}},
    {"type": "function", "function": {"name": "bare"}},
    {"type": "function", "function": {"name": "sure", "parameters": LABEL, "strict": True}},
    {
        "type": "custom",
        "custom": {
            "name": "sh",
            "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "a"}},
        },
    },
    {"type": "web_search"},
]
TOOLS = [
    {"type": "function", "name": "label", "description": "d", "parameters": LABEL, "strict": False},
    {
        "type": "function",
        "name": "bare",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    },
    {"type": "function", "name": "sure", "parameters": LABEL, "strict": True},
    {"type": "custom", "name": "sh", "format": {"type": "grammar", "syntax": "lark", "definition": "a"}},
    {"type": "web_search"},
]


@pytest.mark.parametrize("where", ["params", "body"])
@pytest.mark.parametrize("tools", [CHAT_TOOLS, TOOLS])
def test_chat_tools_are_given_in_this_endpoints_form(where: str, tools: list[Any]) -> None:
    members = {"tools": tools}
    body = asked(*BODIES[RESPONSES]["messages"], **({"params": members} if where == "params" else members))
    assert body["tools"] == TOOLS
    _tools.validate_python(body["tools"])


@pytest.mark.parametrize(
    ("given_as", "becomes"),
    [
        ("required", "required"),
        ({"type": "function", "function": {"name": "label"}}, {"type": "function", "name": "label"}),
        ({"type": "function", "name": "label"}, {"type": "function", "name": "label"}),
        ({"type": "custom", "custom": {"name": "sh"}}, {"type": "custom", "name": "sh"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "label"}}],
                },
            },
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "label"}]},
        ),
    ],
)
def test_the_choice_of_a_tool_is_given_in_this_endpoints_form(given_as: Any, becomes: Any) -> None:
    for body in (
        asked(*BODIES[RESPONSES]["messages"], params={"tool_choice": given_as}),
        asked(*BODIES[RESPONSES]["messages"], tool_choice=given_as),
    ):
        assert body["tool_choice"] == becomes
        _choice.validate_python(becomes)


def test_a_schema_becomes_a_strict_text_format_beside_other_wishes() -> None:
    body = sent(RESPONSES, params={"text": {"verbosity": "low"}}, output_schema=LABEL, schema_name="label!")
    assert body["text"] == {
        "verbosity": "low",
        "format": {
            "type": "json_schema",
            "name": "label_",
            "strict": True,
            "schema": {**LABEL, "additionalProperties": False},
        },
    }


def test_a_schema_and_a_text_format_contradict_each_other() -> None:
    params = {"text": {"format": {"type": "json_object"}}}
    assert refused(RESPONSES, params=params, output_schema=LABEL).reason == "text"


def test_a_body_in_this_endpoints_own_form_is_sent_as_it_is() -> None:
    own = {"input": [{"role": "user", "content": "é"}], "instructions": "x", "store": False}
    assert sent(RESPONSES, own) == {"model": "m-1", **own}
    assert sent(RESPONSES, {"input": "é"}) == {"model": "m-1", "input": "é"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": [], "input": "x"}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": None}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": [7]}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "text", "text": 7}]}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 7}]}]}, "image_url"),
        (
            {
                "messages": [
                    {"role": "system", "content": [{"type": "image_url"}]},
                    {"role": "user", "content": "x"},
                ]
            },
            "messages",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "tool_calls"),
    ],
)
def test_what_has_no_place_in_a_response_is_refused_without_its_words(body: Any, reason: str) -> None:
    error = refused(RESPONSES, body)
    assert error.reason == reason
    assert "bob" not in str(error) and "critic" not in str(error)
