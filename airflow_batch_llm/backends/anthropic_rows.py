"""Result lines of Anthropic's batches, decoded into rows.

The common line (``succeeded``, words alone) takes a typed path; every other, and every line whose types
surprise it, the general one. Neither ever raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from airflow_batch_llm.backends.anthropic_faults import verdict_of_message
from airflow_batch_llm.backends.anthropic_usage import loose_usage, usage_of
from airflow_batch_llm.backends.errors import MESSAGE_LIMIT, read_error, token
from airflow_batch_llm.backends.loose_rows import decode_loosely
from airflow_batch_llm.backends.openai_answers import BAD_CALL, MODEL_LIMIT, is_call, shaped
from airflow_batch_llm.backends.openai_usage import MAX_TOKENS, NO_USAGE
from airflow_batch_llm.backends.openai_verdicts import BY_SHAPE, verdict_of_error
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict


class Stop(NamedTuple):
    """What a stop reason means: the verdict, and OpenAI's word for it."""

    verdict: Verdict
    finish: str


#: One that is not here leaves the answer as it is (``ok``), under its own word.
STOP_REASONS: dict[str, Stop] = {
    "end_turn": Stop(Verdict.OK, "stop"),
    "stop_sequence": Stop(Verdict.OK, "stop"),
    "tool_use": Stop(Verdict.OK, "tool_calls"),
    "max_tokens": Stop(Verdict.TRUNCATED, "length"),
    "model_context_window_exceeded": Stop(Verdict.TRUNCATED, "length"),
    # Classifiers stepped in: the model itself declines in words, under ``end_turn``.
    "refusal": Stop(Verdict.FILTERED, "content_filter"),
    # The provider gave up a turn that ran for long; to go on, the answer so far would have to be sent back.
    "pause_turn": Stop(Verdict.TIMEOUT, "pause_turn"),
}
#: What a row that did not run says: not executed, not charged.
NOT_RUN = {"canceled": Verdict.CANCELLED, "expired": Verdict.EXPIRED}
_OWN_FAULT = "api_error"
_PLAIN = frozenset({"end_turn", "stop_sequence"})
_SILENT = frozenset({"thinking", "redacted_thinking"})


def decode_row(line: bytes) -> Row:
    """Decode one result line. Never raises: a line that cannot be read is ``unknown``."""
    return _plain_answer(line) or decode_loosely(line, _row_of)


# -- plain answers ---------------------------------------------------------------------------------
class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: int | None = 0


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0
    output_tokens_details: _OutputDetails | None = None


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str = ""


class _Message(msgspec.Struct, gc=False):
    content: list[_Block]
    stop_reason: str
    model: str = ""
    usage: _Usage | None = None


class _Result(msgspec.Struct, gc=False):
    type: str
    message: _Message


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    result: _Result


_decode_line = msgspec.json.Decoder(_Line).decode


def _plain_answer(line: bytes) -> Row | None:
    """Return the row of an answer in words that ended by itself, None for any other line."""
    try:
        parsed = _decode_line(line)
        message = parsed.result.message
        if parsed.result.type != "succeeded" or message.stop_reason not in _PLAIN:
            return None
        content = message.content
        if len(content) == 1 and content[0].type == "text":
            text = content[0].text
        elif all(block.type == "text" or block.type in _SILENT for block in content):
            text = "".join(block.text for block in content if block.type == "text")
        else:
            return None
        if not text or text.isspace():
            return None
        return Row(
            parsed.custom_id, Verdict.OK, "", "", text, None, "stop", message.model[:MODEL_LIMIT],
            _typed_usage(message.usage),
        )  # fmt: skip
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def _typed_usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return NO_USAGE
    details = usage.output_tokens_details
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or 0,
        (details.thinking_tokens or 0) if details is not None else 0,
    )
    if min(counts) < 0 or max(counts) > MAX_TOKENS:
        raise ValueError("token counts out of range")
    return usage_of(*counts)


# -- any line --------------------------------------------------------------------------------------
def _row_of(wire_id: str, value: dict[str, Any]) -> Row:
    result = value.get("result")
    kind = result.get("type") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(kind, str):
        return shaped(wire_id, "no_response")
    if kind == "succeeded":
        message = result.get("message")
        if isinstance(message, dict) and message.get("type") == "error":
            return _error(wire_id, message)
        return _answer(wire_id, message) if isinstance(message, dict) else shaped(wire_id, "no_body")
    if kind == "errored":
        return _error(wire_id, result.get("error"))
    if kind in NOT_RUN:
        return Row(wire_id, NOT_RUN[kind], kind)
    return Row(wire_id, Verdict.UNKNOWN, token(kind) or "unknown_result")


def _error(wire_id: str, error: Any) -> Row:
    """Return the row of an error, which lies one level deeper than its envelope's own ``type``."""
    facts = read_error(error)
    # OGX has one type for every failure of its model server; the status in the text says more.
    kind = "" if facts.type == _OWN_FAULT and facts.status is not None else facts.type
    verdict = verdict_of_error(facts.code, kind, facts.status)
    if verdict is Verdict.BAD_REQUEST:
        verdict = verdict_of_message(facts.message) or verdict
    return Row(wire_id, verdict, facts.code or facts.type or "errored", facts.message[:MESSAGE_LIMIT])


def _answer(wire_id: str, message: dict[str, Any]) -> Row:
    content = message.get("content")
    if isinstance(content, str):  # as it may be in requests
        content = [{"type": "text", "text": content}]
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    texts = [block["text"] for block in blocks if _is_text(block)]
    text = "".join(texts) if texts else None
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"] or None
    reason = token(message.get("stop_reason"))
    stop = STOP_REASONS.get(reason, Stop(Verdict.OK, reason))
    verdict, code = stop.verdict, "" if stop.verdict is Verdict.OK else reason
    if verdict is Verdict.FILTERED:
        text, code = _refusal(message.get("stop_details"), text)
    elif verdict is Verdict.OK and not calls and (not text or text.isspace()):
        verdict, code = BY_SHAPE["no_content"], "no_content"
    elif verdict is Verdict.OK and calls and not all(is_call(call) for call in calls):
        verdict, code = BY_SHAPE[BAD_CALL], BAD_CALL
    output = calls if verdict is Verdict.OK or code == BAD_CALL else None
    return Row(
        wire_id, verdict, code, "", text, output, stop.finish, _model(message),
        loose_usage(message.get("usage")),
    )  # fmt: skip


def _is_text(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _refusal(details: Any, text: str | None) -> tuple[str | None, str]:
    """Return what a refused row says, and the policy it met, where the provider names one."""
    details = details if isinstance(details, dict) else {}
    explained = details.get("explanation")
    said = text or (explained if isinstance(explained, str) else None)
    return said, token(details.get("category")) or "refusal"


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call in the form that OpenAI's chat has."""
    given = block.get("input")
    arguments = jsonl.dumps(given if given is not None else {}).decode("utf-8")
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": arguments},
    }


def _model(message: Mapping[str, Any]) -> str:
    model = message.get("model")
    return model[:MODEL_LIMIT] if isinstance(model, str) else ""
