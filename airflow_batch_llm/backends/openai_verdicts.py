"""Which verdict the OpenAI family's codes, types and HTTP statuses stand for. Data only.

Looked up in this order: the error's ``code``, its ``type``, the HTTP status, then the generic types.
A type such as ``invalid_request_error`` says less than the status beside it (OpenAI sends it with 401
too), a type such as ``insufficient_quota`` says more.
"""

from __future__ import annotations

from airflow_batch_llm.core.verdicts import Verdict

#: Codes (lower case) that mean that the account cannot pay or may not use what it asks for.
ACCOUNT_CODES = frozenset(
    {
        "insufficient_quota",
        "insufficient_balance",
        "insufficient_credits",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_limit_reached",
        "spend_limit_reached",
        "spend_limit_exceeded",
        "monthly_spend_limit_reached",
        "payment_required",
        "account_deactivated",
        "account_suspended",
        "not_available_for_plan",
    }
)
#: Codes (lower case) that mean a wrong key, whatever the status (some servers say 400).
KEY_CODES = frozenset(
    {"invalid_api_key", "incorrect_api_key", "missing_api_key", "authentication_error", "unauthorized"}
)
#: Codes of a queue that is full: a later try of the same batch can pass.
QUEUE_FULL_CODES = frozenset({"token_limit_exceeded"})

BY_CODE: dict[str, Verdict] = {
    **dict.fromkeys(ACCOUNT_CODES | KEY_CODES, Verdict.ACCOUNT),
    "permission_error": Verdict.ACCOUNT,
    "permission_denied": Verdict.ACCOUNT,
    "batch_expired": Verdict.EXPIRED,
    "batch_cancelled": Verdict.CANCELLED,
    "batch_canceled": Verdict.CANCELLED,
    "request_timeout": Verdict.TIMEOUT,
    "request_timed_out": Verdict.TIMEOUT,
    "timeout": Verdict.TIMEOUT,
    "timeout_error": Verdict.TIMEOUT,
    "gateway_timeout": Verdict.TIMEOUT,
    "rate_limit_exceeded": Verdict.RATE_LIMITED,
    "rate_limit_error": Verdict.RATE_LIMITED,
    "too_many_requests": Verdict.RATE_LIMITED,
    "token_limit_exceeded": Verdict.RATE_LIMITED,
    "resource_exhausted": Verdict.RATE_LIMITED,
    "requests": Verdict.RATE_LIMITED,  # OpenAI's error type of a request-rate limit
    "tokens": Verdict.RATE_LIMITED,  # … and of a token-rate limit
    "server_error": Verdict.SERVER_ERROR,
    "internal_error": Verdict.SERVER_ERROR,
    "internal_server_error": Verdict.SERVER_ERROR,
    "internalservererror": Verdict.SERVER_ERROR,
    "api_error": Verdict.SERVER_ERROR,
    "engine_error": Verdict.SERVER_ERROR,
    "overloaded": Verdict.SERVER_ERROR,
    "overloaded_error": Verdict.SERVER_ERROR,
    "service_unavailable": Verdict.SERVER_ERROR,
    "serviceunavailableerror": Verdict.SERVER_ERROR,
    "bad_gateway": Verdict.SERVER_ERROR,
    "batch_failed": Verdict.SERVER_ERROR,  # gateways: the row was never answered
    "runner_lost": Verdict.SERVER_ERROR,
    "context_length_exceeded": Verdict.TOO_LARGE,
    "string_above_max_length": Verdict.TOO_LARGE,
    "request_too_large": Verdict.TOO_LARGE,
    "content_filter": Verdict.FILTERED,
    "content_policy_violation": Verdict.FILTERED,
    "responsibleaipolicyviolation": Verdict.FILTERED,
    "moderation_blocked": Verdict.FILTERED,
    # The request names a model that this key does not have. Sent again it fails again, so the row dies
    # and can be re-driven with another model. Not ``account``: a wrong ``escalate_to`` would halt a job
    # whose own model is fine.
    "model_not_found": Verdict.BAD_REQUEST,
    "invalid_value": Verdict.BAD_REQUEST,
    "parse_error": Verdict.BAD_REQUEST,
    "streaming_unsupported": Verdict.BAD_REQUEST,
}

BY_STATUS: dict[int, Verdict] = {
    401: Verdict.ACCOUNT,
    402: Verdict.ACCOUNT,
    403: Verdict.ACCOUNT,
    408: Verdict.TIMEOUT,
    409: Verdict.SERVER_ERROR,  # a conflict or lock of theirs; trying again may help
    413: Verdict.TOO_LARGE,
    425: Verdict.SERVER_ERROR,
    429: Verdict.RATE_LIMITED,
    499: Verdict.SERVER_ERROR,  # their gateway hung up on the model server
    504: Verdict.TIMEOUT,
    524: Verdict.TIMEOUT,
    529: Verdict.SERVER_ERROR,
}

#: Types that only say which side was at fault; asked last.
BY_GENERIC_TYPE: dict[str, Verdict] = {
    "invalid_request_error": Verdict.BAD_REQUEST,
    "badrequesterror": Verdict.BAD_REQUEST,
    "notfounderror": Verdict.BAD_REQUEST,
    "not_found_error": Verdict.BAD_REQUEST,
    "unprocessableentityerror": Verdict.BAD_REQUEST,
    "validation_error": Verdict.BAD_REQUEST,
}

#: Finish reasons of a chat choice. One that is not here leaves the answer as it is (``ok``) and stays
#: visible in ``Row.finish_reason``.
BY_FINISH_REASON: dict[str, Verdict] = {
    "length": Verdict.TRUNCATED,
    "max_tokens": Verdict.TRUNCATED,
    "model_length": Verdict.TRUNCATED,
    "content_filter": Verdict.FILTERED,
    "safety": Verdict.FILTERED,
    "error": Verdict.SERVER_ERROR,
    "abort": Verdict.SERVER_ERROR,  # vLLM: the engine gave the request up
}


def verdict_of_error(code: str, type_: str, status: int | None) -> Verdict:
    """Return the verdict of a failed row. ``code`` and ``type_`` may be empty, in any case.

    :param status: HTTP status of the row; 2xx and None say nothing about the error.
    """
    lowered_code, lowered_type = code.lower(), type_.lower()
    for word in (lowered_code, lowered_type):
        if word in BY_CODE:
            return BY_CODE[word]
    if status is not None and status >= 400:
        if status in BY_STATUS:
            return BY_STATUS[status]
        return Verdict.BAD_REQUEST if status < 500 else Verdict.SERVER_ERROR
    for word in (lowered_code, lowered_type):
        if word in BY_GENERIC_TYPE:
            return BY_GENERIC_TYPE[word]
    return Verdict.UNKNOWN
