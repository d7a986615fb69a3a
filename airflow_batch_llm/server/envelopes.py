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
#: What ``details.error_code`` can say; other codes have no place there.
_ANTHROPIC_CODES = frozenset(
    {
        "claude_code_key_creator_not_member",
        "cmek_context_unavailable",
        "cmek_key_disabled",
        "cmek_key_network_blocked",
        "cmek_key_unreachable",
        "contract_spend_limit_reached",
        "enforced_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "linked_organization_spend_limit_reached",
        "organization_on_hold",
        "ramp_limit_exceeded",
        "sandbox_egress_restricted",
        "workspace_human_review_disabled",
    }
)
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


def anthropic_error(status: int, message: str, code: str | None, request_id: str | None = None) -> Any:
    """Return Anthropic's error object, of a call or (nested) of a row.

    :param code: told where it is one of Anthropic's; OpenAI's ``insufficient_quota`` is a spend limit there.
    """
    found = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error: dict[str, Any] = {"type": found, "message": message}
    code = "enforced_spend_limit_reached" if code == "insufficient_quota" else code
    if code in _ANTHROPIC_CODES:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error, "request_id": request_id}


def _anthropic(status: int, message: str, kind: str, code: str | None, param: str | None) -> Any:
    return anthropic_error(status, message, code)


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


def _azure(status: int, message: str, kind: str, code: str | None, param: str | None) -> Any:
    generic = code in (None, "invalid_api_key", "rate_limit_exceeded")
    error: dict[str, Any] = {"code": str(status) if generic else code, "message": message}
    if param:
        error["param"] = param
    return {"error": error}


def _mistral(status: int, message: str, kind: str, code: str | None, param: str | None) -> Any:
    if status == 422 and param:
        return {"detail": [{"type": code or "value_error", "loc": ["body", param], "msg": message}]}
    if status in (401, 403, 422):
        return {"detail": message}
    return {"object": "error", "message": message, "type": kind, "param": param, "code": code}


_ENVELOPES: dict[str, Envelope] = {
    "anthropic": _anthropic,
    "azure": _azure,
    "gemini": _gemini,
    "mistral": _mistral,
}
