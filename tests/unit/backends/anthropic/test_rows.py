"""Result lines: four types, errors one level down, stop reasons, usage, and whatever else may come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.backends.anthropic_rows import decode_row
from airflow_batch_llm.core.jsonl import iter_lines
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import DEFAULT_DISPOSITIONS, Disposition, Verdict
from tests.unit.backends.conftest import CASES

USAGE = {"input_tokens": 5, "output_tokens": 2}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
WORDS = {"type": "text", "text": "A1"}


def message(*content: Any, stop: Any = "end_turn", **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "c-1", "content": list(content),
        "stop_reason": stop, "stop_sequence": None, "usage": USAGE, **more,
    }  # fmt: skip


def decode(result: Any, wire_id: Any = "w-1") -> Row:
    return decode_row(json.dumps({"custom_id": wire_id, "result": result}).encode())


def answered(*content: Any, **more: Any) -> Row:
    return decode({"type": "succeeded", "message": message(*content, **more)})


def errored(kind: str, text: str = "x", **more: Any) -> Row:
    error = {"type": kind, "message": text, **more}
    return decode({"type": "errored", "error": {"type": "error", "error": error, "request_id": None}})


# -- D08 -------------------------------------------------------------------------------------------
def test_D08_all_four_types_and_one_that_nobody_knows() -> None:
    lines = iter_lines([(CASES / "D08" / "results.jsonl").read_bytes()])
    found = {row.wire_id: row for row in (decode_row(line) for _, line in lines)}
    assert {wire_id: row.verdict.value for wire_id, row in found.items()} == {
        "r-1": "ok", "r-2": "server_error", "r-3": "cancelled", "r-4": "expired", "r-5": "bad_request",
        "r-6": "unknown",
    }  # fmt: skip
    assert found["r-1"].text == "A1" and found["r-1"].usage == Usage(5, 2)
    assert (found["r-5"].code, found["r-5"].message) == ("invalid_request_error", "max_tokens: too large")
    assert (found["r-2"].code, found["r-6"].code) == ("overloaded_error", "paused")
    dispositions = {wire_id: DEFAULT_DISPOSITIONS[row.verdict] for wire_id, row in found.items()}
    assert dispositions["r-2"] is Disposition.RETRY and dispositions["r-4"] is Disposition.RETRY_FREE
    assert dispositions["r-3"] is Disposition.RETRY_FREE and dispositions["r-5"] is Disposition.DEAD


# -- answers ---------------------------------------------------------------------------------------
def test_texts_are_joined_and_thoughts_left_out() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
    ]
    for row in (
        answered(WORDS),
        answered(*thoughts, WORDS),
        answered(
            thoughts[0], {"type": "text", "text": "A"}, {"type": "text", "text": "1", "citations": None}
        ),
        # Types that surprise the typed path.
        answered(WORDS, model=None),
        answered(WORDS, usage={"input_tokens": "5", "output_tokens": 2.0}),
        answered({"type": "server_tool_use", "id": 7, "name": "web_search", "input": {}}, WORDS),
    ):
        assert (row.verdict, row.text, row.finish_reason, row.wire_id) == (Verdict.OK, "A1", "stop", "w-1")
        assert row.usage == Usage(5, 2)


@pytest.mark.parametrize(
    ("stop", "verdict", "finish"),
    [
        ("end_turn", Verdict.OK, "stop"),
        ("stop_sequence", Verdict.OK, "stop"),
        ("tool_use", Verdict.OK, "tool_calls"),
        ("max_tokens", Verdict.TRUNCATED, "length"),
        ("model_context_window_exceeded", Verdict.TRUNCATED, "length"),
        ("refusal", Verdict.FILTERED, "content_filter"),
        ("pause_turn", Verdict.TIMEOUT, "pause_turn"),
        ("compaction", Verdict.OK, "compaction"),
        (None, Verdict.OK, ""),
    ],
)
def test_why_an_answer_ended_decides_and_is_told_in_the_common_words(
    stop: Any, verdict: Verdict, finish: str
) -> None:
    row = answered(WORDS, stop=stop)
    assert (row.verdict, row.finish_reason, row.text, row.model) == (verdict, finish, "A1", "c-1")
    assert bool(row.code) is (verdict is not Verdict.OK)


@pytest.mark.parametrize("wrong", [{"name": None}, {"name": ""}, {"input": "Rome"}, {"input": [1]}])
def test_a_call_that_nobody_can_read_is_no_answer(wrong: dict[str, Any]) -> None:
    row = answered(CALL | wrong, stop="tool_use")
    assert (row.verdict, row.code) == (Verdict.INVALID_OUTPUT, "bad_tool_call")


def test_calls_are_those_of_a_chat() -> None:
    row = answered({"type": "text", "text": "Let me look."}, CALL, stop="tool_use")
    assert (row.verdict, row.text) == (Verdict.OK, "Let me look.")
    (call,) = row.output
    assert call["id"] == "toolu_1" and call["type"] == "function"
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Rome"}'}
    assert answered(CALL, stop="max_tokens").output is None, "half a call is none"


def test_a_refusal_names_its_policy_and_keeps_what_it_says() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "not this"}
    row = answered(stop="refusal", stop_details=details)
    assert (row.verdict, row.code, row.text) == (Verdict.FILTERED, "cyber", "not this")
    row = answered({"type": "text", "text": "I can"}, stop="refusal", stop_details=None)
    assert (row.code, row.text) == ("refusal", "I can")


@pytest.mark.parametrize("content", [[], [{"type": "text", "text": ""}], [{"type": "text", "text": " \n"}]])
def test_an_answer_without_words_and_calls_is_empty(content: list[Any]) -> None:
    row = answered(*content)
    assert (row.verdict, row.code, row.usage) == (Verdict.EMPTY, "no_content", Usage(5, 2))


# -- errors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("invalid_request_error", Verdict.BAD_REQUEST),
        ("not_found_error", Verdict.BAD_REQUEST),
        ("request_too_large", Verdict.TOO_LARGE),
        ("authentication_error", Verdict.ACCOUNT),
        ("permission_error", Verdict.ACCOUNT),
        ("billing_error", Verdict.ACCOUNT),
        ("rate_limit_error", Verdict.RATE_LIMITED),
        ("timeout_error", Verdict.TIMEOUT),
        ("api_error", Verdict.SERVER_ERROR),
        ("overloaded_error", Verdict.SERVER_ERROR),
        ("conflict_error", Verdict.SERVER_ERROR),
        ("surprising_error", Verdict.UNKNOWN),
    ],
)
def test_the_inner_type_decides_whether_the_request_ran_or_not(kind: str, verdict: Verdict) -> None:
    for request_id in (None, "workerreq_1"):
        error = {"type": "error", "error": {"type": kind, "message": "m"}, "request_id": request_id}
        row = decode({"type": "errored", "error": error})
        assert (row.verdict, row.code, row.message, row.text) == (verdict, kind, "m", None)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("organization_on_hold", Verdict.ACCOUNT),
        ("enforced_spend_limit_reached", Verdict.ACCOUNT),
        ("ramp_limit_exceeded", Verdict.RATE_LIMITED),
        ("image_dimensions_too_large", Verdict.TOO_LARGE),
        ("something_new", Verdict.BAD_REQUEST),
    ],
)
def test_the_code_in_an_errors_details_says_more_than_its_type(code: str, verdict: Verdict) -> None:
    row = errored("invalid_request_error", details={"error_visibility": "user_facing", "error_code": code})
    assert (row.verdict, row.code) == (verdict, code)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", Verdict.TOO_LARGE),
        ("input length and `max_tokens` exceed context limit: 1 + 2 > 2", Verdict.TOO_LARGE),
        ("Your credit balance is too low to access the API", Verdict.ACCOUNT),
        ("You have reached your specified workspace API usage limits.", Verdict.ACCOUNT),
        ("messages.0.content: spend your time well", Verdict.BAD_REQUEST),
    ],
)
def test_what_only_the_text_tells_is_heard(text: str, verdict: Verdict) -> None:
    assert errored("invalid_request_error", text).verdict is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Error code: 429 - {'error': {'message': 'slow down'}}", Verdict.RATE_LIMITED),
        ("Error code: 400 - {'error': {'message': 'bad'}}", Verdict.BAD_REQUEST),
        ("Error code: 500 - {'error': {'message': 'oops'}}", Verdict.SERVER_ERROR),
        ("Unexpected streaming response", Verdict.SERVER_ERROR),
    ],
)
def test_a_gateways_error_is_told_apart_by_the_status_in_its_text(text: str, verdict: Verdict) -> None:
    row = decode({"type": "errored", "error": {"type": "api_error", "message": text}})
    assert (row.verdict, row.code) == (verdict, "api_error")


# -- usage -----------------------------------------------------------------------------------------
def test_cached_tokens_are_part_of_the_input() -> None:
    usage = {
        "input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20,
        "output_tokens": 50, "output_tokens_details": {"thinking_tokens": 30}, "service_tier": "batch",
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 20},
    }  # fmt: skip
    wanted = Usage(input=130, output=50, cached=100, cache_write=20, reasoning=30)
    assert answered(WORDS, usage=usage).usage == wanted
    assert answered(WORDS, usage=usage, model=None).usage == wanted
    assert answered(WORDS, usage=usage, stop="max_tokens").usage == wanted


@pytest.mark.parametrize(
    "usage",
    [
        None, {}, [], {"input_tokens": -5}, {"input_tokens": 10**40}, {"output_tokens": None},
        {"input_tokens": 1, "cache_read_input_tokens": None, "output_tokens_details": None},
    ],
)  # fmt: skip
def test_odd_counts_never_cost_the_answer(usage: Any) -> None:
    row = answered(WORDS, usage=usage)
    assert (row.verdict, row.text) == (Verdict.OK, "A1")
    assert min(row.usage.input, row.usage.output) >= 0


# -- anything --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "line",
    [
        b"", b"not json", b"[]", b"{}", b"null", b'"x"', b"\xff\xfe", b'{"custom_id": 7}',
        b'{"custom_id": 7, "result": {"type": 9}}', b'{"result": null}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_is_no_row_is_unknown_and_joins_to_nothing(line: bytes) -> None:
    row = decode_row(line)
    assert (row.verdict, row.wire_id) == (Verdict.UNKNOWN, "")


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        ({"type": "succeeded"}, Verdict.EMPTY),
        ({"type": "succeeded", "message": "text"}, Verdict.EMPTY),
        ({"type": "succeeded", "message": {}}, Verdict.EMPTY),
        ({"type": "succeeded", "message": {"content": " "}}, Verdict.EMPTY),
        ({"type": "succeeded", "message": {"type": "error", "error": {"type": "x"}}}, Verdict.UNKNOWN),
        ({"type": "errored"}, Verdict.SERVER_ERROR),
        ({"type": "errored", "error": None}, Verdict.SERVER_ERROR),
        ({"type": "errored", "error": {"type": "overloaded_error", "message": "m"}}, Verdict.SERVER_ERROR),
        ({"type": "canceled"}, Verdict.CANCELLED),
        ({"type": "expired"}, Verdict.EXPIRED),
        ({"type": "Ein neuer Typ"}, Verdict.UNKNOWN),
        ({"message": message(WORDS)}, Verdict.UNKNOWN),
        ("succeeded", Verdict.UNKNOWN),
    ],
)
def test_half_a_row_has_a_verdict_under_its_own_id(result: Any, verdict: Verdict) -> None:
    row = decode(result)
    assert (row.verdict, row.wire_id) == (verdict, "w-1")
    assert row.code


def test_words_without_a_block_around_them_are_an_answer() -> None:
    row = decode({"type": "succeeded", "message": {"content": "text", "stop_reason": "end_turn"}})
    assert (row.verdict, row.text, row.finish_reason) == (Verdict.OK, "text", "stop")


def test_an_error_in_place_of_the_message_is_an_error() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    row = decode({"type": "succeeded", "message": error})
    assert (row.verdict, row.code) == (Verdict.SERVER_ERROR, "overloaded_error")


def test_an_answer_of_thoughts_alone_is_empty_and_ended_by_itself() -> None:
    row = decode({"type": "succeeded", "message": message([{"type": "thinking", "thinking": "hm"}])})
    assert (row.verdict, row.code, row.finish_reason) == (Verdict.EMPTY, "no_content", "stop")


def test_an_organization_that_is_disabled_is_no_fault_of_the_row() -> None:
    error = {"type": "invalid_request_error", "message": "This organization has been disabled."}
    row = decode({"type": "errored", "error": {"type": "error", "error": error}})
    assert row.verdict is Verdict.ACCOUNT


def test_broken_text_is_mended_for_it_was_paid_for() -> None:
    line = json.dumps({"custom_id": "w-1", "result": {"type": "succeeded", "message": message(WORDS)}})
    row = decode_row(b"\xef\xbb\xbf" + line.replace("A1", r"half \ud83d pair").encode() + b"\r")
    assert (row.verdict, row.text) == (Verdict.OK, "half \ufffd pair")
    row = decode_row(line.replace("A1", "x").encode().replace(b'"x"', b'"\xff\x01"'))
    assert (row.verdict, row.text) == (Verdict.OK, "\ufffd\x01")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["type", "message", "error", "content", "text", "stop_reason", "usage", "input", "details"]
        ),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(result=values, kind=st.sampled_from(["succeeded", "errored", "canceled", "new"]))
def test_nothing_makes_the_decoder_raise(result: Any, kind: str) -> None:
    if isinstance(result, dict):
        result = {"type": kind} | result
    assert decode(result).wire_id == "w-1"
