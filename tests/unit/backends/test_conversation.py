"""Chats as plain values: nothing of a message, a part or a tool is lost on the way to another protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.backends.conversation import Chat, Media, Text, ToolCall, Turn, chat_reader
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import Refused

HELLO = {"role": "user", "content": "hello"}


def read(*messages: Any, params: dict[str, Any] | None = None, **own: Any) -> Chat:
    reader = chat_reader(RequestTemplate(CHAT, "m", params or {}))
    return reader(json.dumps({"messages": list(messages) or [HELLO], **own}).encode())


def refused(*messages: Any, **values: Any) -> str:
    with pytest.raises(Refused) as caught:
        read(*messages, **values)
    return caught.value.reason


def test_turns_hold_what_was_said_called_and_answered() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = read(
        {"role": "system", "content": "One."},
        {"role": "developer", "content": "Two."},
        HELLO,
        {"role": "assistant", "content": None, "tool_calls": [called], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "tool", "tool_call_id": "c9", "name": "other", "content": "found"},
    )
    assert chat.system == ("One.", "Two.")
    assert chat.turns == (
        Turn("user", (Text("hello"),)),
        Turn("assistant", (), (ToolCall("c1", "look", "{}"),)),
        Turn("tool", (Text("found"),), call_id="c1", tool_name="look"),
        Turn("tool", (Text("found"),), call_id="c9", tool_name="other"),
    )


@pytest.mark.parametrize(("detail", "kept"), [(None, ""), ("auto", ""), ("low", "low"), ("high", "high")])
def test_how_closely_an_image_is_looked_at_is_kept(detail: str | None, kept: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://x.example/a", "detail": detail}}
    chat = read({"role": "user", "content": [part]})
    assert chat.turns[0].parts == (Media("image", url="https://x.example/a", detail=kept),)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (HELLO | {"name": "ann"}, "name"),
        ({"role": "system", "content": "x", "cache_control": {"type": "ephemeral"}}, "cache_control"),
        ({"role": "assistant", "content": "x", "reasoning_content": "hm"}, "reasoning_content"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "annotations": [1]}]}, "annotations"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}, "file_id"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "content"),
        ({"role": ["user"], "content": "x"}, "role"),
        ("hello", "messages"),
    ],
)
def test_a_member_that_no_other_protocol_reads_is_refused_by_its_name(message: Any, reason: str) -> None:
    assert refused(message, HELLO) == reason


def test_an_instruction_between_other_messages_has_no_place() -> None:
    assert refused(HELLO, {"role": "system", "content": "x"}) == "role"
    assert refused({"role": "system", "content": "x"}) == "messages"


def test_a_body_goes_before_the_template_and_takes_back_what_it_names() -> None:
    params = {"max_tokens": 9, "temperature": 0.5, "seed": None}
    assert read(params=params).settings == {"temperature": 0.5}
    assert read(params=params, temperature=None).settings == {}
    assert read(params=params, temperature=1).settings == {"temperature": 1}
    assert read(params=params).max_tokens == 9
    assert read(params=params, max_completion_tokens=5).max_tokens == 5
    assert read(params=params, max_completion_tokens=5, max_tokens=None).max_tokens == 5
    assert read(params=params, max_tokens=None).max_tokens is None


def test_bodies_of_messages_alone_share_what_the_template_says() -> None:
    reader = chat_reader(RequestTemplate(CHAT, "m", {"stop": "x"}))
    body = json.dumps({"messages": [HELLO]}).encode()
    assert reader(body).settings is reader(body).settings


@pytest.mark.parametrize("params", [{"stream": True}, {"n": 2}, {"max_tokens": 0}, {"tools": [{}]}])
def test_a_templates_own_faults_are_told_before_a_row_is_read(params: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        chat_reader(RequestTemplate(CHAT, "m", params))
    assert caught.value.reason in params


def test_other_endpoints_hold_no_chats() -> None:
    with pytest.raises(Refused):
        chat_reader(RequestTemplate(EMBEDDINGS, "m"))
