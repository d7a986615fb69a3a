"""What the answers of each endpoint become; bodies as the providers' own types have them."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse, ModerationCreateResponse
from openai.types.responses import Response

from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.backends.openai_typed import plain_answer
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict


def line(body: Any, status: int = 200) -> bytes:
    response = {"status_code": status, "request_id": "q", "body": body}
    return json.dumps({"id": "b", "custom_id": "r-1", "response": response, "error": None}).encode()


def decoded(body: Any) -> Row:
    return decode_row(line(body))


# -- completions -----------------------------------------------------------------------------------
def completion(text: Any, finish: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    common = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m-1"}
    return {**common, "choices": [choice], "usage": usage}


def test_a_completion_is_its_text() -> None:
    body = completion(" billing")
    Completion.model_validate(body, strict=True)
    assert decoded(body) == Row(
        "r-1", Verdict.OK, text=" billing", finish_reason="stop", model="m-1", usage=Usage(3, 2)
    )
    assert plain_answer(line(body)) == decoded(body)


@pytest.mark.parametrize(
    ("text", "finish", "verdict"),
    [
        ("half", "length", "truncated"),
        ("", "content_filter", "filtered"),
        ("", "stop", "empty"),
        (" \n", "stop", "empty"),
        (None, "stop", "empty"),
    ],
)
def test_a_completion_that_is_no_answer_has_its_verdict(text: Any, finish: str, verdict: str) -> None:
    assert decoded(completion(text, finish)).verdict == verdict


# -- responses -------------------------------------------------------------------------------------
RESPONSE_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 17,
}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "content": None}


def said(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {**message, "content": content, **more}


def response(*output: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.5,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "m-1",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": RESPONSE_USAGE,
        **more,
    }


@pytest.mark.parametrize("output", [(said("A1"),), (REASONING, said("A1")), (said("A", "1"),)])
def test_a_response_is_the_text_of_its_message(output: tuple[Any, ...]) -> None:
    body = response(*output)
    Response.model_validate(body, strict=True)
    row = decoded(body)
    assert row == Row(
        "r-1", Verdict.OK, text="A1", finish_reason="completed", model="m-1", usage=Usage(10, 7, 4, 2, 3)
    )
    assert plain_answer(line(body)) == row, "the common answer must take the quick path"


def test_of_several_messages_the_final_one_is_the_answer() -> None:
    commented = response(said("Let me see.", phase="commentary"), said('{"a":1}', phase="final_answer"))
    assert decoded(commented).text == '{"a":1}'
    assert decoded(response(said("One. "), said("Two."))).text == "One. Two."


@pytest.mark.parametrize(
    ("more", "verdict", "code"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "truncated",
         "max_output_tokens"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "filtered",
         "content_filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "of_tomorrow"}}, "truncated",
         "incomplete"),
        ({"status": "incomplete", "incomplete_details": None}, "truncated", "incomplete"),
        ({"status": "cancelled"}, "server_error", "cancelled"),
        ({"status": "in_progress"}, "unknown", "in_progress"),
        ({"status": "failed", "error": {"code": "server_error", "message": "x"}}, "server_error",
         "server_error"),
        ({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "x"}}, "rate_limited",
         "rate_limit_exceeded"),
        ({"status": "failed", "error": {"code": "invalid_prompt", "message": "x"}}, "filtered",
         "invalid_prompt"),
        ({"status": "failed", "error": {"code": "image_parse_error", "message": "x"}}, "bad_request",
         "image_parse_error"),
    ],
)  # fmt: skip
def test_a_response_that_is_not_complete_has_its_verdict_and_what_it_cost(
    more: dict[str, Any], verdict: str, code: str
) -> None:
    body = response(said("half of it"), **more)
    row = decoded(body)
    assert (row.verdict, row.code, row.usage) == (verdict, code, Usage(10, 7, 4, 2, 3))


def test_a_refusal_is_refused_with_its_words() -> None:
    part = {"type": "refusal", "refusal": "I can't help."}
    row = decoded(response(said(content=[part])))
    assert (row.verdict, row.code, row.text) == (Verdict.REFUSED, "refusal", "I can't help.")


@pytest.mark.parametrize("output", [(), (REASONING,), (said(""),), (said(),), (said(" \n"),)])
def test_a_response_without_words_or_calls_is_empty(output: tuple[Any, ...]) -> None:
    row = decoded(response(*output))
    assert (row.verdict, row.code) == (Verdict.EMPTY, "no_content")


def test_tool_calls_come_back_in_the_form_of_chat() -> None:
    call = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "out", "arguments": '{"a": 1}'}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": "ls"}
    body = response(REASONING, {**call, "status": "completed"}, custom)
    Response.model_validate(body, strict=True)
    row = decoded(body)
    assert (row.verdict, row.text) == (Verdict.OK, None)
    assert row.output == [
        {"id": "c1", "type": "function", "function": {"name": "out", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
    ]


# -- embeddings ------------------------------------------------------------------------------------
def embeddings(*vectors: Any, places: Any = None) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": place, "embedding": vector}
        for place, vector in zip(places or range(len(vectors)), vectors, strict=True)
    ]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    return {"object": "list", "model": "m-1", "data": data, "usage": usage}


def packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def test_an_embedding_is_a_list_of_floats_and_no_text() -> None:
    body = embeddings([0.5, -0.25, 1])
    CreateEmbeddingResponse.model_validate(body)
    row = decoded(body)
    assert row == Row("r-1", Verdict.OK, output=[0.5, -0.25, 1.0], model="m-1", usage=Usage(5, 0))
    assert [type(number) for number in row.output] == [float] * 3
    assert plain_answer(line(body)) == row, "a single vector must take the quick path"


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_both_encodings_of_a_vector_say_the_same(vector: list[float]) -> None:
    assert decoded(embeddings(packed(vector))).output == decoded(embeddings(vector)).output == vector


def test_several_vectors_come_back_in_the_order_of_the_inputs() -> None:
    row = decoded(embeddings([2.0], packed([0.5]), [1], places=[2, 0, 1]))
    assert row.output == [[0.5], [1.0], [2.0]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_vector_with_what_is_no_number_is_the_servers_fault(value: float) -> None:
    for vector in ([1.0, value], packed([1.0, value])):
        row = decoded(embeddings(vector))
        assert (row.verdict, row.code, row.output) == (Verdict.SERVER_ERROR, "bad_vector", None)
        assert row.usage == Usage(5, 0)


# -- moderations -----------------------------------------------------------------------------------
def result(flagged: bool) -> dict[str, Any]:
    return {
        "flagged": flagged,
        "categories": {"hate": flagged, "self-harm/intent": False},
        "category_scores": {"hate": 0.9 if flagged else 1e-7, "self-harm/intent": 0.0},
    }


def test_a_moderation_is_its_flag_with_categories_and_scores_whatever_it_found() -> None:
    for flagged in (True, False):
        applied = {"category_applied_input_types": {"hate": ["text"]}}
        body = {"id": "modr-1", "model": "omni", "results": [result(flagged) | applied]}
        row = decoded(body)
        assert row == Row("r-1", Verdict.OK, output=result(flagged), model="omni")
        assert plain_answer(line(body)) == row, "a single result must take the quick path"


def test_several_results_of_a_moderation_come_back_as_a_list() -> None:
    body = {"id": "modr-1", "model": "omni", "results": [result(True), result(False)]}
    assert decoded(body).output == [result(True), result(False)]


def test_a_moderation_as_the_sdk_knows_it_is_read() -> None:
    names = list(ModerationCreateResponse.model_json_schema()["$defs"]["Categories"]["properties"])
    values = {"categories": dict.fromkeys(names, False), "category_scores": dict.fromkeys(names, 0.0)}
    types = {"category_applied_input_types": {name: ["text"] for name in names}}
    body = {"id": "m", "model": "o", "results": [{"flagged": False, **values, **types}]}
    ModerationCreateResponse.model_validate(body)
    assert decoded(body).output == {"flagged": False, **values}
