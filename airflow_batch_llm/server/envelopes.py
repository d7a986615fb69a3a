"""How each protocol says that a call failed: by the first part of the path that was called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_batch_llm.server.replies import error_body

#: (HTTP status, message, OpenAI's type, code, param) -> the reply's JSON value.
Envelope = Callable[[int, str, str, str | None, str | None], Any]

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GOOGLE_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def envelope_of(path: str) -> Envelope:
    """Return the envelope of the protocol that a path belongs to; OpenAI's where it is nobody's."""
    return _ENVELOPES.get(path.split("/", 2)[1], _openai)


def _openai(status: int, message: str, kind: str, code: str | None, param: str | None) -> Any:
    return error_body(message, kind=kind, code=code, param=param)


def _anthropic(status: int, message: str, kind: str, code: str | None, param: str | None) -> Any:
    found = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error: dict[str, Any] = {"type": found, "message": message}
    if code:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error, "request_id": None}


def _gemini(status: int, message: str, kind: str, code: str | None, param: str | None) -> Any:
    if status == 401:  # a wrong key is a 400 there
        status, code = 400, "API_KEY_INVALID"
    error: dict[str, Any] = {
        "code": status,
        "message": message,
        "status": _GOOGLE_STATUSES.get(status, "INTERNAL" if status >= 500 else "FAILED_PRECONDITION"),
    }
    if code:
        error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code}]
    return {"error": error}


def _mistral(status: int, message: str, kind: str, code: str | None, param: str | None) -> Any:
    if status in (401, 403, 422):
        return {"detail": message}
    return {"object": "error", "message": message, "type": kind, "param": param, "code": code}


_ENVELOPES: dict[str, Envelope] = {"anthropic": _anthropic, "gemini": _gemini, "mistral": _mistral}
