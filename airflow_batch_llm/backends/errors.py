"""What a provider's error says: its envelope in every form met so far, as short tokens.

Provider text never leaves this module except as a row's ``message`` (dead-letter table only).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: How the text of an exception begins that a gateway (OGX) passes on in place of the model server's error:
#: the OpenAI client's own words, and pydantic's for a body that the gateway itself would not take.
_STATUS_IN_TEXT = re.compile(r"Error code: ([45]\d\d)\b")
_BODY_REFUSED = re.compile(r"\d+ validation errors? for ")
_UNPROCESSABLE = 422
#: A duration as Google writes it.
_SECONDS = re.compile(r"(\d{1,7}(?:\.\d{1,9})?)s")
MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """The parts of an error object. ``code`` and ``type`` are short tokens or ""; ``status`` is an HTTP
    status that the object itself names (``"code": 400``, or in its text), None where it names none;
    ``retry_after`` is in seconds."""

    code: str = ""
    type: str = ""
    param: str = ""
    message: str = ""
    status: int | None = None
    retry_after: float | None = None


def token(value: Any) -> str:
    """Return ``value`` if it is a short token (``[A-Za-z0-9_.-]``, at most 64 long), else ""."""
    return value if isinstance(value, str) and _TOKEN.fullmatch(value) else ""


def read_error(value: Any) -> ErrorFacts:
    """Read an error in any of its forms; what cannot be read gives empty facts.

    Forms: ``{"error": {…}}``, the inner object itself, ``{"error": "text"}`` with or without a ``code``
    beside it, ``{"detail": …}`` (FastAPI), a list of one (Google), a bare text.
    """
    for _ in range(4):  # envelopes nest at most a few deep
        if isinstance(value, list):
            value = value[0] if value else None
        elif isinstance(value, dict) and isinstance(value.get("error"), str) and value.get("code"):
            value = {"code": value["code"], "message": value["error"]}
        elif isinstance(value, dict) and value.get("error"):
            value = value["error"]
        elif isinstance(value, dict) and "detail" in value and not value.get("message"):
            value = value["detail"]
        else:
            break
    if isinstance(value, str):
        return ErrorFacts(code=token(value), message=value[:MESSAGE_LIMIT], status=_status_in_text(value))
    if not isinstance(value, dict):
        return ErrorFacts()
    code, status = _code_and_status(value)
    kind = token(value.get("type"))
    message = _message(value)
    reason, delay = _of_details(value.get("details"))
    if reason:  # it says more than the code beside it: a wrong key is an INVALID_ARGUMENT (Google)
        code, kind = reason, kind or code
    return ErrorFacts(
        code=code,
        type=kind,
        param=token(value.get("param")),
        message=message,
        status=status if status is not None else _status_in_text(message),
        retry_after=delay,
    )


def parse_error_body(body: bytes) -> ErrorFacts:
    """Read the body of an HTTP error reply: JSON in any form, plain text or HTML (which say nothing)."""
    try:
        return read_error(json.loads(body))
    except (ValueError, RecursionError):
        return ErrorFacts()


def _code_and_status(error: dict[str, Any]) -> tuple[str, int | None]:
    code = error.get("code")
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 3:
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 100 <= code <= 599:
        return token(error.get("status")), code
    return token(code) or token(error.get("status")), None


def _of_details(details: Any) -> tuple[str, float | None]:
    """Return the reason and the delay in seconds that an error's details hold; "" and None for none.

    Google lists an ``ErrorInfo`` and a ``RetryInfo``, Anthropic has one object with ``error_code``.
    """
    if isinstance(details, dict):
        return token(details.get("error_code")), None
    reason, delay = "", None
    for detail in details if isinstance(details, list) else ():
        if not isinstance(detail, dict):
            continue
        reason = reason or token(detail.get("reason"))
        said = detail.get("retryDelay")
        found = _SECONDS.fullmatch(said) if isinstance(said, str) else None
        delay = float(found[1]) if found and delay is None else delay
    return reason, delay


def _status_in_text(message: str) -> int | None:
    found = _STATUS_IN_TEXT.match(message)
    if found:
        return int(found[1])
    return _UNPROCESSABLE if _BODY_REFUSED.match(message) else None


def _message(error: dict[str, Any]) -> str:
    for name in ("message", "msg", "detail", "details"):
        value = error.get(name)
        if isinstance(value, str) and value:
            return value[:MESSAGE_LIMIT]
        if isinstance(value, (dict, list)) and value:
            return json.dumps(value, ensure_ascii=False, default=str)[:MESSAGE_LIMIT]
    return ""
