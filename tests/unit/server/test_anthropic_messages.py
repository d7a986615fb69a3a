"""Replies of other servers, as Anthropic's messages and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.server.anthropic_messages import message_of, row_error
from airflow_batch_llm.server.translation import Answer, Failure, read_chat
from airflow_batch_llm.server.wire import Reply


def reply(body: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(body).encode(), 100, 20)


def answer(message: dict[str, Any], finish: str = "stop", **usage: Any) -> dict[str, Any]:
    """Return the message made of a completion."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    body = {"id": "chatcmpl-abc", "created": 5, "model": "other", "choices": [choice], "usage": usage}
    found = read_chat(reply(body))
    assert isinstance(found, Answer)
    return message_of(found, "m-1", None, shows_thinking=True)


def test_what_an_upstream_had_cached_is_shown_as_read() -> None:
    usage = answer({"content": "hi"}, prompt_tokens_details={"cached_tokens": 60})["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (40, 60)
    assert usage["cache_creation_input_tokens"] == 0


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_an_upstream_thought_is_a_block_before_the_text(name: str) -> None:
    found = answer({"content": "hi", name: "hm"}, completion_tokens_details={"reasoning_tokens": 7})
    assert [block["type"] for block in found["content"]] == ["thinking", "text"]
    assert found["usage"]["output_tokens_details"] == {"thinking_tokens": 7}
    assert found["model"] == "m-1", "a message names the model that was asked for"


@pytest.mark.parametrize(
    ("arguments", "given"), [('{"a": 1}', {"a": 1}), ("", {}), ('{"a": ', {}), ("[1]", {})]
)
def test_the_input_of_a_tool_is_always_an_object(arguments: str, given: dict[str, Any]) -> None:
    call = {"id": "call_9", "type": "function", "function": {"name": "f", "arguments": arguments}}
    found = answer({"content": None, "tool_calls": [call]}, "tool_calls")
    assert found["content"] == [{"type": "tool_use", "id": "toolu_9", "name": "f", "input": given}]
    assert found["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, {"error": {"message": "no", "type": "x", "code": None}}, "invalid_request_error", "no"),
        (400, {"object": "error", "message": "older", "code": 400}, "invalid_request_error", "older"),
        (404, {"error": "no such model"}, "not_found_error", "no such model"),
        (503, ["?"], "api_error", "The request failed."),
        (200, {"choices": []}, "api_error", "The request failed."),
        (529, {}, "overloaded_error", "The request failed."),
    ],
)
def test_errors_of_an_upstream_have_the_type_of_their_status(
    status: int, body: Any, kind: str, message: str
) -> None:
    found = read_chat(reply(body, status))
    assert isinstance(found, Failure)
    error = row_error(found, "workerreq_1")
    assert error == {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "workerreq_1",
    }


def test_no_reply_at_all_is_a_time_out() -> None:
    found = read_chat(Reply(0))
    assert isinstance(found, Failure)
    assert row_error(found, None)["error"]["type"] == "timeout_error"
