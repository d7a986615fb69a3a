"""Mistral's bodies: requests made into OpenAI's, OpenAI-shaped replies made into Mistral's.

They are near: names differ, an image may be a plain string, and nothing that is not known may stand in a
request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from airflow_batch_llm.server.translation import BadRequest, file_part, image_part, read_failure, tool_call
from airflow_batch_llm.server.wire import Reply

_CHAT = "/v1/chat/completions"
_EMBEDDINGS = "/v1/embeddings"
_MODERATIONS = "/v1/moderations"
#: The endpoints that a batch can be for here, each with what may stand in a body.
MEMBERS = {
    _CHAT: frozenset(
        {
            "model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed",
            "metadata", "response_format", "tools", "tool_choice", "presence_penalty", "frequency_penalty",
            "min_tokens", "repetition_penalty", "top_k", "logprobs", "top_logprobs", "prompt_logprobs",
            "top_prompt_logprobs", "n", "prediction", "parallel_tool_calls", "reasoning_effort",
            "prompt_mode", "guardrails", "prompt_cache_key", "service_tier", "safe_prompt",
        }
    ),
    _EMBEDDINGS: frozenset(
        {"model", "input", "metadata", "output_dimension", "output_dtype", "encoding_format"}
    ),
    _MODERATIONS: frozenset({"model", "input", "metadata"}),
}  # fmt: skip
#: Of a chat: what OpenAI's has no place for, and what is called otherwise there.
_UNKNOWN_TO_OPENAI = (
    "safe_prompt",
    "prompt_mode",
    "guardrails",
    "prompt_cache_key",
    "service_tier",
    "metadata",
)
_CHAT_NAMES = {"random_seed": "seed"}
_EMBEDDINGS_NAMES = {"output_dimension": "dimensions"}
#: Mistral's categories, each with those of OpenAI that it is made of.
_CATEGORIES = {
    "sexual": ("sexual", "sexual/minors"),
    "hate_and_discrimination": ("hate", "harassment"),
    "violence_and_threats": ("violence", "violence/graphic", "harassment/threatening", "hate/threatening"),
    "dangerous_and_criminal_content": ("illicit", "illicit/violent"),
    "selfharm": ("self-harm", "self-harm/intent", "self-harm/instructions"),
    "health": (),
    "financial": (),
    "law": (),
    "pii": (),
}

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


# -- requests --------------------------------------------------------------------------------------
def openai_body(endpoint: str, model: str, raw: bytes) -> bytes:
    """Return a request's body in OpenAI's form.

    :param model: of the batch; it stands above what the body names.
    :raises BadRequest: the endpoint knows no such member.
    """
    body = _any.decode(raw)
    unknown = sorted(body.keys() - MEMBERS[endpoint])
    if unknown:
        raise BadRequest("Extra inputs are not permitted", code="extra_forbidden", param=unknown[0])
    made = _MAKERS[endpoint]({name: value for name, value in body.items() if value is not None})
    return _encoder.encode({**made, "model": model})


def _chat_request(body: dict[str, Any]) -> dict[str, Any]:
    made = {_CHAT_NAMES.get(k, k): v for k, v in body.items() if k not in _UNKNOWN_TO_OPENAI}
    if isinstance(body.get("messages"), list):
        made["messages"] = [_message(message) for message in body["messages"]]
    if body.get("tool_choice") == "any":
        made["tool_choice"] = "required"
    return made


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    made = {name: value for name, value in message.items() if name != "prefix"}
    if isinstance(message.get("content"), list):
        made["content"] = [_part(part) for part in message["content"]]
    if isinstance(message.get("tool_calls"), list):
        made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return made


def _part(part: Any) -> Any:
    """Return a part of a message. An image's address may be a plain string, a document's always is."""
    kind = part.get("type") if isinstance(part, dict) else None
    address = part.get(kind) if kind in ("image_url", "document_url") else None
    if not isinstance(address, str):
        return part
    if kind == "image_url":
        return image_part(address)
    return file_part(address, str(part.get("document_name") or ""))


def _call(call: Any) -> Any:
    """Return a call that the assistant made. Its arguments may be a text of JSON, or the value."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or isinstance(function.get("arguments"), str):
        return call
    return tool_call(str(call.get("id", "")), str(function.get("name", "")), function.get("arguments"))


def _embeddings_request(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("output_dtype", "float") != "float":
        raise BadRequest("output_dtype must be float here", code="enum", param="output_dtype")
    kept = {name: value for name, value in body.items() if name not in ("output_dtype", "metadata")}
    return {_EMBEDDINGS_NAMES.get(name, name): value for name, value in kept.items()}


def _moderations_request(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "metadata"}


_MAKERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    _CHAT: _chat_request,
    _EMBEDDINGS: _embeddings_request,
    _MODERATIONS: _moderations_request,
}


# -- replies ---------------------------------------------------------------------------------------
def mistral_body(endpoint: str, reply: Reply) -> dict[str, Any]:
    """Return the body of a row: an answer, or an error."""
    body = _any.decode(reply.body)
    found = body if isinstance(body, dict) else {}
    if reply.status != 200 or "error" in found:
        return _error(reply.status, found)
    return _SHOWN[endpoint](found)


def _error(status: int, body: dict[str, Any]) -> dict[str, Any]:
    failure = read_failure(status, body)
    return {
        "object": "error",
        "message": failure.message,
        "type": failure.kind or "invalid_request_error",
        "param": failure.param,
        "code": failure.code,
    }


def _chat_answer(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": _id_of(body),
        "object": "chat.completion",
        "created": body.get("created"),
        "model": body.get("model"),
        "choices": [_choice(choice) for choice in body.get("choices") or ()],
        "usage": _usage(body),
    }


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    said = choice.get("message") or {}
    calls = [{**call, "index": place} for place, call in enumerate(said.get("tool_calls") or ())]
    message = {
        "role": "assistant",
        "content": said.get("content"),
        "tool_calls": calls or None,
        "prefix": False,
    }
    if calls and message["content"] is None:
        message["content"] = ""
    if said.get("refusal"):
        message["refusal"] = said["refusal"]
    finish = choice.get("finish_reason")
    shown = {"index": choice.get("index", 0), "message": message, "finish_reason": finish}
    if calls and finish == "stop":
        shown["finish_reason"] = "tool_calls"
    return shown


def _embeddings_answer(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": _id_of(body),
        "object": "list",
        "model": body.get("model"),
        "data": body.get("data") or [],
        "usage": _usage(body),
    }


def _moderations_answer(body: dict[str, Any]) -> dict[str, Any]:
    results = [_result(result) for result in body.get("results") or ()]
    return {"id": _id_of(body), "model": body.get("model"), "results": results}


def _result(result: dict[str, Any]) -> dict[str, Any]:
    flags, scores = result.get("categories") or {}, result.get("category_scores") or {}
    return {
        "categories": {
            name: any(bool(flags.get(part)) for part in parts) for name, parts in _CATEGORIES.items()
        },
        "category_scores": {
            name: max((scores.get(part) or 0.0 for part in parts), default=0.0)
            for name, parts in _CATEGORIES.items()
        },
    }


_SHOWN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    _CHAT: _chat_answer,
    _EMBEDDINGS: _embeddings_answer,
    _MODERATIONS: _moderations_answer,
}


def _id_of(body: dict[str, Any]) -> str:
    """Return an id of 32 letters and digits, the same for the same answer."""
    return str(body.get("id") or "").rpartition("-")[2].rjust(32, "0")


def _usage(body: dict[str, Any]) -> dict[str, Any]:
    usage = body.get("usage") or {}
    taken, given = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "prompt_tokens": taken,
        "completion_tokens": given,
        "total_tokens": taken + given,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
