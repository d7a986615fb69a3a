"""What each shape of result line means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def line(response: Any, error: Any = None, custom_id: Any = "r-1") -> bytes:
    return encode({"id": "q", "custom_id": custom_id, "response": response, "error": error})


def answer(message: Any, finish: Any = "stop", usage: Any = None, **body: Any) -> bytes:
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return line({"status_code": 200, "body": {"model": "m-1", "choices": choices, "usage": usage} | body})


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | more


def failed(status: Any, code: Any = None, type_: Any = None, message: str = "text") -> bytes:
    body = {"error": {"message": message, "type": type_, "param": None, "code": code}}
    return line({"status_code": status, "body": body})


def outcome(row: Row) -> tuple[str, str]:
    return row.verdict.value, row.code


def test_an_answer_is_ok_with_text_model_and_usage() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert decode_row(answer(said("A1"), usage=usage)) == Row(
        "r-1", Verdict.OK, text="A1", finish_reason="stop", model="m-1", usage=Usage(10, 7, 4, 2, 3)
    )


@pytest.mark.parametrize(
    ("message", "finish", "verdict", "code"),
    [
        (said("part of it"), "length", "truncated", "length"),
        (said(""), "length", "truncated", "length"),
        (said(None), "length", "truncated", "length"),
        (said("half"), "max_tokens", "truncated", "max_tokens"),
        (said(None), "content_filter", "filtered", "content_filter"),
        (said("begun"), "content_filter", "filtered", "content_filter"),
        (said(None, refusal="I can't"), "stop", "refused", "refusal"),
        (said("I", refusal="I can't"), "stop", "refused", "refusal"),
        (said(""), "stop", "empty", "no_content"),
        (said(" \n\t"), "stop", "empty", "no_content"),
        (said(None), "stop", "empty", "no_content"),
        (None, "stop", "empty", "no_content"),
        (said("begun"), "abort", "server_error", "abort"),
        (said("whole"), "eos", "ok", ""),
        (said("whole"), None, "ok", ""),
        (said([{"type": "text", "text": "wh"}, {"type": "text", "text": "ole"}]), "stop", "ok", ""),
        (said("whole", refusal=""), "stop", "ok", ""),
        (said("half", tool_calls=[{"id": "t"}]), "length", "truncated", "length"),
    ],
)
def test_a_reply_of_200_is_judged_by_what_it_holds(
    message: Any, finish: Any, verdict: str, code: str
) -> None:
    assert outcome(decode_row(answer(message, finish))) == (verdict, code)


def test_a_refusals_words_are_kept() -> None:
    assert decode_row(answer(said(None, refusal="I can't help."))).text == "I can't help."


def test_a_tool_call_is_an_answer() -> None:
    calls = [{"id": "t1", "type": "function", "function": {"name": "out", "arguments": "{}"}}]
    row = decode_row(answer(said(None, tool_calls=calls), "tool_calls"))
    assert (row.verdict, row.output, row.text) == (Verdict.OK, calls, None)
    old = decode_row(answer(said(None, function_call={"name": "out", "arguments": "{}"}), "function_call"))
    assert old.output == [{"type": "function", "function": {"name": "out", "arguments": "{}"}}]


@pytest.mark.parametrize("arguments", ["", " ", None, "{}", "null", '{"a": NaN}', {"a": 1}])
def test_a_tool_call_may_have_any_arguments_that_can_be_read(arguments: Any) -> None:
    calls = [
        {"id": "t1", "function": {"name": "out", "arguments": arguments}},
        {"id": "t2", "type": "custom"},
    ]
    row = decode_row(answer(said(None, tool_calls=calls), "tool_calls"))
    assert (row.verdict, row.output) == (Verdict.OK, calls)


def test_a_tool_call_that_cannot_be_read_is_kept_for_a_person() -> None:
    calls = [{"id": "t1", "type": "function", "function": {"name": "out", "arguments": '{"a'}}]
    row = decode_row(answer(said(None, tool_calls=calls), "tool_calls"))
    assert (row.verdict, row.code, row.output) == (Verdict.INVALID_OUTPUT, "bad_tool_call", calls)
    cut = decode_row(answer(said(None, tool_calls=calls), "length"))
    assert cut.verdict is Verdict.TRUNCATED, "a call cut off at the limit needs a larger one"


@pytest.mark.parametrize(
    ("body", "verdict", "code"),
    [
        ({}, "empty", "no_body"),
        (None, "empty", "no_body"),
        ("", "empty", "no_body"),
        ({"choices": []}, "empty", "no_choice"),
        ({"choices": None, "id": "c"}, "unknown", "no_choices"),
        ({"object": "list", "data": []}, "empty", "no_vector"),
        ({"object": "list", "data": [{"id": "a model"}]}, "unknown", "no_choices"),
        ("plain words", "unknown", "no_choices"),
        ([1], "unknown", "no_choices"),
        ({"error": {"message": "x", "type": "server_error", "code": "internal"}}, "server_error", "internal"),
        ({"error": "engine is dead"}, "server_error", "error_text"),
        (
            {"error": {"message": "x", "code": "invalid_thing", "type": "invalid_request_error"}},
            "bad_request",
            "invalid_thing",
        ),
    ],
)
def test_a_reply_of_200_without_choices_is_never_ok(body: Any, verdict: str, code: str) -> None:
    assert outcome(decode_row(line({"status_code": 200, "body": body}))) == (verdict, code)


@pytest.mark.parametrize(
    ("status", "code", "type_", "verdict", "expected"),
    [
        (400, "invalid_value", "invalid_request_error", "bad_request", "invalid_value"),
        (400, None, "invalid_request_error", "bad_request", "invalid_request_error"),
        (400, None, None, "bad_request", "http_400"),
        (400, "context_length_exceeded", "invalid_request_error", "too_large", "context_length_exceeded"),
        (400, "content_policy_violation", None, "filtered", "content_policy_violation"),
        (401, None, "invalid_request_error", "account", "invalid_request_error"),
        (402, None, None, "account", "http_402"),
        (403, "forbidden", None, "account", "forbidden"),
        (404, "model_not_found", "invalid_request_error", "bad_request", "model_not_found"),
        (408, None, None, "timeout", "http_408"),
        (413, None, None, "too_large", "http_413"),
        (422, None, None, "bad_request", "http_422"),
        (429, "rate_limit_exceeded", "requests", "rate_limited", "rate_limit_exceeded"),
        (429, None, "tokens", "rate_limited", "tokens"),
        (429, "insufficient_quota", "insufficient_quota", "account", "insufficient_quota"),
        (429, None, "insufficient_quota", "account", "insufficient_quota"),
        (429, "billing_hard_limit_reached", None, "account", "billing_hard_limit_reached"),
        (500, None, "server_error", "server_error", "server_error"),
        (503, "some_new_code", None, "server_error", "some_new_code"),
        (504, None, None, "timeout", "http_504"),
        ("500", None, None, "server_error", "http_500"),
        (500.0, None, None, "server_error", "http_500"),
        (302, None, None, "server_error", "http_302"),
        (400, "a code of many words", "x" * 65, "bad_request", "http_400"),
        (400, 17, None, "bad_request", "http_400"),
        (500, {"a": 1}, ["b"], "server_error", "http_500"),
    ],
)
def test_a_failed_row_is_judged_by_code_type_and_status(
    status: Any, code: Any, type_: Any, verdict: str, expected: str
) -> None:
    row = decode_row(failed(status, code, type_))
    assert (*outcome(row), row.message, row.usage) == (verdict, expected, "text", Usage())


@pytest.mark.parametrize(
    ("error", "verdict", "code"),
    [
        ({"code": "batch_expired", "message": "m"}, "expired", "batch_expired"),
        ({"code": "batch_cancelled", "message": "m"}, "cancelled", "batch_cancelled"),
        ({"code": "request_timeout", "message": "m"}, "timeout", "request_timeout"),
        ({"code": "some_new_code", "message": "m"}, "unknown", "some_new_code"),
        ({"code": 400, "message": "m", "type": "BadRequestError"}, "bad_request", "BadRequestError"),
        ({"code": 503, "message": "m"}, "server_error", "http_503"),
        ({"code": "429", "message": "m"}, "rate_limited", "http_429"),
        ("engine is dead", "server_error", "error_text"),
        ("batch_expired", "expired", "batch_expired"),
        ([{"code": "batch_expired"}], "expired", "batch_expired"),
        ({"message": "only words"}, "server_error", "error_text"),
        (None, "unknown", "no_response"),
        ({}, "unknown", "no_response"),
        ({"code": None, "message": ""}, "unknown", "no_response"),
    ],
)
@pytest.mark.parametrize("response", [None, {}])
def test_a_row_that_was_never_answered_is_judged_by_its_error(
    response: Any, error: Any, verdict: str, code: str
) -> None:
    assert outcome(decode_row(line(response, error))) == (verdict, code)


def test_a_failure_without_a_body_is_judged_by_the_error_beside_it() -> None:
    error = {"object": "error", "message": "prompt is too long", "type": "BadRequestError", "code": 400}
    row = decode_row(line({"status_code": 400, "request_id": "v"}, error))
    assert (*outcome(row), row.message) == ("bad_request", "BadRequestError", "prompt is too long")


@pytest.mark.parametrize("error", [{}, "", {"code": None, "message": None}, {"code": 0}])
def test_an_error_that_says_nothing_spoils_no_answer(error: Any) -> None:
    response = {"status_code": 200, "body": {"choices": [{"message": said("A"), "finish_reason": "stop"}]}}
    assert decode_row(line(response, error)).verdict is Verdict.OK


def test_an_answer_beside_an_error_is_not_taken() -> None:
    response = {"status_code": 200, "body": {"choices": [{"message": said("A"), "finish_reason": "stop"}]}}
    assert decode_row(line(response, {"code": "server_error"})).verdict is Verdict.SERVER_ERROR


def test_a_body_may_be_a_json_text_and_a_completion_may_be_bare() -> None:
    completion = {"model": "m-1", "choices": [{"message": said("A"), "finish_reason": "stop"}]}
    for response in ({"status_code": 200, "body": json.dumps(completion)}, completion, {"body": completion}):
        row = decode_row(encode({"custom_id": "r-1", "response": response}))
        assert (row.wire_id, row.verdict, row.text, row.model) == ("r-1", Verdict.OK, "A", "m-1")


def test_a_legacy_completion_has_its_text_in_the_choice() -> None:
    body = {"choices": [{"text": "A", "finish_reason": "stop"}]}
    assert decode_row(line({"status_code": 200, "body": body})).text == "A"


@pytest.mark.parametrize("custom_id", [None, 7, ["r-1"], {}])
def test_an_id_that_is_no_text_joins_to_nothing(custom_id: Any) -> None:
    response = {"status_code": 200, "body": {"choices": [{"message": said("A"), "finish_reason": "stop"}]}}
    row = decode_row(line(response, custom_id=custom_id))
    assert (row.wire_id, row.verdict, row.text) == ("", Verdict.OK, "A")


def test_a_line_without_an_id_joins_to_nothing() -> None:
    assert decode_row(b'{"response":null,"error":{"code":"batch_expired"}}').wire_id == ""


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ({}, Usage()),
        ("many", Usage()),
        ({"prompt_tokens": 5.0, "completion_tokens": "2"}, Usage(5, 2)),
        ({"prompt_tokens": None, "completion_tokens": None}, Usage()),
        ({"prompt_tokens": -5, "completion_tokens": 2}, Usage(0, 2)),
        ({"prompt_tokens": 10**30, "completion_tokens": True}, Usage(2**53, 0)),
        (
            {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}},
            Usage(5, 2, 1),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": [1]}, Usage(5, 2)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "completion_tokens_details": {"reasoning_tokens": None},
            },
            Usage(5, 2),
        ),
        (
            {"prompt_tokens": None, "completion_tokens": None, "input_tokens": 5, "output_tokens": 2},
            Usage(5, 2),
        ),
    ],
)
def test_usage_is_counted_however_it_is_written(usage: Any, expected: Usage) -> None:
    row = decode_row(answer(said("A"), usage=usage))
    assert (row.verdict, row.usage) == (Verdict.OK, expected)


@pytest.mark.parametrize("text", [b"nan \\ud83d end", b"raw \x01 control", b"broken \xff utf-8"])
def test_an_answer_with_broken_text_lands_mended(text: bytes) -> None:
    row = decode_row(answer(said("@@")).replace(b"@@", text))
    assert row.verdict is Verdict.OK
    assert row.text is not None
    assert jsonl.loads(jsonl.dumps(row.text)) == row.text


def test_a_non_finite_number_spoils_no_answer() -> None:
    raw = answer(said("A"), logprobs="@@").replace(b'"@@"', b"NaN")
    assert decode_row(raw).verdict is Verdict.OK


def test_marks_and_white_space_around_a_line_are_ignored() -> None:
    row = decode_row(b"\xef\xbb\xbf " + answer(said("A")) + b" \r")
    assert (row.verdict, row.text) == (Verdict.OK, "A")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "not_json"),
        (b"not json", "not_json"),
        (b'{"custom_id":"r-1","resp', "not_json"),
        (b"[" * 200_000, "not_json"),
        (b"[1,2]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"null", "not_an_object"),
        (b"{}", "no_response"),
        (b'{"custom_id":"r-1","response":"text"}', "no_response"),
        (b'{"custom_id":"r-1","response":{"request_id":"x"}}', "no_status"),
    ],
)
def test_a_line_nobody_can_read_is_unknown(raw: bytes, code: str) -> None:
    assert outcome(decode_row(raw)) == ("unknown", code)


def test_a_long_message_is_cut() -> None:
    assert len(decode_row(failed(400, message="x" * 9000)).message) == 2000


def test_a_validation_detail_becomes_the_message() -> None:
    row = decode_row(line({"status_code": 422, "body": {"detail": [{"loc": ["body"], "msg": "too long"}]}}))
    assert (*outcome(row), row.message) == ("bad_request", "http_422", "too long")


# -- never raises ----------------------------------------------------------------------------------

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["stop", "length", "400", "batch_expired", "\ud83d", "{}", "[["])
)
_names = st.sampled_from(
    [
        "id", "custom_id", "response", "error", "status_code", "body", "choices", "message", "content",
        "text", "refusal", "tool_calls", "function_call", "finish_reason", "usage", "prompt_tokens", "model",
        "code", "type", "detail", "completion_tokens", "prompt_tokens_details", "cached_tokens", "status",
        "data", "embedding", "index", "results", "flagged", "categories", "category_scores", "output",
        "incomplete_details", "reason", "call_id", "name", "arguments", "phase",
    ]
)  # fmt: skip
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=6),
    max_leaves=25,
)


def _check(row: Row) -> None:
    assert isinstance(row.verdict, Verdict)
    assert len(row.code) <= 64
    assert row.verdict is Verdict.OK or row.code
    assert row.verdict is not Verdict.OK or row.text or row.output
    jsonl.dumps([row.wire_id, row.code, row.message, row.text, row.finish_reason, row.model])


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    _check(decode_row(raw))


@given(_anything)
def test_no_json_makes_it_raise(value: Any) -> None:
    _check(decode_row(json.dumps(value).encode("utf-8", "surrogatepass")))


@given(_anything, _anything, _scalars)
def test_no_response_or_error_makes_it_raise(response: Any, error: Any, custom_id: Any) -> None:
    _check(decode_row(line(response, error, custom_id)))


@given(_anything, _anything, _scalars, st.sampled_from([200, 400, 429, 500, None, "200"]))
def test_no_body_makes_it_raise(message: Any, usage: Any, finish: Any, status: Any) -> None:
    body = {"choices": [{"message": message, "finish_reason": finish}], "usage": usage, "model": finish}
    _check(decode_row(line({"status_code": status, "body": body})))


@given(
    st.sampled_from(["choices", "output", "data", "results"]),
    st.lists(_anything, max_size=3),
    st.sampled_from(["completed", "incomplete", "failed", None, 3]),
    _anything,
)
def test_no_answer_of_any_endpoint_makes_it_raise(member: str, items: Any, status: Any, details: Any) -> None:
    body = {member: items, "status": status, "incomplete_details": details}
    _check(decode_row(line({"status_code": 200, "body": body})))
