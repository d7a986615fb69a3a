"""What a ``GenerateContentResponse``, or the answer with a vector, says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_batch_llm.backends.errors import token
from airflow_batch_llm.backends.gemini_usage import loose_usage, vector_usage
from airflow_batch_llm.backends.openai_answers import BAD_CALL, MODEL_LIMIT, is_call, shaped
from airflow_batch_llm.backends.openai_vectors import vector_of
from airflow_batch_llm.backends.openai_verdicts import BY_FINISH_REASON, BY_SHAPE
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict

_OK = Verdict.OK
#: Finish reasons that mean what one of OpenAI's means; those of the filters become ``content_filter``.
_FINISHES = {"STOP": "stop", "MAX_TOKENS": "length"}


def answer_row(wire_id: str, response: dict[str, Any]) -> Row:
    """Return the row of an answer that came without an error."""
    if "embedding" in response or "embeddings" in response:
        return _vector_row(wire_id, response)
    named = response.get("modelVersion")
    model = named[:MODEL_LIMIT] if isinstance(named, str) else ""
    usage = loose_usage(response.get("usageMetadata"))
    candidates = response.get("candidates")
    if isinstance(candidates, list) and candidates:
        return _candidate_row(wire_id, candidates[0], model, usage)
    feedback = response.get("promptFeedback")
    blocked = token(feedback.get("blockReason")) if isinstance(feedback, dict) else ""
    if blocked:
        verdict = BY_SHAPE["prompt_blocked"]
        return Row(wire_id, verdict, blocked, finish_reason="content_filter", model=model, usage=usage)
    known = isinstance(candidates, list) or "usageMetadata" in response or "promptFeedback" in response
    return shaped(wire_id, "no_choice" if known else "no_choices", model=model, usage=usage)


def _candidate_row(wire_id: str, candidate: Any, model: str, usage: Usage) -> Row:
    if not isinstance(candidate, dict):
        return shaped(wire_id, "no_choice", model=model, usage=usage)
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    text, calls = _text_of(parts), _calls_of(parts)
    reason = token(candidate.get("finishReason"))
    verdict = BY_FINISH_REASON.get(reason.lower(), _OK)
    code = "" if verdict is _OK else reason
    if verdict is _OK and not calls and (text is None or not text or text.isspace()):
        verdict, code = BY_SHAPE["no_content"], "no_content"
    if verdict is _OK and calls and not all(is_call(call) for call in calls):
        verdict, code = BY_SHAPE[BAD_CALL], BAD_CALL
    output = calls if verdict is _OK or code == BAD_CALL else None
    return Row(wire_id, verdict, code, "", text, output, _finish(reason, verdict, output), model, usage)


def _finish(reason: str, verdict: Verdict, calls: Any) -> str:
    if calls and reason == "STOP":
        return "tool_calls"
    if verdict is Verdict.FILTERED:
        return "content_filter"
    return _FINISHES.get(reason, reason.lower())


def _text_of(parts: Sequence[dict[str, Any]]) -> str | None:
    """Return the words of the answer, without the thoughts before it."""
    found = [part["text"] for part in parts if isinstance(part.get("text"), str) and not part.get("thought")]
    return "".join(found) if found else None


def _calls_of(parts: Sequence[dict[str, Any]]) -> list[Any] | None:
    """Return the tool calls in the form that OpenAI's chat answers have them in."""
    calls: list[Any] = []
    for part in parts:
        call = part.get("functionCall")
        if isinstance(call, dict):
            arguments = jsonl.dumps(call.get("args") or {}).decode("utf-8")
            call_id = call.get("id") or f"call_{len(calls) + 1}"
            function = {"name": call.get("name"), "arguments": arguments}
            calls.append({"id": call_id, "type": "function", "function": function})
    return calls or None


def _vector_row(wire_id: str, response: dict[str, Any]) -> Row:
    usage = vector_usage(response)
    embedding = response.get("embedding")
    several = response.get("embeddings")
    if embedding is None and isinstance(several, list) and len(several) == 1:
        embedding = several[0]
    values = embedding.get("values") if isinstance(embedding, dict) else None
    vector = vector_of(values) if values is not None else []
    if vector is None:
        return shaped(wire_id, "bad_vector", usage=usage)
    if not vector:
        return shaped(wire_id, "no_vector", usage=usage)
    return Row(wire_id, _OK, output=vector, usage=usage)
