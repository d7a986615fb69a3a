"""Whole messages and whole bodies that a column of the source holds. Nothing in them is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS
from airflow_batch_llm.core.jsonl import dumps, loads
from airflow_batch_llm.exceptions import PromptError
from airflow_batch_llm.prompts.faults import RowFault
from airflow_batch_llm.prompts.templates import Row

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
#: What an assistant's message may hold in place of content.
_IN_PLACE = ("tool_calls", "function_call", "refusal")
#: What a body must hold to ask anything. A body for /v1/responses may also refer to something stored.
BODY_MEMBER = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input", MODERATIONS: "input"}

HISTORY_SHAPE, BODY_SHAPE = "history_shape", "body_shape"


def column_of(row: Row, column: str, what: str) -> Any:
    """Return a column. :raises PromptError: the row does not have it."""
    if column not in row:
        there = ", ".join(sorted(map(str, row)))
        raise PromptError(f"{what} is in column {column!r}, which the row does not have; it has: {there}")
    return row[column]


def history_of(row: Row, column: str) -> list[Any]:
    """Return the messages that a column holds, as a list or as its JSON text; NULL and "" are none.

    :raises RowFault: it is no list of messages.
    """
    value = _parsed(column_of(row, column, "the history"), HISTORY_SHAPE, "the history")
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise RowFault(HISTORY_SHAPE, "the history is not a list of messages")
    for number, message in enumerate(value):
        fault = _message_fault(message)
        if fault:
            raise RowFault(HISTORY_SHAPE, f"message {number} of the history {fault}")
    _check_writable(value, HISTORY_SHAPE, "the history")
    return list(value)


def body_of(row: Row, column: str, endpoint: str) -> dict[str, Any]:
    """Return the body that a column holds, as an object or as its JSON text.

    :raises RowFault: it is no body for the endpoint.
    """
    value = _parsed(column_of(row, column, "the body"), BODY_SHAPE, "the body")
    if not isinstance(value, Mapping):
        raise RowFault(BODY_SHAPE, "the body is not a JSON object")
    fault = body_fault(value, endpoint)
    if fault:
        raise RowFault(BODY_SHAPE, f"the body {fault}")
    _check_writable(value, BODY_SHAPE, "the body")
    return dict(value)


def body_fault(body: Mapping[Any, Any], endpoint: str) -> str:
    """Return what keeps an object from being a body for an endpoint, "" where nothing does."""
    member = BODY_MEMBER.get(endpoint)
    if member is not None and member not in body:
        return f"has no {member!r}, which {endpoint} needs"
    model = body.get("model", "one")
    if not isinstance(model, str) or not model:
        return "names a model that is not a text"
    return ""


def _parsed(value: Any, fault: str, what: str) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
    elif isinstance(value, str):
        try:
            value = value.encode("utf-8")
        except UnicodeEncodeError:
            raise RowFault("unencodable_text", f"{what} holds half a surrogate pair") from None
    else:
        return value
    if not value.strip():
        return None
    try:
        return loads(value)
    except (ValueError, RecursionError):
        raise RowFault(fault, f"{what} is text that is no JSON") from None


def _message_fault(message: Any) -> str:
    if not isinstance(message, Mapping):
        return "is not an object"
    if message.get("role") not in _ROLES:
        return "has no role, or one that there is not"
    content = message.get("content")
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "is a tool's and names no tool_call_id"
    if isinstance(content, str):
        return ""
    if isinstance(content, (list, tuple)):
        parts = all(isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content)
        return "" if content and parts else "has content that is no list of parts"
    if content is None and message["role"] == "assistant" and any(message.get(name) for name in _IN_PLACE):
        return ""
    return "has no content"


def _check_writable(value: Any, fault: str, what: str) -> None:
    try:
        dumps(value)
    except RecursionError:
        raise RowFault(fault, f"{what} is nested too deeply") from None
    except ValueError:
        raise RowFault("unencodable_text", f"{what} holds what JSON cannot say") from None
