"""OpenAI-shaped replies as Gemini's responses and errors. Zeros are left out, as protocol buffers do."""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_batch_llm.server.simulated import CONTEXT_TOKENS
from airflow_batch_llm.server.translation import Answer, Call, Failure, read_failure
from airflow_batch_llm.server.wire import Reply

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

_FINISH = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
#: HTTP status -> google.rpc code; others: below 500 INVALID_ARGUMENT, else INTERNAL.
_CODES = {
    0: 4,  # DEADLINE_EXCEEDED
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    408: 4,
    409: 10,  # ABORTED
    429: 8,  # RESOURCE_EXHAUSTED
    503: 14,  # UNAVAILABLE
    504: 4,
}
_INVALID_ARGUMENT = 3
_INTERNAL = 13
#: As the API words it; there is no code for it.
_TOO_LONG = (
    f"The input token count ({CONTEXT_TOKENS + 1}) exceeds the maximum number of tokens allowed"
    f" ({CONTEXT_TOKENS})."
)


def error_of(failure: Failure) -> dict[str, Any]:
    """Return the google.rpc.Status of a row that failed."""
    if failure.status == 200:
        code = _INTERNAL
    else:
        code = _CODES.get(failure.status, _INTERNAL if failure.status >= 500 else _INVALID_ARGUMENT)
    if failure.code == "context_length_exceeded":
        return {"code": code, "message": _TOO_LONG}
    place = f" ({failure.param})" if failure.param else ""
    return {"code": code, "message": failure.message + place}


def response_of(answer: Answer, *, thoughts: bool) -> dict[str, Any]:
    """Return the GenerateContentResponse of an answer.

    A refusal is a prompt that was blocked: there is no other word for it.
    """
    made: dict[str, Any] = {}
    if answer.refusal is not None:
        made["promptFeedback"] = {"blockReason": "PROHIBITED_CONTENT"}
    else:
        made["candidates"] = [_candidate(answer, thoughts)]
    return {
        **made,
        "usageMetadata": _usage(answer),
        "modelVersion": answer.model,
        "responseId": answer.digest,
    }


def embedding_of(reply: Reply) -> dict[str, Any] | Failure:
    """Return the EmbedContentResponse of an embeddings reply, or why there is none."""
    if not reply.status:
        return Failure(0, "The request timed out before an answer was there.", code="request_timeout")
    value = _any.decode(reply.body)
    body = value if isinstance(value, dict) else {}
    data = body.get("data")
    if reply.status != 200 or not isinstance(data, list):
        return read_failure(reply.status, body)
    values = data[0].get("embedding") if data else None
    return {
        "embedding": {"values": values} if values else {},
        "tokenCount": reply.input_tokens,
        "usageMetadata": {"promptTokenCount": reply.input_tokens},
    }


def _candidate(answer: Answer, thoughts: bool) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if thoughts and answer.thinking:
        parts.append({"text": answer.thinking, "thought": True})
    if answer.text:
        parts.append({"text": answer.text})
    finish = _FINISH.get(answer.finish or "", "OTHER")
    if any(not isinstance(call.arguments, dict) for call in answer.calls) and finish == "STOP":
        finish = "MALFORMED_FUNCTION_CALL"
    elif finish == "STOP":
        parts += [_call(call) for call in answer.calls]
    made: dict[str, Any] = {"content": {"role": "model"}, "finishReason": finish, "index": 0}
    if parts and finish != "SAFETY":
        made["content"]["parts"] = parts
    if finish == "SAFETY":
        made["safetyRatings"] = [
            {"category": "HARM_CATEGORY_DANGEROUS_CONTENT", "probability": "HIGH", "blocked": True}
        ]
    return made


def _call(call: Call) -> dict[str, Any]:
    """Return the part of a call. Most models give their calls no id."""
    return {"functionCall": {"name": call.name, "args": call.arguments}}


def _usage(answer: Answer) -> dict[str, Any]:
    counts = {
        "promptTokenCount": answer.input_tokens,
        "cachedContentTokenCount": answer.cached_tokens,
        "candidatesTokenCount": answer.output_tokens - answer.reasoning_tokens,
        "thoughtsTokenCount": answer.reasoning_tokens,
        "totalTokenCount": answer.input_tokens + answer.output_tokens,
    }
    made: dict[str, Any] = {name: count for name, count in counts.items() if count}
    made["promptTokensDetails"] = [{"modality": "TEXT", "tokenCount": answer.input_tokens}]
    return made
