"""Result lines of the Gemini API, in every form met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.backends.gemini_rows import RPC_CODES, decode_row
from airflow_batch_llm.backends.gemini_typed import plain_answer
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import DEFAULT_DISPOSITIONS, Disposition, Verdict

CASES = Path(__file__).parents[3] / "cases"


def row(value: Any) -> Row:
    return decode_row(value if isinstance(value, bytes) else json.dumps(value).encode())


def said(*parts: dict[str, Any], finish: str = "STOP", **more: Any) -> dict[str, Any]:
    """Return a line with one candidate."""
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish}
    return {"key": "a-1", "response": {"candidates": [candidate], "modelVersion": "gemini-3-flash", **more}}


def failed(**error: Any) -> dict[str, Any]:
    return {"key": "a-1", "error": error}


# -- answers ---------------------------------------------------------------------------------------
def test_the_words_are_joined_without_the_thoughts() -> None:
    found = row(said({"text": "hmm", "thought": True}, {"text": "A"}, {"text": "B"}))
    assert (found.wire_id, found.verdict, found.text) == ("a-1", Verdict.OK, "AB")
    assert (found.finish_reason, found.model) == ("stop", "gemini-3-flash")


def test_the_plain_answer_is_the_same_on_both_paths() -> None:
    counts = {"promptTokenCount": 9, "candidatesTokenCount": 4, "thoughtsTokenCount": 3}
    lines = [
        said({"text": "A"}, usageMetadata=counts),
        said({"text": "A"}),
        said({"text": "hm", "thought": True}, {"text": "A"}, {"text": "B"}, usageMetadata=counts),
        {"key": "a-1", "response": {"embedding": {"values": [0.5, 1.0]}, "tokenCount": 3}},
        {"key": "a-1", "response": {"embedding": {"values": [0.5]}, "usageMetadata": counts}},
    ]
    for line in lines:
        typed = plain_answer(json.dumps(line).encode())
        beside = {"metadata": {"key": line["key"]}, "response": line["response"]}
        assert plain_answer(json.dumps(beside).encode()) is None, "inline rows take the general path"
        assert typed is not None and typed == row(beside)


@pytest.mark.parametrize("call", [{}, {"name": ""}, {"name": 3}, {"name": "f", "args": "word"}])
def test_a_call_that_nobody_can_read_is_no_answer(call: dict[str, Any]) -> None:
    found = row(said({"functionCall": call}))
    assert (found.verdict, found.code) == (Verdict.INVALID_OUTPUT, "bad_tool_call")


def test_a_call_is_in_the_form_of_openais_chat() -> None:
    call = {"functionCall": {"id": "f-1", "name": "look_up", "args": {"word": "ä"}}, "thoughtSignature": "x"}
    bare = {"functionCall": {"name": "now"}}
    found = row(said(call, bare))
    assert (found.verdict, found.finish_reason, found.text) == (Verdict.OK, "tool_calls", None)
    assert found.output == [
        {"id": "f-1", "type": "function", "function": {"name": "look_up", "arguments": '{"word":"ä"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    ]
    assert row(said(bare)) == row(said(bare)), "an id that is made up is the same each time"


def test_words_beside_a_call_are_kept() -> None:
    found = row(said({"text": "I look."}, {"functionCall": {"name": "now"}}))
    assert found.text == "I look." and len(found.output) == 1


def test_cached_tokens_are_in_the_input_and_thoughts_are_output() -> None:
    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": "30",
        "totalTokenCount": 157,
    }
    usage = Usage(input=107, output=50, cached=60, reasoning=30)
    assert row(said({"text": "A"}, usageMetadata=counts)).usage == usage
    numbers = {**counts, "thoughtsTokenCount": 30}
    assert row(said({"text": "A"}, usageMetadata=numbers)).usage == usage
    assert usage.input + usage.output == counts["totalTokenCount"]


def test_counts_that_are_nonsense_count_as_none() -> None:
    odd = {"promptTokenCount": -3, "candidatesTokenCount": 10**30, "thoughtsTokenCount": None}
    assert row(said({"text": "A"}, usageMetadata=odd)).usage == Usage(output=2**53)
    assert row(said({"text": "A"}, usageMetadata="many")).text == "A"


def test_a_vector_is_a_list_of_numbers() -> None:
    whole = {"key": "a-1", "response": {"embedding": {"values": [1, 2.5]}, "tokenCount": "4"}}
    assert row(whole) == Row("a-1", Verdict.OK, output=[1.0, 2.5], usage=Usage(input=4))
    several = {"key": "a-1", "response": {"embeddings": [{"values": [1.5]}]}}
    assert row(several).output == [1.5]
    assert row({"key": "a-1", "response": {"embedding": {}}}).verdict is Verdict.EMPTY
    assert row({"key": "a-1", "response": {"embedding": {"values": ["x"]}}}).code == "bad_vector"
    assert row(b'{"key":"a-1","response":{"embedding":{"values":[NaN]}}}').code == "bad_vector"


# -- how an answer ends ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("finish", "verdict", "word"),
    [
        ("MAX_TOKENS", Verdict.TRUNCATED, "length"),
        ("SAFETY", Verdict.FILTERED, "content_filter"),
        ("RECITATION", Verdict.FILTERED, "content_filter"),
        ("PROHIBITED_CONTENT", Verdict.FILTERED, "content_filter"),
        ("BLOCKLIST", Verdict.FILTERED, "content_filter"),
        ("SPII", Verdict.FILTERED, "content_filter"),
        ("LANGUAGE", Verdict.FILTERED, "content_filter"),
        ("MALFORMED_FUNCTION_CALL", Verdict.INVALID_OUTPUT, "malformed_function_call"),
        ("UNEXPECTED_TOOL_CALL", Verdict.INVALID_OUTPUT, "unexpected_tool_call"),
        ("MISSING_THOUGHT_SIGNATURE", Verdict.BAD_REQUEST, "missing_thought_signature"),
        ("PUP_LIMITED_DISABLED", Verdict.ACCOUNT, "pup_limited_disabled"),
        ("OTHER", Verdict.SERVER_ERROR, "other"),
    ],
)
def test_how_an_answer_ended_decides(finish: str, verdict: Verdict, word: str) -> None:
    found = row(said({"text": "half"}, finish=finish))
    assert (found.verdict, found.code, found.finish_reason) == (verdict, finish, word)
    assert (found.text, found.output) == ("half", None)
    bare = row({"key": "a-1", "response": {"candidates": [{"finishReason": finish}]}})
    assert (bare.verdict, bare.text) == (verdict, None)


def test_an_end_that_nobody_knows_leaves_the_answer_as_it_is() -> None:
    found = row(said({"text": "A"}, finish="OF_TOMORROW"))
    assert (found.verdict, found.finish_reason) == (Verdict.OK, "of_tomorrow")


def test_a_blocked_prompt_is_filtered_with_its_reason() -> None:
    feedback = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 5},
    }
    found = row({"key": "a-1", "response": feedback})
    assert (found.verdict, found.code) == (Verdict.FILTERED, "PROHIBITED_CONTENT")
    assert (found.finish_reason, found.usage) == ("content_filter", Usage(input=5))


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ({"usageMetadata": {"promptTokenCount": 5}}, "no_choice"),
        ({"candidates": []}, "no_choice"),
        ({"candidates": [None]}, "no_choice"),
        ({"candidates": [{"finishReason": "STOP"}]}, "no_content"),
        ({"candidates": [{"content": {"parts": [{"text": " \n"}]}, "finishReason": "STOP"}]}, "no_content"),
        ({}, "no_body"),
    ],
)
def test_an_answer_of_nothing_is_empty(response: dict[str, Any], code: str) -> None:
    found = row({"key": "a-1", "response": response})
    assert (found.verdict, found.code) == (Verdict.EMPTY, code)


# -- errors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (1, Verdict.CANCELLED),
        (2, Verdict.SERVER_ERROR),
        (3, Verdict.BAD_REQUEST),
        (4, Verdict.TIMEOUT),
        (5, Verdict.BAD_REQUEST),
        (6, Verdict.BAD_REQUEST),
        (7, Verdict.ACCOUNT),
        (8, Verdict.RATE_LIMITED),
        (9, Verdict.SERVER_ERROR),
        (10, Verdict.SERVER_ERROR),
        (11, Verdict.BAD_REQUEST),
        (12, Verdict.BAD_REQUEST),
        (13, Verdict.SERVER_ERROR),
        (14, Verdict.SERVER_ERROR),
        (15, Verdict.SERVER_ERROR),
        (16, Verdict.ACCOUNT),
    ],
)
def test_a_code_means_the_same_as_a_number_and_as_a_name(code: int, verdict: Verdict) -> None:
    name = RPC_CODES[code]
    spelled = [{"code": code}, {"code": str(code)}, {"code": name}, {"status": name}]
    for error in spelled:
        for form in ({"error": error}, {"status": error}):
            found = row({"key": "a-1", **form, "response": {}})
            assert (found.wire_id, found.verdict, found.code) == ("a-1", verdict, name), form


def test_an_http_status_decides_where_no_name_stands_beside_it() -> None:
    assert row(failed(code=429)).verdict is Verdict.RATE_LIMITED
    assert row(failed(code=503)).code == "http_503"
    assert row(failed(code=400, message="m")).message == "m"
    assert row(failed(code=404, status="NOT_FOUND")).verdict is Verdict.BAD_REQUEST


def test_a_prompt_that_is_too_long_is_told_by_words_only() -> None:
    message = "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."
    for code in (3, 400):
        found = row(failed(code=code, message=message))
        assert (found.verdict, found.code) == (Verdict.TOO_LARGE, "context_length_exceeded")


def test_the_reason_of_an_error_says_more_than_its_code() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    found = row(failed(code=400, status="INVALID_ARGUMENT", details=[info]))
    assert (found.verdict, found.code) == (Verdict.ACCOUNT, "API_KEY_INVALID")


def test_an_error_in_place_of_an_answer_is_one() -> None:
    assert row({"key": "a-1", "response": {"error": {"code": 13}}}).verdict is Verdict.SERVER_ERROR


def test_an_error_without_any_code_is_the_servers() -> None:
    assert row(failed(message="it broke")) == Row("a-1", Verdict.SERVER_ERROR, "error_text", "it broke")


def test_a_code_that_nobody_knows_stays_visible() -> None:
    found = row(failed(status="OF_TOMORROW"))
    assert (found.verdict, found.code) == (Verdict.UNKNOWN, "OF_TOMORROW")


# -- keys ------------------------------------------------------------------------------------------
def test_a_key_stands_beside_the_answer_or_in_its_metadata() -> None:
    answer = {"response": said({"text": "A"})["response"]}
    assert row({"metadata": {"key": "a-1"}, **answer}).wire_id == "a-1"
    assert row({"key": "a-1", "metadata": {"key": "a-2"}, **answer}).wire_id == "a-1"
    for odd in ({"key": 7}, {"key": None}, {"metadata": "x"}, {"metadata": {"key": ["a"]}}, {}):
        assert row({**odd, **answer}).wire_id == ""


# -- anything else ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[]", "not_an_object"),
        (b"null", "not_an_object"),
        (b"{}", "no_response"),
        (b'{"key":"a-1","response":"text"}', "no_response"),
        (b'{"key":"a-1","response":{"of_another_kind":1}}', "no_choices"),
        (b'{"key":"a-1","response":{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":'
         b'{"a":"\\ud83d"}}}]}}]}}', ""),
        (b"\xff\xfe\x00", "not_json"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_told(line: bytes, code: str) -> None:
    found = decode_row(line)
    assert found.code == code
    assert found.verdict is (Verdict.UNKNOWN if code else Verdict.OK)


def test_a_mark_white_space_and_broken_text_lose_no_answer() -> None:
    line = json.dumps(said({"text": "A?"})).encode().replace(b"?", b"\xff")
    assert decode_row(b"\xef\xbb\xbf" + line + b" \r").text == "A\ufffd"
    assert decode_row(json.dumps(said({"text": "\ud83d"})).encode()).text == "\ufffd"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["key", "response", "error", "status", "metadata", "candidates", "content", "parts", "text", "code",
         "functionCall", "args", "name", "finishReason", "usageMetadata", "promptTokenCount", "embedding",
         "values", "promptFeedback", "blockReason", "details", "thought", "id", "modelVersion"]
    ), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(value=values)
def test_nothing_raises(value: Any) -> None:
    assert isinstance(decode_row(json.dumps(value).encode()), Row)


@given(line=st.binary(max_size=60))
def test_no_bytes_raise(line: bytes) -> None:
    assert isinstance(decode_row(line), Row)


# -- D16 -------------------------------------------------------------------------------------------
def rows_of(name: str) -> list[Row]:
    return [decode_row(line) for line in (CASES / "D16" / name).read_bytes().splitlines()]


def test_D16_rows_fail_as_error_and_as_status_though_the_job_succeeded() -> None:
    bad, busy, good = rows_of("gemini.jsonl")
    assert (bad.wire_id, bad.verdict, bad.message) == ("r-1", Verdict.BAD_REQUEST, "invalid argument")
    assert DEFAULT_DISPOSITIONS[bad.verdict] is Disposition.DEAD
    assert (busy.wire_id, DEFAULT_DISPOSITIONS[busy.verdict]) == ("r-2", Disposition.RETRY)
    assert (good.wire_id, good.verdict, good.text) == ("r-3", Verdict.OK, "A3")


def test_D16_an_empty_status_is_no_error_and_a_text_with_json_is_read() -> None:
    good, failed = rows_of("vertex.jsonl")
    assert (good.verdict, good.text) == (Verdict.OK, "B1")
    assert (failed.code, DEFAULT_DISPOSITIONS[failed.verdict]) == ("FAILED_PRECONDITION", Disposition.RETRY)
    assert row({"key": "a-1", "status": "broken: {", "response": {}}).verdict is Verdict.SERVER_ERROR


def test_a_file_that_a_row_names_in_vain_blames_no_account() -> None:
    message = "You do not have permission to access the File abc or it may not exist."
    for code in (7, 403):
        found = row(failed(code=code, message=message))
        assert (found.verdict, found.code) == (
            Verdict.BAD_REQUEST,
            "PERMISSION_DENIED" if code == 7 else "http_403",
        )
    assert row(failed(code=7, message="x")).verdict is Verdict.ACCOUNT


def test_money_that_is_used_up_blames_no_row() -> None:
    message = "Your prepayment credits are depleted. Please go to AI Studio."
    assert row(failed(code=429, status="RESOURCE_EXHAUSTED", message=message)).verdict is Verdict.ACCOUNT


def test_code_0_is_no_error_and_a_key_that_is_null_is_looked_for_elsewhere() -> None:
    for beside in ({"error": {"code": 0}}, {"status": {"code": 0}}, {"error": {}}):
        assert row({**said({"text": "A"}), **beside}).verdict is Verdict.OK
    found = row({**said({"text": "A"}), "key": None, "metadata": {"key": "a-2"}})
    assert (found.wire_id, found.verdict) == ("a-2", Verdict.OK)
