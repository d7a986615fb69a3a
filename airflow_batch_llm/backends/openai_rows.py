"""Result lines of the OpenAI family, decoded into rows.

The common line (HTTP 200, one plain answer) takes a typed path. Every other line, and every line whose
types surprise the typed path, takes the general one, which accepts what has been met in the wild:
failures in the output file, errors as text, bodies as JSON strings, bare completions, counts as strings,
broken UTF-8. Neither ever raises.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import structs

from airflow_batch_llm.backends.errors import MESSAGE_LIMIT, ErrorFacts, read_error
from airflow_batch_llm.backends.loose_rows import decode_loosely
from airflow_batch_llm.backends.openai_answers import answer_row, is_answer, shaped
from airflow_batch_llm.backends.openai_typed import plain_answer
from airflow_batch_llm.backends.openai_usage import loose_usage, whole
from airflow_batch_llm.backends.openai_verdicts import verdict_of_error
from airflow_batch_llm.backends.tolerant_json import mended
from airflow_batch_llm.core.model import Row


def decode_row(line: bytes) -> Row:
    """Decode one result line. Never raises: a line that cannot be read is ``unknown``.

    :param line: without its end of line; a byte order mark or white space around it is ignored.
    """
    return plain_answer(line) or decode_loosely(line, _row_of)


def _row_of(wire_id: str, value: dict[str, Any]) -> Row:
    record_id = value.get("recordId")
    if not wire_id and isinstance(record_id, str) and record_id:
        return shaped(record_id, "other_protocol")
    response, error = _json_text(value.get("response")), value.get("error")
    if not isinstance(response, dict) or not response:
        if _says_something(error):
            return _error_row(wire_id, read_error(error), None)
        return shaped(wire_id, "no_response")
    if "status_code" not in response and "body" not in response:
        response = {"body": response}  # Fireworks: the bare completion
    status, body = whole(response.get("status_code")), _json_text(response.get("body"))
    if status is None and is_answer(body):
        status = 200
    if status is not None and 200 <= status < 300:
        return _success_row(wire_id, status, body, error)
    if _says_something(body):
        facts = read_error(body)
        if facts == ErrorFacts() and _says_something(error):
            facts = read_error(error)
    else:
        facts = read_error(error)
    if status is None and facts == ErrorFacts():
        return shaped(wire_id, "no_status")
    return _error_row(wire_id, facts, status)


def _success_row(wire_id: str, status: int, body: Any, error: Any) -> Row:
    if isinstance(body, dict) and _says_something(body.get("error")):
        row = _error_row(wire_id, read_error(body["error"]), status)
        return structs.replace(row, usage=loose_usage(body.get("usage")))
    if _says_something(error):
        return _error_row(wire_id, read_error(error), status)
    if not body:
        return shaped(wire_id, "no_body")
    return answer_row(wire_id, body)


def _error_row(wire_id: str, facts: ErrorFacts, status: int | None) -> Row:
    if (status is None or status < 400) and facts.status is not None:
        status = facts.status
    verdict = verdict_of_error(facts.code, facts.type, status)
    unnamed = "error_text" if status is None or 200 <= status < 300 else f"http_{status}"
    code = facts.code or facts.type or unnamed
    return Row(wire_id, verdict, code, facts.message[:MESSAGE_LIMIT])


def _json_text(value: Any) -> Any:
    """Return the JSON value inside a string that holds one (Mistral sends bodies so), else ``value``."""
    if not isinstance(value, str):
        return value
    try:
        return mended(json.loads(value, strict=False))
    except (ValueError, RecursionError):
        return value


def _says_something(error: Any) -> bool:
    """Say whether an error is there: an object of nulls and a zero code are none."""
    if isinstance(error, dict):
        return any(error.values())
    return bool(error)
