"""Whatever a row's body, or a task's parameter, holds: it is encoded or refused by name. Nothing else is
raised, so that no row stops the others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import OutputSchemaError, Refused

_NAMES = [
    "max_tokens", "temperature", "top_p", "stop", "seed", "n", "stream", "tools", "tool_choice",
    "parallel_tool_calls", "response_format", "reasoning_effort", "service_tier", "user", "metadata",
    "logit_bias", "logprobs", "modalities", "thinking", "output_config", "stop_sequences", "model",
    "encoding_format", "dimensions", "task_type", "title", "prediction", "prompt_mode",
]  # fmt: skip


def _schema(properties: Any, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, **more}
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def _tool(parameters: Any) -> list[Any]:
    return [
        {"type": "function", "function": {"name": "f", "strict": strict, "parameters": parameters}}
        for strict in (True, False)
    ]


_VALUES: list[Any] = [
    True, -1, 1.5, "", "x", [], ["a"], [1], [[]], [{}], {}, {"type": []}, {"type": {}}, {"a": [1]},
    [{"type": []}], [{"type": "function"}], _tool([]), _tool({"type": []}),
    _tool({"type": "object", "properties": 5}),
    _tool({"type": "object", "properties": {"a": 5}, "required": [[]]}),
    _schema([]), _schema({"a": {"$ref": []}}), _schema({"a": {"type": "string", "format": []}}),
    _schema({"a": {"type": "string", "enum": [{}]}}), _schema({"a": {"type": "string"}}, required=5),
    _schema({"a": {"type": "string"}}, required=[[]]),
    _schema({"a": {"type": "array", "items": {"allOf": 5}}}),
]  # fmt: skip
_SAID = {"role": "user", "content": "a"}


def _calls(calls: Any) -> list[Any]:
    return [_SAID, {"role": "assistant", "tool_calls": calls}]


def _call(arguments: str) -> list[Any]:
    return _calls([{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}])


_MESSAGES: list[Any] = [
    5, [5], [{"role": []}], [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": []}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5, "detail": []}}]}],
    [{"role": "user", "content": [{"type": "file", "file": {"file_data": "data:text/plain;base64,A"}}]}],
    _calls(5), _calls([5]), _calls({"a": 1}), _call("["), _call("[1]"), _call('{"a": NaN}'),
    _call('{"a":' + "[" * 5000 + "]" * 5000 + "}"), [_SAID, {"role": "assistant", "refusal": 5}],
    [{"role": "tool", "tool_call_id": "a", "content": None, "name": []}],
    [{"role": "system", "content": None}],
]  # fmt: skip
_MAIN: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [_SAID]},
    RESPONSES: {"input": "x"},
    COMPLETIONS: {"prompt": "x"},
    EMBEDDINGS: {"input": "x"},
    MODERATIONS: {"input": "x"},
}


def _bodies(endpoint: str) -> Iterator[dict[str, Any]]:
    main = _MAIN[endpoint]
    yield from ({**main, name: value} for name in _NAMES for value in _VALUES)
    if endpoint == CHAT:
        yield from ({"messages": messages} for messages in _MESSAGES)
    else:
        yield from ({next(iter(main)): value} for value in _VALUES)


@pytest.mark.parametrize("endpoint", _MAIN)
@pytest.mark.parametrize("provider", ["openai", "azure", "anthropic", "gemini", "mistral"])
def test_a_body_is_encoded_or_refused(provider: str, endpoint: str) -> None:
    backend = make_backend(provider, base_url="http://localhost:1", api_key="k", options={})
    params = {"max_tokens": 5} if endpoint == CHAT else {}
    try:
        encode = backend.line_encoder(RequestTemplate(endpoint, "gemini-2.5-flash", params))
    except Refused as error:
        assert error.reason == "endpoint"
        return
    refused = 0
    for body in _bodies(endpoint):
        try:
            line = encode("w", json.dumps(body).encode())
        except Refused:
            refused += 1
        else:
            assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert refused


@pytest.mark.parametrize("provider", ["anthropic", "gemini", "mistral"])
def test_a_task_with_an_odd_parameter_is_told_so_before_any_row(provider: str) -> None:
    backend = make_backend(provider, base_url="http://localhost:1", api_key="k", options={})
    for name in _NAMES:
        for value in _VALUES:
            params = {"max_tokens": 5, name: value}
            with contextlib.suppress(Refused, OutputSchemaError):
                backend.line_encoder(RequestTemplate(CHAT, "gemini-2.5-flash", params))
