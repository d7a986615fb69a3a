"""What the local model is asked: chats as plain texts, and bodies that it cannot answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.server.local_model_text import Unanswerable, read_ask

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def ask(endpoint: str = CHAT, **body: Any) -> Any:
    return read_ask(endpoint, json.dumps({"model": "m", **body}).encode())


def test_a_chat_becomes_examples_and_an_input_without_output() -> None:
    messages = [
        {"role": "system", "content": "Label tickets."},
        {"role": "user", "content": "charged twice"},
        {"role": "assistant", "content": '{"kind":"money"}'},
        {"role": "user", "content": [{"type": "text", "text": "reader is dead"}]},
    ]
    asked = ask(messages=messages)
    assert asked.text == (
        'Label tickets.\n\nInput: charged twice\nOutput: {"kind":"money"}\n\nInput: reader is dead\nOutput:'
    )


def test_a_completion_is_asked_as_it_is_and_stops_where_it_says() -> None:
    asked = ask(COMPLETIONS, prompt="Once upon", stop="\n", max_tokens=5, temperature=0.7, seed=3, top_p=0.9)
    assert (asked.text, asked.stop, asked.max_tokens, asked.schema) == ("Once upon", ("\n",), 5, None)
    assert asked.sampling == {"temperature": 0.7, "seed": 3, "top_p": 0.9}


def test_the_likeliest_tokens_and_a_fixed_seed_unless_asked_otherwise() -> None:
    assert ask(messages=user("x")).sampling == {"temperature": 0.0, "seed": 0}


def test_free_text_ends_before_the_next_input_and_json_where_the_schema_ends() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    assert ask(messages=user("x")).stop == ("\nInput:",)
    asked = ask(messages=user("x"), response_format=wanted, max_tokens=9, max_completion_tokens=7)
    assert (asked.stop, asked.schema, asked.max_tokens) == ((), SCHEMA, 7)
    assert ask(messages=user("x"), response_format={"type": "json_object"}).schema == {"type": "object"}


IMAGE = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]


@pytest.mark.parametrize(
    ("endpoint", "body", "code", "param"),
    [
        ("/v1/embeddings", {"input": "x"}, "unsupported_endpoint", None),
        (CHAT, {"messages": []}, "empty_array", "messages"),
        (CHAT, {"messages": user(IMAGE)}, "unsupported_content", "messages"),
        (CHAT, {"messages": user("x"), "tools": [{}]}, "unsupported_parameter", "tools"),
        (CHAT, {"messages": user("x"), "n": 2}, "unsupported_parameter", "n"),
        (CHAT, {"messages": user("x"), "max_tokens": 0}, "invalid_value", "max_tokens"),
        (CHAT, {"messages": user("x"), "max_tokens": "9"}, "invalid_type", "max_tokens"),
        (CHAT, {"messages": user("x"), "response_format": {"type": "json_schema"}}, "invalid_value", None),
        (COMPLETIONS, {"prompt": ["secret"]}, "invalid_type", "prompt"),
        (COMPLETIONS, {"prompt": "secret \ud83d half a pair"}, "invalid_json", None),
    ],
)
def test_what_it_cannot_be_asked_is_told_without_the_prompt(
    endpoint: str, body: dict[str, Any], code: str, param: str | None
) -> None:
    with pytest.raises(Unanswerable) as raised:
        ask(endpoint, **body)
    assert raised.value.code == code
    assert param is None or raised.value.param == param
    assert "secret" not in str(raised.value)
