"""Mistral's request bodies in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.server.mistral_bodies import openai_body
from airflow_batch_llm.server.translation import BadRequest

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}


def made(body: dict[str, Any], endpoint: str = CHAT) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(openai_body(endpoint, "m-1", json.dumps(body).encode()))
    return found


def test_names_and_words_are_openais() -> None:
    body = {"messages": [USER], "random_seed": 7, "tool_choice": "any", "max_tokens": 5, "safe_prompt": True}
    assert made({**body, "model": "other", "top_p": None}) == {
        "messages": [USER],
        "seed": 7,
        "tool_choice": "required",
        "max_tokens": 5,
        "model": "m-1",
    }


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "image_url", "image_url": "u"}, {"type": "image_url", "image_url": {"url": "u"}}),
        (
            {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
        ),
        (
            {"type": "document_url", "document_url": "u", "document_name": "a.pdf"},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "u"}},
        ),
    ],
)
def test_parts_are_openais(part: dict[str, Any], expected: dict[str, Any]) -> None:
    [message] = made({"messages": [{"role": "user", "content": [part]}]})["messages"]
    assert message["content"] == [expected]


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a":1}'])
def test_arguments_of_a_call_are_a_text(arguments: Any) -> None:
    call = {"id": "c-1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": "", "tool_calls": [call], "prefix": True}
    [_, message] = made({"messages": [USER, said]})["messages"]
    function = {"name": "f", "arguments": '{"a":1}'}
    assert message["tool_calls"] == [{"id": "c-1", "type": "function", "function": function}]
    assert "prefix" not in message


def test_embeddings_and_moderations_lose_what_is_mistrals() -> None:
    body = {"input": ["a"], "output_dimension": 8, "output_dtype": "float", "metadata": {"k": "v"}}
    assert made(body, "/v1/embeddings") == {"input": ["a"], "dimensions": 8, "model": "m-1"}
    assert made({"input": "a", "metadata": {}}, "/v1/moderations") == {"input": "a", "model": "m-1"}


@pytest.mark.parametrize(
    ("body", "endpoint", "param"),
    [
        ({"messages": [USER], "seed": 1}, CHAT, "seed"),
        ({"input": "a", "dimensions": 8}, "/v1/embeddings", "dimensions"),
        ({"input": "a", "output_dtype": "int8"}, "/v1/embeddings", "output_dtype"),
        ({"input": "a", "output_dimension": 8}, "/v1/moderations", "output_dimension"),
    ],
)
def test_what_the_endpoint_does_not_know_is_refused(body: dict[str, Any], endpoint: str, param: str) -> None:
    with pytest.raises(BadRequest) as told:
        made(body, endpoint)
    assert told.value.param == param
