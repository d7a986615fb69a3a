"""The words that the vendors' own clients know: each has a meaning here. A newer client shows new ones."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from anthropic.types import StopReason
from anthropic.types.messages import MessageBatch as AnthropicBatch
from anthropic.types.shared import ErrorType
from google.genai import types as google
from mistralai.client.models import BatchJobStatus, ChatCompletionChoiceFinishReason
from openai.types import Batch
from openai.types.chat.chat_completion import Choice
from openai.types.responses import ResponseError, ResponseStatus
from openai.types.responses.response import IncompleteDetails

from airflow_batch_llm.backends import anthropic_rows, gemini_rows, mistral_rows, openai_rows
from airflow_batch_llm.backends.anthropic_objects import MessageBatch
from airflow_batch_llm.backends.gemini_objects import Operation
from airflow_batch_llm.backends.mistral_objects import BatchJob
from airflow_batch_llm.backends.openai_objects import BatchObject
from airflow_batch_llm.backends.openai_verdicts import BY_FINISH_REASON, BY_SHAPE
from airflow_batch_llm.core.model import RemoteStatus, Row
from airflow_batch_llm.core.verdicts import Verdict

UNSPECIFIED = "UNSPECIFIED"


def words_of(annotation: Any) -> set[str]:
    """Return the strings of a Literal, however deep in unions and options."""
    found = {part for part in get_args(annotation) if isinstance(part, str)}
    return found.union(*(words_of(part) for part in get_args(annotation) if not isinstance(part, str)))


def words_in(model: Any, member: str) -> set[str]:
    words = words_of(model.model_fields[member].annotation)
    assert words, f"the client names no words for {member} any more"
    return words


# -- states of batches -----------------------------------------------------------------------------
def test_states_of_batches_are_known() -> None:
    shown = [BatchObject(id="b", status=word).normalised({}) for word in words_in(Batch, "status")]
    shown += [
        MessageBatch(id="b", processing_status=word).normalised()
        for word in words_in(AnthropicBatch, "processing_status")
    ]
    shown += [BatchJob(id="b", status=word).normalised() for word in words_of(BatchJobStatus)]
    for state in google.JobState:
        if UNSPECIFIED not in state.value:
            for word in (state.value, state.value.replace("JOB_", "BATCH_", 1)):
                shown.append(Operation(name="batches/b", metadata={"state": word}).normalised())
    assert [batch.raw_status for batch in shown if batch.status is RemoteStatus.UNKNOWN] == []


# -- how answers end -------------------------------------------------------------------------------
def test_reasons_for_the_end_of_an_answer_are_known() -> None:
    assert set(get_args(StopReason)) == set(anthropic_rows.STOP_REASONS)
    chat = words_in(Choice, "finish_reason") | words_of(ChatCompletionChoiceFinishReason)
    assert chat <= BY_FINISH_REASON.keys()
    assert set(get_args(ResponseStatus)) <= BY_FINISH_REASON.keys()
    ends = {end.value.lower() for end in google.FinishReason if UNSPECIFIED not in end.value}
    assert ends <= BY_FINISH_REASON.keys()


@pytest.mark.parametrize(
    "end", sorted(end.value for end in google.FinishReason if UNSPECIFIED not in end.value)
)
def test_no_end_but_a_stop_lands_half_an_answer_of_gemini(end: str) -> None:
    candidate = {"content": {"parts": [{"text": "half"}]}, "finishReason": end}
    row = gemini_rows.decode_row(line({"key": "r", "response": {"candidates": [candidate]}}))
    assert (row.verdict is Verdict.OK) is (end == "STOP")


@pytest.mark.parametrize("reason", sorted(words_in(IncompleteDetails, "reason")))
def test_a_response_that_is_incomplete_for_any_reason_never_lands(reason: str) -> None:
    said = {"type": "message", "content": [{"type": "output_text", "text": "half"}]}
    body = {"status": "incomplete", "incomplete_details": {"reason": reason}, "output": [said]}
    assert of_openai(body).verdict in (Verdict.TRUNCATED, Verdict.FILTERED)


def test_a_prompt_blocked_for_any_reason_is_filtered() -> None:
    for reason in google.BlockedReason:
        row = gemini_rows.decode_row(
            line({"key": "r", "response": {"promptFeedback": {"blockReason": reason}}})
        )
        assert (row.verdict, row.code) == (BY_SHAPE["prompt_blocked"], reason.value)


# -- errors ----------------------------------------------------------------------------------------
def test_errors_of_rows_are_known() -> None:
    of_others = {kind for kind in get_args(ErrorType) if kind.startswith("memory_")}  # of memory stores
    for kind in set(get_args(ErrorType)) - of_others:
        error = {"type": "error", "error": {"type": kind, "message": "m"}, "request_id": None}
        row = anthropic_rows.decode_row(
            line({"custom_id": "r", "result": {"type": "errored", "error": error}})
        )
        assert row.verdict is not Verdict.UNKNOWN, kind
    for code in words_in(ResponseError, "code"):
        failed = of_openai({"status": "failed", "output": [], "error": {"code": code, "message": "m"}})
        assert failed.verdict not in (Verdict.OK, Verdict.UNKNOWN), code


def test_an_end_of_mistrals_never_lands_half_an_answer() -> None:
    for end in words_of(ChatCompletionChoiceFinishReason):
        body = {"choices": [{"message": {"content": "half"}, "finish_reason": end}]}
        row = mistral_rows.decode_row(
            line({"custom_id": "r", "response": {"status_code": 200, "body": body}})
        )
        assert (row.verdict is Verdict.OK) is (end in ("stop", "tool_calls")), end


def of_openai(body: Any) -> Row:
    return openai_rows.decode_row(line({"custom_id": "r", "response": {"status_code": 200, "body": body}}))


def line(value: Any) -> bytes:
    return json.dumps(value).encode()
