"""Result lines of the Gemini API, decoded into rows.

The common line (one plain answer) takes a typed path. Every other line takes the general one, which accepts
what has been met: keys beside the answer or in ``metadata`` (inline results), errors as ``error`` or as
``status`` (an object, or Vertex's text with JSON in it; "" is none), codes of google.rpc as numbers or names,
HTTP statuses. Neither ever raises.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from airflow_batch_llm.backends.errors import MESSAGE_LIMIT, ErrorFacts, read_error
from airflow_batch_llm.backends.gemini_answers import answer_row
from airflow_batch_llm.backends.gemini_typed import plain_answer
from airflow_batch_llm.backends.openai_answers import shaped
from airflow_batch_llm.backends.openai_usage import whole
from airflow_batch_llm.backends.openai_verdicts import verdict_of_error
from airflow_batch_llm.backends.tolerant_json import loads_tolerant
from airflow_batch_llm.core.model import Row
from airflow_batch_llm.core.verdicts import Verdict

#: Names of google.rpc's codes.
RPC_CODES = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}

#: There is no code for a prompt that the model's context does not hold: only these words.
_TOO_LONG = re.compile(r"token count\b.{0,40}\bexceeds the maximum number of tokens")
#: A balance or a cap that is used up has the code of a rate limit (429 RESOURCE_EXHAUSTED).
_SPENT = re.compile(
    r"\bprepayment credits are depleted|\bexceeded its (?:monthly )?spend(?:ing)? cap", re.IGNORECASE
)
#: A file that a request names and that has expired, or is another project's, has the code of a wrong key.
_FILE_DENIED = re.compile(r"permission to access the file\b", re.IGNORECASE)


def is_spent(message: str) -> bool:
    """Say whether the text of a quota's error means that no wait helps: there is no more money."""
    return _SPENT.search(message) is not None


def decode_row(line: bytes) -> Row:
    """Decode one result line. Never raises: a line that cannot be read is ``unknown``.

    :param line: without its end of line; a byte order mark or white space around it is ignored.
    """
    return plain_answer(line) or _decode_any(line)


def rpc_facts(error: Any) -> ErrorFacts:
    """Read an error, whose code may be one of google.rpc's numbers."""
    facts = read_error(error)
    number = whole(error.get("code")) if isinstance(error, dict) else None
    name = RPC_CODES.get(number or 0, "")
    return replace(facts, code=name) if name and facts.code in ("", str(number)) else facts


def _decode_any(line: bytes) -> Row:
    try:
        value = loads_tolerant(line)
    except (ValueError, RecursionError):
        return shaped("", "not_json")
    if not isinstance(value, dict):
        return shaped("", "not_an_object")
    wire_id = _key_of(value)
    try:
        return _row_of(wire_id, value)
    except Exception:  # one odd row must never stop the others, whatever it holds
        return shaped(wire_id, "undecodable")


def _key_of(value: dict[str, Any]) -> str:
    metadata = value.get("metadata")
    beside = metadata.get("key") if isinstance(metadata, dict) else None
    return next((key for key in (value.get("key"), beside) if isinstance(key, str)), "")


def _row_of(wire_id: str, value: dict[str, Any]) -> Row:
    for error in (value.get("error"), _status_error(value.get("status"))):
        if _says_something(error):
            return _error_row(wire_id, rpc_facts(error))
    response = value.get("response")
    if not isinstance(response, dict):
        return shaped(wire_id, "no_response")
    if not response:
        return shaped(wire_id, "no_body")
    if _says_something(response.get("error")):
        return _error_row(wire_id, rpc_facts(response["error"]))
    return answer_row(wire_id, response)


def _says_something(error: Any) -> bool:
    """Say whether an error is there: code 0 is google.rpc's OK."""
    return any(error.values()) if isinstance(error, dict) else bool(error)


def _status_error(status: Any) -> Any:
    """Return the error that a ``status`` holds. Vertex writes a text with JSON at its end; "" is none."""
    if not isinstance(status, str):
        return status
    start = status.find("{")
    if start >= 0:
        try:
            return json.loads(status[start:], strict=False)
        except (ValueError, RecursionError):
            pass
    return {"message": status} if status.strip() else None


def _error_row(wire_id: str, facts: ErrorFacts) -> Row:
    if _TOO_LONG.search(facts.message):
        facts = replace(facts, code="context_length_exceeded")
    verdict = verdict_of_error(facts.code, facts.type, facts.status)
    if is_spent(facts.message):
        verdict = Verdict.ACCOUNT
    elif verdict is Verdict.ACCOUNT and _FILE_DENIED.search(facts.message):
        verdict = Verdict.BAD_REQUEST
    code = facts.code or facts.type or (f"http_{facts.status}" if facts.status else "error_text")
    return Row(wire_id, verdict, code, facts.message[:MESSAGE_LIMIT])
