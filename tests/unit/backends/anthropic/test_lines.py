"""Requests: everything that a chat can ask, in Anthropic's form, or refused by name."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from airflow_batch_llm.backends.anthropic_lines import line_encoder
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, ENDPOINTS
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import OutputSchemaError, Refused
from tests.unit.backends.anthropic.conftest import Bench

NEW, OLD = "2026-10-21", "2023-06-01"
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
PIXEL = base64.b64encode(b"\x89PNG").decode()
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SENT_TOOL = {
    "name": "weather",
    "description": "Look it up.",
    "input_schema": TOOL["function"]["parameters"],  # type: ignore[index]
}
SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}


def call(number: int, arguments: str = '{"city": "Rome"}') -> dict[str, Any]:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "weather", "arguments": arguments},
    }


def user(content: Any = "hello") -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.fixture(scope="module")
def judge() -> TypeAdapter[Any]:
    """The vendor's own idea of a request."""
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    return TypeAdapter(MessageCreateParamsNonStreaming)


def template(version: str = NEW, **values: Any) -> RequestTemplate:
    params = {"max_tokens": 100, **values.pop("params", {})}
    return RequestTemplate(CHAT, "claude-test", params, **values)


def params_of(*messages: Any, version: str = NEW, own: dict[str, Any] | None = None, **values: Any) -> Any:
    """Return the params that a chat is sent with."""
    encode = line_encoder(template(**values), version=version)
    line = encode("w-1", json.dumps({"messages": list(messages) or [user()], **(own or {})}).encode())
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    sent = json.loads(line)
    assert sent.keys() == {"custom_id", "params"} and sent["custom_id"] == "w-1"
    return sent["params"]


def refused(*messages: Any, **values: Any) -> str:
    """Return the name under which a chat is refused."""
    with pytest.raises(Refused) as caught:
        params_of(*messages, **values)
    return caught.value.reason


# -- messages --------------------------------------------------------------------------------------
def test_a_plain_question_is_sent_with_model_and_limit(judge: TypeAdapter[Any]) -> None:
    sent = params_of({"role": "system", "content": "Be brief."}, user())
    assert sent == {
        "model": "claude-test",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "hello"}],
    }
    judge.validate_python(sent)


def test_every_instruction_is_a_block_and_blank_ones_are_none() -> None:
    sent = params_of(
        {"role": "system", "content": "One."},
        {"role": "developer", "content": [{"type": "text", "text": "Two."}]},
        {"role": "system", "content": " \n"},
        user(),
    )
    assert [block["text"] for block in sent["system"]] == ["One.", "Two."]
    assert "system" not in params_of({"role": "system", "content": ""}, user())


def test_images_and_documents_are_sent_with_their_bytes_or_addresses(judge: TypeAdapter[Any]) -> None:
    text = base64.b64encode("Zeile ü\n".encode()).decode()
    sent = params_of(
        user(
            [
                {"type": "text", "text": "What is this?"},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/PNG;base64,{PIXEL}", "detail": "auto"},
                },
                {"type": "image_url", "image_url": "https://pictures.example/a.jpg"},
                {
                    "type": "file",
                    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
                },
                {"type": "file", "file": {"filename": "a.csv", "file_data": f"data:text/csv;base64,{text}"}},
                {"type": "file", "file": {"file_data": "https://papers.example/a.pdf"}},
            ]
        )
    )
    assert sent["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                {"type": "image", "source": {"type": "url", "url": "https://pictures.example/a.jpg"}},
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
                    "title": "a.pdf",
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "Zeile ü\n"},
                    "title": "a.csv",
                },
                {"type": "document", "source": {"type": "url", "url": "https://papers.example/a.pdf"}},
            ],
        }
    ]
    judge.validate_python(sent)


def test_calls_and_the_results_of_all_of_them_are_one_turn_each(judge: TypeAdapter[Any]) -> None:
    sent = params_of(
        user("Weather?"),
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call(1), call(2, "")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "rain"}]},
        user("Nice there?"),
        user("Say."),
        params={"tools": [TOOL]},
    )
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
        {"type": "tool_use", "id": "call_2", "name": "weather", "input": {}},
    ]
    assert sent["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "rain"},
        {"type": "text", "text": "Nice there?"},
        {"type": "text", "text": "Say."},
    ]
    judge.validate_python(sent)


def test_a_tool_without_anything_to_say_is_answered_all_the_same() -> None:
    sent = params_of(
        user(),
        {"role": "assistant", "content": None, "tool_calls": [call(1)]},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
        params={"tools": [TOOL]},
    )
    assert sent["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "call_1"}]


def test_the_words_of_an_assistant_who_speaks_last_begin_the_answer() -> None:
    sent = params_of(user(), {"role": "assistant", "content": "The label is ("})
    assert sent["messages"][-1] == {"role": "assistant", "content": "The label is ("}
    assert refused(user(), {"role": "assistant", "content": "The label is "}) == "content"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (user(""), "content"),
        (user(" \n"), "content"),
        (user([{"type": "hologram"}]), "content"),
        (user([{"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}}]), "content"),
        (
            user([{"type": "image_url", "image_url": {"url": "https://x.example/a", "detail": "low"}}]),
            "detail",
        ),
        (user([{"type": "file", "file": {"file_data": "data:audio/mpeg;base64,AAAA"}}]), "content"),
        (user([{"type": "file", "file": {"file_data": "data:text/plain;base64,////"}}]), "content"),
        (user([{"type": "file", "file": {"file_id": "file-1"}}]), "file_id"),
        (user([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]), "cache_control"),
        ({"role": "user", "content": "x", "name": "ann"}, "name"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "audio"),
        ({"role": "assistant", "content": None, "tool_calls": [call(1, "[1]")]}, "tool_calls"),
        ({"role": "assistant", "content": None, "tool_calls": [call(1, "{")]}, "tool_calls"),
        (
            {"role": "assistant", "content": [{"type": "image_url", "image_url": "https://x.example/a"}]},
            "content",
        ),
        ({"role": "critic", "content": "x"}, "role"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_by_what_is_wrong(message: Any, reason: str) -> None:
    assert refused(user(), message, user()) == reason


def test_members_that_say_nothing_are_no_obstacle() -> None:
    sent = params_of(
        user(),
        {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None},
        user(),
    )
    assert sent["messages"][1] == {"role": "assistant", "content": "x"}


# -- settings --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("params", "becomes"),
    [
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ["a", "b"]}, {"stop_sequences": ["a", "b"]}),
        ({"user": "u-1"}, {"metadata": {"user_id": "u-1"}}),
        ({"safety_identifier": "u-1", "user": "u-1"}, {"metadata": {"user_id": "u-1"}}),
        ({"metadata": {"user_id": "u-1"}}, {"metadata": {"user_id": "u-1"}}),
        ({"service_tier": "auto"}, {"service_tier": "auto"}),
        ({"service_tier": "default"}, {"service_tier": "standard_only"}),
        ({"reasoning_effort": "high"}, {"output_config": {"effort": "high"}}),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        ({"output_config": {"effort": "max"}}, {"output_config": {"effort": "max"}}),
        ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}}),
        ({"inference_geo": "eu"}, {"inference_geo": "eu"}),
        ({"max_completion_tokens": 7, "max_tokens": None}, {"max_tokens": 7}),
        ({"response_format": {"type": "text"}}, {}),
        ({"frequency_penalty": 0, "presence_penalty": 0.0, "logprobs": False, "store": False, "n": 1}, {}),
        ({"stream": False, "seed": None, "parallel_tool_calls": False}, {}),
    ],
)
def test_settings_that_mean_the_same_are_renamed(
    params: dict[str, Any], becomes: dict[str, Any], judge: TypeAdapter[Any]
) -> None:
    for sent in (params_of(params=params), params_of(own=params, params={"max_tokens": 100})):
        rest = {k: v for k, v in sent.items() if k not in ("model", "messages")}
        assert rest == {"max_tokens": 100} | becomes
        judge.validate_python(sent)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"seed": 1}, "seed"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -1}, "presence_penalty"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"store": True}, "store"),
        ({"speed": "fast"}, "speed"),
        ({"verbosity": "low"}, "verbosity"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key"),
        ({"functions": []}, "functions"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": "a", "stop_sequences": ["b"]}, "stop_sequences"),
        ({"metadata": {"team": "a"}}, "metadata"),
        ({"user": "a", "safety_identifier": "b"}, "safety_identifier"),
        ({"user": 5}, "user"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"reasoning_effort": "minimal"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "output_config": {"effort": "max"}}, "output_config"),
        ({"reasoning_effort": "none", "thinking": {"type": "adaptive"}}, "thinking"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
    ],
)
def test_what_has_no_place_is_refused_by_name_before_a_row_is_read(
    params: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Refused) as caught:
        line_encoder(template(params=params), version=NEW)
    assert caught.value.reason == reason
    if params != {"max_tokens": None}:
        assert refused(own=params) == reason


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_is_refused_by_the_newest_version_and_taken_by_the_older(name: str) -> None:
    value = 20 if name == "top_k" else 0.5
    for given in ({"params": {name: value}}, {"own": {name: value}}):
        with pytest.raises(Refused, match=OLD) as caught:
            params_of(**given)  # type: ignore[arg-type]
        assert caught.value.reason == name
        assert params_of(version=OLD, **given)[name] == value  # type: ignore[arg-type]
    assert refused(params={"temperature": 1.5}, version=OLD) == "temperature"


def test_the_version_is_the_connections(bench: Bench) -> None:
    asked = template(params={"temperature": 0.5})
    with pytest.raises(Refused):
        bench.backend().line_encoder(asked)
    assert bench.backend(api_version=OLD).line_encoder(asked)


def test_an_output_limit_is_never_chosen_for_the_caller() -> None:
    with pytest.raises(Refused, match="max_tokens") as caught:
        line_encoder(RequestTemplate(CHAT, "m"), version=NEW)
    assert caught.value.reason == "max_tokens"
    assert refused(own={"max_tokens": None}) == "max_tokens"
    assert params_of(own={"max_completion_tokens": 5})["max_tokens"] == 5


def test_a_body_wins_over_the_template() -> None:
    sent = params_of(own={"model": "other", "max_tokens": 5, "stop": "X"}, params={"stop": "Y", "user": "u"})
    assert (sent["model"], sent["max_tokens"], sent["stop_sequences"]) == ("other", 5, ["X"])
    assert sent["metadata"] == {"user_id": "u"}
    assert "stop_sequences" not in params_of(own={"stop": None}, params={"stop": "Y"})


@pytest.mark.parametrize("endpoint", sorted(set(ENDPOINTS.values()) - {CHAT}))
def test_other_endpoints_are_refused_by_name(endpoint: str) -> None:
    with pytest.raises(Refused, match="chat") as caught:
        line_encoder(RequestTemplate(endpoint, "m", {"max_tokens": 5}), version=NEW)
    assert caught.value.reason == "endpoint"
    with pytest.raises(Refused):
        line_encoder(RequestTemplate(EMBEDDINGS, "m", native=True), version=NEW)


# -- tools -----------------------------------------------------------------------------------------
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("params", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": NAMED}, {"type": "tool", "name": "weather"}),
        ({"parallel_tool_calls": True}, None),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"type": "any", "disable_parallel_tool_use": True},
        ),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
    ],
)
def test_tools_and_how_they_are_chosen(params: Any, choice: Any, judge: TypeAdapter[Any]) -> None:
    for given in ({"params": {"tools": [TOOL], **params}}, {"own": {"tools": [TOOL], **params}}):
        sent = params_of(**given)
        assert (sent["tools"], sent.get("tool_choice")) == ([SENT_TOOL], choice)
        judge.validate_python(sent)


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    bare = {"type": "function", "function": {"name": "now"}}
    sent = params_of(params={"tools": [bare]})
    assert sent["tools"] == [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]


def test_a_strict_tool_has_a_schema_that_the_protocol_takes() -> None:
    strict = {
        "type": "function",
        "function": {
            "name": "rate",
            "strict": True,
            "parameters": {"type": "object", "properties": {"stars": {"type": "integer", "minimum": 1}}},
        },
    }
    (tool,) = params_of(params={"tools": [strict]})["tools"]
    assert tool["strict"] is True and tool["input_schema"]["additionalProperties"] is False
    assert tool["input_schema"]["properties"]["stars"]["description"] == "(minimum: 1)"


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{**TOOL, "function": {"name": "x", "strict": True, "parameters": {}}}]}, "tools"),
        ({"tools": [{**TOOL, "function": {"name": "x", "examples": ["y"]}}]}, "examples"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}]},
            "tools",
        ),
    ],
)
def test_tools_that_cannot_be_sent_are_refused(params: dict[str, Any], reason: str) -> None:
    assert refused(params=params) == reason
    assert refused(own=params) == reason


# -- structured output -----------------------------------------------------------------------------
def test_an_output_schema_is_sent_by_the_protocols_own_means(judge: TypeAdapter[Any]) -> None:
    sent = params_of(output_schema=SCHEMA, params={"reasoning_effort": "low"})
    assert sent["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": SCHEMA | {"additionalProperties": False}},
    }
    judge.validate_python(sent)


def test_a_response_format_is_the_same_and_stands_alone() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    assert params_of(params={"response_format": form})["output_config"]["format"]["type"] == "json_schema"
    assert refused(params={"response_format": form}, output_schema=SCHEMA) == "response_format"
    assert refused(own={"response_format": form}, output_schema=SCHEMA) == "response_format"


def test_a_schema_that_cannot_be_sent_stops_the_job_and_that_of_one_body_only_its_row() -> None:
    with pytest.raises(OutputSchemaError):
        line_encoder(template(output_schema={"type": "array", "items": SCHEMA}), version=NEW)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    with pytest.raises(OutputSchemaError):
        line_encoder(template(params={"response_format": form}), version=NEW)
    assert refused(own={"response_format": form}) == "response_format"


# -- the prompt cache ------------------------------------------------------------------------------
def marked(sent: dict[str, Any]) -> list[str]:
    """Return where the marks are."""
    found = [f"tools.{i}" for i, tool in enumerate(sent.get("tools", [])) if tool.get("cache_control")]
    found += [f"system.{i}" for i, block in enumerate(sent.get("system", [])) if block.get("cache_control")]
    for place, message in enumerate(sent["messages"]):
        blocks = message["content"] if isinstance(message["content"], list) else []
        found += [f"messages.{place}.{i}" for i, block in enumerate(blocks) if block.get("cache_control")]
    return found


SYSTEM = [{"role": "system", "content": "One."}, {"role": "system", "content": "Two."}]
SHOTS = [user("a"), {"role": "assistant", "content": "b"}]
LOOKED = [
    {"role": "assistant", "content": None, "tool_calls": [call(1)]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]


@pytest.mark.parametrize(
    ("messages", "shared", "params", "marks"),
    [
        ([user()], 0, {}, []),
        ([user()], 0, {"tools": [TOOL, TOOL]}, ["tools.1"]),
        ([*SYSTEM, user()], 2, {"tools": [TOOL]}, ["system.1"]),
        ([*SYSTEM, user()], 1, {}, ["system.0"]),
        # A system message of the row's own: nothing behind the tools is shared.
        ([*SYSTEM, *SHOTS, user()], 0, {"tools": [TOOL]}, ["tools.0"]),
        ([*SHOTS, user()], 2, {"tools": [TOOL]}, ["messages.1.0"]),
        ([*SYSTEM, *SHOTS, *SHOTS, user()], 6, {}, ["system.1", "messages.3.0"]),
        # A history of the row's own is written for nobody else.
        (
            [*SYSTEM, *SHOTS, user("a"), *LOOKED, user("b")],
            4,
            {"tools": [TOOL]},
            ["system.1", "messages.1.0"],
        ),
        ([*SYSTEM, user("a"), *LOOKED, user("b")], 2, {"tools": [TOOL]}, ["system.1"]),
        ([*SHOTS, user(), {"role": "assistant", "content": "("}], 2, {}, ["messages.1.0"]),
        ([{"role": "system", "content": " "}, *SHOTS, user()], 1, {}, []),
    ],
)
def test_the_end_of_what_requests_share_is_marked_for_an_hour(
    messages: list[Any], shared: int, params: dict[str, Any], marks: list[str], judge: TypeAdapter[Any]
) -> None:
    plain = params_of(*messages, params=params, shared_messages=shared)
    cached = params_of(*messages, params=params, cache_prefix=True, shared_messages=shared)
    assert (marked(plain), marked(cached)) == ([], marks)
    judge.validate_python(cached)
    if marks:
        assert json.dumps(MARK)[1:-1] in json.dumps(cached)


def test_a_mark_changes_nothing_else() -> None:
    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: bare(v) for k, v in value.items() if k != "cache_control"}
        return [bare(one) for one in value] if isinstance(value, list) else value

    messages = [*SYSTEM, user("a"), *LOOKED, user("b")]
    cached = params_of(*messages, params={"tools": [TOOL]}, cache_prefix=True, shared_messages=2)
    assert bare(cached) == params_of(*messages, params={"tools": [TOOL]})


# -- native bodies, ends of lines ------------------------------------------------------------------
NATIVE = {"model": "m", "max_tokens": 5, "messages": [user()], "tools": [{"type": "web_search_20250305"}]}


def native(body: Any, version: str = NEW) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return line_encoder(RequestTemplate(CHAT, "", native=True), version=version)("w-1", data)


def test_the_providers_own_body_gets_a_frame_and_nothing_else() -> None:
    assert json.loads(native(NATIVE)) == {"custom_id": "w-1", "params": NATIVE}
    pretty = native(json.dumps(NATIVE, indent=2).encode() + b"\r\n")
    assert pretty.count(b"\n") == 1 and json.loads(pretty)["params"] == NATIVE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": ""}, "missing_model"),
        ({"max_tokens": None}, "missing_max_tokens"),
        ({"messages": None}, "missing_messages"),
        ({"stream": True}, "stream"),
        ({"temperature": 0.1}, "temperature"),
    ],
)
def test_a_body_of_the_providers_own_that_would_fail_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused) as caught:
        native(NATIVE | changes)
    assert caught.value.reason == reason
    with pytest.raises(Refused):
        native(b"[1]")
    assert native(NATIVE | {"temperature": 0.1}, OLD)


def test_text_of_any_kind_stays_within_its_line() -> None:
    odd = 'a\nb\r\u2028\u2029\x85\x00"\\ 🙂 {{ row }}'
    assert params_of(user(odd))["messages"] == [user(odd)]
