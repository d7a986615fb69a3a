"""Replies of whoever answers, as Anthropic shows them: a Message, or the error of a row."""

from __future__ import annotations

from typing import Any

from airflow_batch_llm.server.anthropic_cache import Cached
from airflow_batch_llm.server.envelopes import anthropic_error
from airflow_batch_llm.server.translation import Answer, Call, Failure

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_TIMEOUT = 504


def message_of(answer: Answer, model: str, cached: Cached | None, *, shows_thinking: bool) -> dict[str, Any]:
    """Return a Message.

    :param model: as it was asked for.
    :param cached: what caching is simulated; None: what the reply itself says.
    :param shows_thinking: false: thinking blocks come without their text.
    """
    reason = _stop_reason(answer)
    refused = {"type": "refusal", "category": None, "explanation": answer.refusal}
    return {
        "id": f"msg_{answer.digest}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _content(answer, shows_thinking),
        "stop_reason": reason,
        "stop_sequence": answer.stopped_by if reason == "stop_sequence" else None,
        "stop_details": refused if reason == "refusal" else None,
        "usage": _usage(answer, cached),
    }


def row_error(failure: Failure, request_id: str | None) -> dict[str, Any]:
    """Return what an ``errored`` row says. :param request_id: None: it was rejected before it ran."""
    text = failure.message
    if failure.code == "context_length_exceeded":
        text = f"prompt is too long: {text}"
    # An error in place of an answer has no status of its own; nothing at all is a time-out.
    status = {0: _TIMEOUT, 200: 500}.get(failure.status, failure.status)
    error: dict[str, Any] = anthropic_error(status, text, failure.code, request_id)
    return error


def _stop_reason(answer: Answer) -> str:
    if answer.refusal is not None:
        return "refusal"
    if answer.finish in _STOP_REASONS:
        return _STOP_REASONS[answer.finish]
    if answer.calls:
        return "tool_use"
    return "stop_sequence" if answer.stopped_by is not None else "end_turn"


def _content(answer: Answer, shows_thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.thinking:
        text = answer.thinking if shows_thinking else ""
        blocks.append({"type": "thinking", "thinking": text, "signature": f"sig_{answer.digest}"})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text, "citations": None})
    return blocks + [_tool_use(call) for call in answer.calls]


def _tool_use(call: Call) -> dict[str, Any]:
    # Arguments that were cut off by the output limit are not JSON: the input is an object all the same.
    given = call.arguments if isinstance(call.arguments, dict) else {}
    return {
        "type": "tool_use",
        "id": f"toolu_{call.id.rpartition('_')[2]}",
        "name": call.name,
        "input": given,
    }


def _usage(answer: Answer, cached: Cached | None) -> dict[str, Any]:
    """Return the tokens: what was read from the cache, or written to it, is not among ``input_tokens``."""
    total = answer.input_tokens
    if cached is None:
        read, five, hour = min(answer.cached_tokens, total), 0, 0
    else:
        read = min(cached.read, total)
        five = min(cached.written_5m, total - read)
        hour = min(cached.written_1h, total - read - five)
    usage: dict[str, Any] = {
        "input_tokens": total - read - five - hour,
        "cache_creation_input_tokens": five + hour,
        "cache_read_input_tokens": read,
        "cache_creation": {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
        "output_tokens": answer.output_tokens,
        "service_tier": "batch",
    }
    if answer.reasoning_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": answer.reasoning_tokens}
    return usage
