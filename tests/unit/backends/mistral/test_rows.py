"""Mistral's result lines: the family's, with bodies as text, calls and moderations of another form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.backends.mistral_rows import decode_row
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def decoded(body: Any, status: int = 200, error: Any = None) -> Row:
    response = {"status_code": status, "body": body}
    line = {"id": "batch-1", "custom_id": "w-1", "response": response, "error": error}
    row = decode_row(json.dumps(line).encode())
    assert row.wire_id == "w-1"
    return row


def answer(message: Any, finish: str = "stop") -> dict[str, Any]:
    return {"model": "m-1", "usage": USAGE, "choices": [{"message": message, "finish_reason": finish}]}


def test_an_answer_is_read_with_its_tokens() -> None:
    body = answer({"role": "assistant", "content": "Hi", "tool_calls": None})
    body["usage"] = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}, "prompt_audio_seconds": None}
    row = decoded(body)
    assert (row.verdict, row.text, row.finish_reason, row.usage) == (
        Verdict.OK, "Hi", "stop", Usage(7, 2, cached=4),
    )  # fmt: skip


@pytest.mark.parametrize("prompt_tokens", [7, "7"])  # the text takes the general way
@pytest.mark.parametrize(
    "told",
    [
        {"num_cached_tokens": 4},
        {"prompt_token_details": {"cached_tokens": 4}},
        {"prompt_tokens_details": {"cached_tokens": 4}, "num_cached_tokens": 4},
        {
            "prompt_tokens_details": None,
            "prompt_token_details": {"cached_tokens": 4},
            "num_cached_tokens": None,
        },
    ],
)
def test_what_came_from_a_cache_is_counted_wherever_it_is_told(
    told: dict[str, Any], prompt_tokens: Any
) -> None:
    body = answer({"role": "assistant", "content": "Hi"})
    body["usage"] = {**USAGE, **told, "prompt_tokens": prompt_tokens}
    assert decoded(body).usage == Usage(7, 2, cached=4)


def test_what_a_model_thought_is_not_its_answer() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    row = decoded(answer({"content": [thought, {"type": "text", "text": "Four"}]}))
    assert (row.verdict, row.text) == (Verdict.OK, "Four")
    assert decoded(answer({"content": [thought]}, "length")).verdict is Verdict.TRUNCATED


@pytest.mark.parametrize("arguments", ['{"of":"a"}', {"of": "a"}])
def test_calls_have_the_form_that_every_protocol_gives_them(arguments: Any) -> None:
    call = {"id": "aB3xK9mP2", "index": 0, "function": {"name": "count", "arguments": arguments}}
    row = decoded(answer({"content": "", "tool_calls": [call]}, "tool_calls"))
    assert (row.verdict, row.text, row.finish_reason) == (Verdict.OK, None, "tool_calls")
    assert row.output == [
        {"id": "aB3xK9mP2", "type": "function", "function": {"name": "count", "arguments": '{"of":"a"}'}}
    ]


@pytest.mark.parametrize("function", [3, None, {"name": "count", "arguments": '{"of":'}])
def test_a_call_that_nobody_can_read_is_no_answer(function: Any) -> None:
    row = decoded(answer({"content": "", "tool_calls": [{"id": "aB3xK9mP2", "function": function}]}))
    assert (row.verdict, row.code) == (Verdict.INVALID_OUTPUT, "bad_tool_call")


@pytest.mark.parametrize("as_text", [False, True])
def test_a_moderation_is_flagged_where_a_category_is(as_text: bool) -> None:
    body = {
        "id": "mod-1",
        "model": "mistral-moderation-latest",
        "results": [{"categories": {"pii": True, "law": False}, "category_scores": {"pii": 0.9, "law": 0.1}}],
        "usage": USAGE,
    }
    row = decoded(json.dumps(body) if as_text else body)
    assert row.verdict is Verdict.OK and row.usage.input == 7
    assert row.output == {
        "flagged": True,
        "categories": {"pii": True, "law": False},
        "category_scores": {"pii": 0.9, "law": 0.1},
    }


def test_several_moderations_and_vectors_are_lists() -> None:
    one = {"categories": {"pii": False}, "category_scores": {"pii": 0.1}}
    output = decoded({"model": "m", "results": [one, one]}).output
    assert [found["flagged"] for found in output] == [False, False]
    vectors = [{"index": place, "embedding": [0.5, place]} for place in (1, 0)]
    assert decoded({"model": "m", "data": vectors, "usage": USAGE}).output == [[0.5, 0.0], [0.5, 1.0]]


@pytest.mark.parametrize(
    ("body", "status", "verdict"),
    [
        (json.dumps({"message": "x", "type": "invalid_request_error", "code": "3051"}), 400, "bad_request"),
        ({"detail": [{"type": "missing", "loc": ["body"], "msg": "Field required"}]}, 422, "bad_request"),
        ({"message": "Rate limit exceeded", "type": "rate_limited", "code": "1300"}, 429, "rate_limited"),
        (json.dumps({"message": "x", "type": "internal_server_error"}), 500, "server_error"),
        ({"message": "Unauthorized"}, 401, "account"),
    ],
)
def test_a_failed_row_is_judged_by_its_status_in_either_form(body: Any, status: int, verdict: str) -> None:
    assert decoded(body, status).verdict == verdict


@pytest.mark.parametrize(
    ("finish", "verdict"),
    [
        ("length", Verdict.TRUNCATED),
        ("model_length", Verdict.TRUNCATED),
        ("error", Verdict.SERVER_ERROR),
    ],
)
def test_an_answer_that_broke_off_is_none(finish: str, verdict: Verdict) -> None:
    assert decoded(answer({"content": "Hi"}, finish)).verdict is verdict


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b'{"custom_id":"w","response":{"status_code":200,"body":{"results":[1]}}}',
        b'{"custom_id":"w","response":{"status_code":200,"body":{"results":[{"categories":3}]}}}',
        b'{"custom_id":"w","response":{"status_code":200,"body":"{"}}',
        b'{"custom_id":null,"response":null,"error":null}',
    ],
)
def test_a_line_that_cannot_be_read_is_unknown_and_never_raises(line: bytes) -> None:
    assert decode_row(line).verdict is Verdict.UNKNOWN


def test_a_context_that_is_full_ends_an_answer_in_the_words_of_all() -> None:
    row = decoded(answer({"content": "Four and"}, "model_length"))
    assert (row.verdict, row.code, row.finish_reason) == (Verdict.TRUNCATED, "model_length", "length")
