"""Which verdict a row of the OpenAI family has: one table, read by the decoder and by the docs. Data only.

Looked up in this order: the error's ``code``, its ``type``, the HTTP status, then the types that only say
which side was at fault. A type such as ``invalid_request_error`` says less than the status beside it (OpenAI
sends it with 401 too), a type such as ``insufficient_quota`` says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from airflow_batch_llm.core.endings import ACCOUNT_CODES
from airflow_batch_llm.core.verdicts import Verdict

#: Codes (lower case) that mean a wrong key, whatever the status (some servers say 400).
KEY_CODES = frozenset(
    {
        "invalid_api_key",
        "incorrect_api_key",
        "missing_api_key",
        "authentication_error",
        "unauthorized",
        "api_key_invalid",
        "unauthenticated",
    }
)
#: Codes of a queue that is full: a later try of the same batch can pass.
QUEUE_FULL_CODES = frozenset({"token_limit_exceeded"})
#: Codes of a provider that takes no further file (Azure: 500 uploads without an expiry, 10,000 with one).
FILES_FULL_CODES = frozenset({"quotaexceeded"})


class Part(StrEnum):
    """Which part of a row a rule is about."""

    CODE = "error code or type"
    STATUS = "HTTP status"
    TYPE = "error type, where neither code nor status decides"
    FINISH = "finish reason, or status of a response"
    SHAPE = "shape"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table.

    :param words: codes and types in lower case; statuses, or their class (``4xx``); finish reasons; for a
        shape our own code of it.
    :param why: what the row means, for people.
    :param who: who sends it, where it is not common.
    """

    part: Part
    words: tuple[str | int, ...]
    verdict: Verdict
    why: str
    who: str = ""


RULES: tuple[Rule, ...] = (
    # -- codes and types ---------------------------------------------------------------------------
    Rule(
        Part.CODE,
        tuple(sorted(ACCOUNT_CODES)),
        Verdict.ACCOUNT,
        "the account cannot pay or may not use what it asks for",
    ),
    Rule(Part.CODE, tuple(sorted(KEY_CODES)), Verdict.ACCOUNT, "the key is wrong"),
    Rule(Part.CODE, ("permission_error", "permission_denied"), Verdict.ACCOUNT, "the key may not do this"),
    Rule(
        Part.CODE,
        ("batch_expired",),
        Verdict.EXPIRED,
        "the window closed before the row's turn",
        "OpenAI, LiteLLM, llm-d, Morph",
    ),
    Rule(
        Part.CODE,
        ("batch_cancelled", "batch_canceled"),
        Verdict.CANCELLED,
        "the batch was cancelled before the row's turn",
        "OpenAI, llm-d, Morph",
    ),
    Rule(
        Part.CODE,
        ("batch_failed",),
        Verdict.CANCELLED,
        "the batch failed as a whole before the row's turn",
        "llm-d, Morph",
    ),
    Rule(
        Part.CODE,
        ("runner_lost",),
        Verdict.CANCELLED,
        "the replica that ran the batch was restarted: no fault of the row",
        "LiteLLM",
    ),
    Rule(
        Part.CODE,
        (
            "request_timeout",
            "request_timed_out",
            "timeout",
            "timeout_error",
            "gateway_timeout",
            "vector_store_timeout",
        ),
        Verdict.TIMEOUT,
        "not answered in time",
    ),
    Rule(
        Part.CODE,
        ("rate_limit_exceeded", "rate_limit_error", "ratelimiterror", "too_many_requests", "slow_down"),
        Verdict.RATE_LIMITED,
        "a rate limit inside the batch",
    ),
    Rule(
        Part.CODE,
        ("requests", "tokens"),
        Verdict.RATE_LIMITED,
        "the types of a request-rate and of a token-rate limit",
        "OpenAI",
    ),
    Rule(
        Part.CODE,
        ("ramp_limit_exceeded",),
        Verdict.RATE_LIMITED,
        "use grows faster than the account may",
        "Anthropic",
    ),
    Rule(Part.CODE, ("token_limit_exceeded", "resource_exhausted"), Verdict.RATE_LIMITED, "a quota in use"),
    Rule(
        Part.CODE,
        ("server_error", "internal_error", "internal_server_error", "internalservererror", "api_error"),
        Verdict.SERVER_ERROR,
        "their own fault",
    ),
    Rule(
        Part.CODE,
        ("engine_error", "enginedeaderror", "enginegenerateerror"),
        Verdict.SERVER_ERROR,
        "the model server's engine stopped",
        "vLLM",
    ),
    Rule(
        Part.CODE,
        (
            "overloaded",
            "overloaded_error",
            "engine_overloaded",
            "service_unavailable",
            "serviceunavailableerror",
            "bad_gateway",
        ),
        Verdict.SERVER_ERROR,
        "too busy, or down for a moment",
    ),
    Rule(
        Part.CODE,
        ("context_length_exceeded", "string_above_max_length", "array_above_max_length", "request_too_large"),
        Verdict.TOO_LARGE,
        "longer than the model or the provider takes",
    ),
    Rule(
        Part.CODE,
        ("image_too_large", "image_file_too_large"),
        Verdict.TOO_LARGE,
        "a picture is larger than the model takes",
    ),
    Rule(
        Part.CODE,
        (
            "content_filter",
            "content_policy_violation",
            "contentpolicyviolationerror",
            "moderation_blocked",
            "invalid_prompt",
        ),
        Verdict.FILTERED,
        "the prompt or the answer met the content filter",
    ),
    Rule(
        Part.CODE,
        ("image_content_policy_violation", "bio_policy", "misalignment_policy_violation"),
        Verdict.FILTERED,
        "the prompt, its picture or the answer met a policy",
        "OpenAI, responses",
    ),
    Rule(
        Part.CODE,
        ("responsibleaipolicyviolation",),
        Verdict.FILTERED,
        "the prompt or the answer met the content filter",
        "Azure",
    ),
    Rule(
        Part.CODE,
        ("model_not_found",),
        Verdict.BAD_REQUEST,
        # Not ``account``: a wrong ``escalate_to`` would halt a job whose own model is fine.
        "the key does not have the model that the request names; re-drive it with another",
    ),
    Rule(
        Part.CODE,
        ("deploymentnotfound", "operationnotsupported"),
        Verdict.BAD_REQUEST,
        "the deployment that the request names is not there, or cannot do this",
        "Azure",
    ),
    Rule(Part.CODE, ("toomanyrequests", "ratelimitreached"), Verdict.RATE_LIMITED, "a rate limit", "Azure"),
    Rule(Part.CODE, ("serviceunavailable",), Verdict.SERVER_ERROR, "down for a moment", "Azure"),
    Rule(
        Part.CODE,
        (
            "invalid_value",
            "invalid_type",
            "unsupported_value",
            "unsupported_parameter",
            "unknown_parameter",
            "missing_required_parameter",
            "streaming_unsupported",
        ),
        Verdict.BAD_REQUEST,
        "a parameter is wrong",
    ),
    Rule(
        Part.CODE,
        (
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "invalid_image_url",
            "invalid_image_mode",
            "image_too_small",
            "image_parse_error",
            "image_file_not_found",
            "unsupported_image_media_type",
            "empty_image_file",
        ),
        Verdict.BAD_REQUEST,
        "a picture cannot be read",
        "OpenAI, responses",
    ),
    Rule(
        Part.CODE,
        ("data_residency_mismatch",),
        Verdict.BAD_REQUEST,
        "the request names what is kept in another region",
        "OpenAI, responses",
    ),
    Rule(
        Part.CODE,
        ("failed_to_download_image",),
        Verdict.SERVER_ERROR,
        "a picture's host did not give it; later it may",
        "OpenAI, responses",
    ),
    Rule(
        Part.CODE,
        ("image_dimensions_too_large",),
        Verdict.TOO_LARGE,
        "a picture is larger than the model takes",
        "Anthropic",
    ),
    Rule(Part.CODE, ("parse_error",), Verdict.BAD_REQUEST, "the line is no request", "Morph"),
    Rule(
        Part.CODE,
        ("invalid_argument", "out_of_range", "unimplemented"),
        Verdict.BAD_REQUEST,
        "the request is wrong",
        "Google",
    ),
    Rule(
        Part.CODE,
        ("internal", "unavailable", "aborted", "data_loss", "failed_precondition"),
        Verdict.SERVER_ERROR,
        "their own fault, or something of theirs that is not ready",
        "Google",
    ),
    Rule(Part.CODE, ("deadline_exceeded",), Verdict.TIMEOUT, "not answered in time", "Google"),
    Rule(Part.CODE, ("cancelled",), Verdict.CANCELLED, "cancelled before the row's turn", "Google"),
    Rule(Part.CODE, ("batch_client_error",), Verdict.BAD_REQUEST, "the request was refused", "Together"),
    # -- HTTP statuses -----------------------------------------------------------------------------
    Rule(Part.STATUS, (401, 402, 403), Verdict.ACCOUNT, "no key, no credit, no permission"),
    Rule(Part.STATUS, (408, 504, 524), Verdict.TIMEOUT, "not answered in time"),
    Rule(Part.STATUS, (413,), Verdict.TOO_LARGE, "too many bytes"),
    Rule(Part.STATUS, (429,), Verdict.RATE_LIMITED, "a rate limit inside the batch"),
    Rule(Part.STATUS, (409, 425), Verdict.SERVER_ERROR, "a conflict or lock of theirs; later it may pass"),
    Rule(Part.STATUS, (499,), Verdict.SERVER_ERROR, "their gateway hung up on the model server"),
    Rule(Part.STATUS, ("4xx",), Verdict.BAD_REQUEST, "any other: the request is at fault"),
    Rule(Part.STATUS, ("5xx",), Verdict.SERVER_ERROR, "any other: the provider is at fault"),
    # -- types that say little ---------------------------------------------------------------------
    Rule(
        Part.TYPE,
        ("invalid_request_error", "validation_error", "not_found_error"),
        Verdict.BAD_REQUEST,
        "the request is at fault",
    ),
    Rule(
        Part.TYPE,
        ("conflict_error",),
        Verdict.SERVER_ERROR,
        "a conflict of theirs; later it may pass",
        "Anthropic",
    ),
    Rule(
        Part.TYPE,
        ("badrequesterror", "notfounderror", "unprocessableentityerror"),
        Verdict.BAD_REQUEST,
        "the request is at fault",
        "vLLM, LiteLLM",
    ),
    Rule(
        Part.TYPE,
        ("request_failed",),
        Verdict.SERVER_ERROR,
        "the gateway had no answer from its model server",
        "OGX",
    ),
    Rule(
        Part.TYPE, ("not_found", "already_exists"), Verdict.BAD_REQUEST, "the request is at fault", "Google"
    ),
    Rule(Part.TYPE, ("unknown",), Verdict.SERVER_ERROR, "their own fault", "Google"),
    # -- finish reasons ----------------------------------------------------------------------------
    Rule(Part.FINISH, ("stop", "tool_calls", "function_call"), Verdict.OK, "a whole answer"),
    Rule(Part.FINISH, ("eos", "eos_token"), Verdict.OK, "a whole answer", "Together"),
    Rule(Part.FINISH, ("completed",), Verdict.OK, "a whole answer", "responses"),
    Rule(Part.FINISH, ("length",), Verdict.TRUNCATED, "the output limit was reached"),
    Rule(Part.FINISH, ("max_output_tokens",), Verdict.TRUNCATED, "the output limit was reached", "responses"),
    Rule(Part.FINISH, ("incomplete",), Verdict.TRUNCATED, "ended early, for no reason listed", "responses"),
    Rule(Part.FINISH, ("max_tokens",), Verdict.TRUNCATED, "the output limit was reached", "gateways"),
    Rule(
        Part.FINISH, ("model_length",), Verdict.TRUNCATED, "the model's context is full", "Mistral, gateways"
    ),
    Rule(Part.FINISH, ("content_filter", "safety"), Verdict.FILTERED, "the filter cut the answer off"),
    Rule(
        Part.FINISH,
        (
            "blocklist",
            "prohibited_content",
            "spii",
            "recitation",
            "language",
            "escalation",
            "model_armor",
            "image_safety",
            "image_prohibited_content",
            "image_recitation",
        ),
        Verdict.FILTERED,
        "the filter cut the answer off",
        "Gemini",
    ),
    Rule(
        Part.FINISH,
        ("malformed_function_call", "unexpected_tool_call", "malformed_response"),
        Verdict.INVALID_OUTPUT,
        "the model wrote a tool call, or an answer, that nobody can read",
        "Gemini",
    ),
    Rule(Part.FINISH, ("continuation",), Verdict.TRUNCATED, "the output limit was reached", "Gemini"),
    Rule(
        Part.FINISH,
        ("other", "no_image", "image_other", "too_many_tool_calls"),
        Verdict.SERVER_ERROR,
        "the answer broke off",
        "Gemini",
    ),
    Rule(
        Part.FINISH,
        ("missing_thought_signature",),
        Verdict.BAD_REQUEST,
        "the history lacks what the model signed",
        "Gemini",
    ),
    Rule(
        Part.FINISH,
        ("pup_limited_disabled",),
        Verdict.ACCOUNT,
        "the account may not go on using the service",
        "Gemini",
    ),
    Rule(Part.FINISH, ("refusal",), Verdict.REFUSED, "the model declined", "gateways to Anthropic"),
    Rule(Part.FINISH, ("error",), Verdict.SERVER_ERROR, "the answer broke off"),
    Rule(Part.FINISH, ("abort",), Verdict.SERVER_ERROR, "the engine gave the request up", "vLLM, SGLang"),
    Rule(Part.FINISH, ("failed", "cancelled"), Verdict.SERVER_ERROR, "no answer was made", "responses"),
    Rule(
        Part.FINISH,
        ("queued", "in_progress"),
        Verdict.UNKNOWN,
        "made in the background: the answer is not in the row, and it is paid for",
        "responses",
    ),
    # -- shapes ------------------------------------------------------------------------------------
    Rule(Part.SHAPE, ("refusal",), Verdict.REFUSED, "status 200, and the message holds a refusal"),
    Rule(Part.SHAPE, ("no_content",), Verdict.EMPTY, "status 200, and neither text nor tool call"),
    Rule(
        Part.SHAPE,
        ("bad_tool_call",),
        Verdict.INVALID_OUTPUT,
        "a tool call without a function's name, or whose arguments are no JSON object",
    ),
    Rule(
        Part.SHAPE, ("no_vector",), Verdict.EMPTY, "status 200, and no vector or an empty one", "embeddings"
    ),
    Rule(
        Part.SHAPE,
        ("bad_vector",),
        Verdict.SERVER_ERROR,
        "a vector with what is no finite number, or one of several is missing: the model server's fault",
        "embeddings",
    ),
    Rule(
        Part.SHAPE,
        ("no_result",),
        Verdict.EMPTY,
        "status 200, and the list of results is empty",
        "moderations",
    ),
    Rule(Part.SHAPE, ("no_body",), Verdict.EMPTY, "status 200 without a body, or with an empty one"),
    Rule(Part.SHAPE, ("no_choice",), Verdict.EMPTY, "status 200, and the list of choices is empty"),
    Rule(
        Part.SHAPE,
        ("prompt_blocked",),
        Verdict.FILTERED,
        "no answer, and the prompt's feedback says why: its block reason stands as the code",
        "Gemini",
    ),
    Rule(Part.SHAPE, ("no_choices",), Verdict.UNKNOWN, "status 200, and the body is of another kind"),
    Rule(
        Part.SHAPE,
        ("error_text",),
        Verdict.SERVER_ERROR,
        "an error that is a text, without code, type and status: the model server never answered",
        "vLLM run-batch",
    ),
    Rule(Part.SHAPE, ("no_status",), Verdict.UNKNOWN, "a response without status, body and error"),
    Rule(Part.SHAPE, ("no_response",), Verdict.UNKNOWN, "neither response nor error"),
    Rule(
        Part.SHAPE,
        ("unknown_error",),
        Verdict.UNKNOWN,
        "an error with a code or type that is not listed, and no status that decides; its own code is kept",
    ),
    Rule(
        Part.SHAPE,
        ("other_protocol",),
        Verdict.UNKNOWN,
        "a row of Bedrock, named by `recordId`: it may be an answer, but not one of this protocol",
        "LiteLLM",
    ),
    Rule(Part.SHAPE, ("not_json",), Verdict.UNKNOWN, "no JSON; joins to no request, which is then `missing`"),
    Rule(Part.SHAPE, ("not_an_object",), Verdict.UNKNOWN, "JSON, but no object; joins to no request either"),
    Rule(Part.SHAPE, ("undecodable",), Verdict.UNKNOWN, "an object whose values surprise the decoder"),
)


def _words(part: Part) -> Iterator[tuple[str | int, Verdict]]:
    for rule in RULES:
        if rule.part is part:
            yield from ((word, rule.verdict) for word in rule.words)


BY_CODE: dict[str, Verdict] = {str(word): verdict for word, verdict in _words(Part.CODE)}
BY_STATUS: dict[str | int, Verdict] = dict(_words(Part.STATUS))
BY_GENERIC_TYPE: dict[str, Verdict] = {str(word): verdict for word, verdict in _words(Part.TYPE)}
#: One that is not here leaves the answer as it is (``ok``) and stays visible in ``Row.finish_reason``.
BY_FINISH_REASON: dict[str, Verdict] = {str(word): verdict for word, verdict in _words(Part.FINISH)}
BY_SHAPE: dict[str, Verdict] = {str(word): verdict for word, verdict in _words(Part.SHAPE)}


def verdict_of_error(code: str, type_: str, status: int | None) -> Verdict:
    """Return the verdict of a failed row. ``code`` and ``type_`` may be empty, in any case.

    :param status: HTTP status of the row; 2xx and None say nothing about the error.
    """
    lowered_code, lowered_type = code.lower(), type_.lower()
    for word in (lowered_code, lowered_type):
        if word in BY_CODE:
            return BY_CODE[word]
    if status is not None and status >= 400:
        return BY_STATUS.get(status) or BY_STATUS["4xx" if status < 500 else "5xx"]
    for word in (lowered_code, lowered_type):
        if word in BY_GENERIC_TYPE:
            return BY_GENERIC_TYPE[word]
    return BY_SHAPE["unknown_error" if lowered_code or lowered_type else "error_text"]
