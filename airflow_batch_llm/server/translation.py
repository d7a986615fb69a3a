"""What protocols share that are translated: OpenAI's chat bodies made, OpenAI-shaped replies read.

All that answers (the simulated model, an upstream, the local model) understands OpenAI's chat. A protocol's
line format puts its requests together from these pieces and makes its rows of an :class:`Answer` or a
:class:`Failure`, so that equal questions get equal answers over each protocol.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_batch_llm.server.replies import error_reply
from airflow_batch_llm.server.wire import Reply

CHAT = "/v1/chat/completions"

_encoder = msgspec.json.Encoder()
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class BadRequest(Exception):
    """A request that the protocol itself refuses: nobody is asked.

    :param param: the place in the request; None where it is none in particular.
    """

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param

    def reply(self, status: int = 400) -> Reply:
        """Return what :attr:`Request.refused` says to it."""
        return error_reply(status, str(self), code=self.code, param=self.param)


# -- requests --------------------------------------------------------------------------------------
def text_part(text: str) -> dict[str, Any]:
    """Return a part of a message: words."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """Return a part of a message: an image, at an address or as a data URL."""
    return {"type": "image_url", "image_url": {"url": url}}


def file_part(url: str, filename: str = "") -> dict[str, Any]:
    """Return a part of a message: a document, at an address or as a data URL."""
    return {"type": "file", "file": {"filename": filename or "document", "file_data": url}}


def data_url(mime_type: str, data: str) -> str:
    """Return the data URL of bytes in base64."""
    return f"data:{mime_type};base64,{data}"


def tool_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a call that the assistant made. :param arguments: the JSON value."""
    text = _encoder.encode(arguments).decode("utf-8")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def message(
    role: str,
    parts: Sequence[dict[str, Any]],
    *,
    calls: Sequence[dict[str, Any]] = (),
    call_id: str | None = None,
) -> dict[str, Any]:
    """Return a message. One text alone is written as a string, which every server reads.

    :param calls: of the assistant.
    :param call_id: the call that a ``tool`` message answers.
    """
    plain = len(parts) == 1 and parts[0]["type"] == "text"
    made: dict[str, Any] = {"role": role, "content": parts[0]["text"] if plain else list(parts) or None}
    if calls:
        made["tool_calls"] = list(calls)
    if call_id is not None:
        made["tool_call_id"] = call_id
    return made


def function_tool(
    name: str, description: str | None, parameters: Any, *, strict: bool = False
) -> dict[str, Any]:
    """Return a tool. :param parameters: JSON schema, None where there is none."""
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def named_tool(name: str) -> dict[str, Any]:
    """Return the ``tool_choice`` of one tool. The others are ``none``, ``auto`` and ``required``."""
    return {"type": "function", "function": {"name": name}}


def json_format(schema: Any) -> dict[str, Any]:
    """Return the ``response_format`` of a JSON schema; any JSON object where it is None."""
    if schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def chat_body(model: str, messages: Sequence[dict[str, Any]], **settings: Any) -> bytes:
    """Return the body of a chat. Settings (``tools``, ``tool_choice``, ``response_format``, ``max_tokens``,
    ``stop``, …) that are None or empty lists are left out."""
    given = {name: value for name, value in settings.items() if value is not None and value != []}
    return _encoder.encode({"model": model, "messages": list(messages), **given})


# -- replies ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. ``arguments`` is the JSON value, the text itself where it is not JSON."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """A good reply.

    :param digest: what the answer's own id may be made of: the same for the same answer.
    :param finish: ``stop``, ``length``, ``tool_calls``, ``content_filter``; None where none was given.
    :param stopped_by: the stop sequence that ended it, where the reply says so.
    :param refusal: the words of a refusal.
    :param thinking: what was thought before, where the reply shows it.
    :param input_tokens: with ``cached_tokens`` in them; ``output_tokens`` with ``reasoning_tokens``.
    """

    digest: str
    created: int
    model: str
    text: str | None
    calls: tuple[Call, ...]
    finish: str | None
    stopped_by: str | None
    refusal: str | None
    thinking: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A reply that is no answer. ``status`` 0: nothing came back; 200: an error in place of an answer."""

    status: int
    message: str
    kind: str | None = None
    code: str | None = None
    param: str | None = None


def read_chat(reply: Reply) -> Answer | Failure:
    """Read the reply to a chat."""
    if not reply.status:
        return Failure(0, "The request timed out before an answer was there.", code="request_timeout")
    value = _any.decode(reply.body)
    body = value if isinstance(value, dict) else {}
    choices = body.get("choices")
    if reply.status != 200 or not isinstance(choices, list) or not choices:
        return read_failure(reply.status, body)
    return _answer(body, choices[0], reply)


def read_failure(status: int, body: dict[str, Any]) -> Failure:
    """Read an error body: OpenAI's, or vLLM's older one without ``error`` around it."""
    error = body.get("error", body)
    found = error if isinstance(error, dict) else {"message": error}
    return Failure(
        status,
        _text_of(found.get("message")) or "The request failed.",
        _text_of(found.get("type")),
        _text_of(found.get("code")),
        _text_of(found.get("param")),
    )


def _answer(body: dict[str, Any], choice: dict[str, Any], reply: Reply) -> Answer:
    said = choice.get("message") or {}
    usage = body.get("usage") or {}
    return Answer(
        digest=str(body.get("id", "")).rpartition("-")[2],
        created=int(body.get("created") or 0),
        model=str(body.get("model", "")),
        text=said.get("content"),
        calls=tuple(_call(call) for call in said.get("tool_calls") or ()),
        finish=choice.get("finish_reason"),
        stopped_by=_text_of(choice.get("stop_reason")),
        refusal=said.get("refusal"),
        thinking=said.get("reasoning_content") or said.get("reasoning"),
        input_tokens=reply.input_tokens,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=reply.output_tokens,
        reasoning_tokens=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
    )


def _call(call: dict[str, Any]) -> Call:
    function = call.get("function") or {}
    arguments = function.get("arguments") or "{}"
    # The text stays where it was cut off by the output limit, or spoiled by a scenario.
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        arguments = _any.decode(arguments)
    return Call(str(call.get("id", "")), str(function.get("name", "")), arguments)


def _text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
