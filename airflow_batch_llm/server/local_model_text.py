"""What the local model is asked, from the body of a request: one plain text, and how it may go on.

A base model has learned to continue texts, not to talk: with a chat template it gives nonsense. So a chat
becomes the text of a list of examples, the last of which is not finished yet::

    <system message>

    Input: <user message>
    Output: <assistant message>

    Input: <last user message>
    Output:

and the model writes what comes next, under a grammar where a JSON schema is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS

#: Without a grammar the model would go on with the next input.
_NEXT_INPUT = "\nInput:"


class Unanswerable(Exception):
    """The local model cannot be asked this: ``code``, ``param``. The text holds nothing of the prompt."""

    def __init__(self, message: str, *, code: str, param: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class TextAsk:
    """A text to go on with.

    :param schema: JSON schema of what follows; None: any text.
    :param max_tokens: None: up to the end of the context.
    :param sampling: temperature, seed and the like.
    """

    text: str
    schema: dict[str, Any] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _JsonSchema(msgspec.Struct):
    schema: dict[str, Any] | None = None


class _Format(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None


class _Asked(msgspec.Struct, kw_only=True):
    """What both endpoints take. Members that are not here are left aside."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    response_format: _Format | None = None


class _Chat(_Asked, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    tools: list[Any] | None = None


class _Completion(_Asked, kw_only=True):
    prompt: str


_chat = msgspec.json.Decoder(_Chat)
_completion = msgspec.json.Decoder(_Completion)


def read_ask(endpoint: str, body: bytes) -> TextAsk:
    """Return what the body asks.

    :raises Unanswerable: the endpoint or the body is not for this model.
    """
    try:
        return _READERS[endpoint](body)
    except KeyError as e:
        raise Unanswerable(
            "The local model answers chat completions and completions only.",
            code="unsupported_endpoint",
            param=None,
        ) from e
    except msgspec.ValidationError as e:
        # Types and the place, never a value: "Expected `int`, got `str` - at `$.max_tokens`".
        param = str(e).rpartition("$.")[2].rstrip("`") if "$." in str(e) else None
        raise Unanswerable(
            "A parameter is missing or has the wrong type.", code="invalid_type", param=param
        ) from e
    except msgspec.MsgspecError as e:
        # Half a surrogate pair, say, which strict JSON may escape and UTF-8 cannot carry.
        raise Unanswerable("The body cannot be read.", code="invalid_json", param=None) from e


def _read_chat(raw: bytes) -> TextAsk:
    body = _chat.decode(raw)
    if body.tools:
        raise Unanswerable("The local model calls no tools.", code="unsupported_parameter", param="tools")
    if not body.messages:
        raise Unanswerable("messages is empty.", code="empty_array", param="messages")
    most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    schema = _schema(body)
    return TextAsk(
        chat_text([(message.role, _text(message)) for message in body.messages]),
        schema,
        _positive(most),
        _stops(body, () if schema else (_NEXT_INPUT,)),
        _sampling(body),
    )


def _read_completion(raw: bytes) -> TextAsk:
    body = _completion.decode(raw)
    return TextAsk(body.prompt, _schema(body), _positive(body.max_tokens), _stops(body, ()), _sampling(body))


_READERS: dict[str, Callable[[bytes], TextAsk]] = {CHAT: _read_chat, COMPLETIONS: _read_completion}


def chat_text(messages: Sequence[tuple[str, str]]) -> str:
    """Return a conversation (role, text) as the text that the model goes on with."""
    blocks: list[str] = []
    for role, text in messages:
        if role in ("system", "developer"):
            blocks.append(f"{text}\n\n")
        elif role == "assistant":
            blocks.append(f"Output: {text}\n\n")
        else:
            blocks.append(f"Input: {text}\n")
    return "".join(blocks) + "Output:"


def _text(message: _Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    if any(part.type not in ("text", "input_text") for part in message.content):
        raise Unanswerable("The local model reads text only.", code="unsupported_content", param="messages")
    return "\n".join(part.text for part in message.content)


def _schema(body: _Asked) -> dict[str, Any] | None:
    wanted = body.response_format
    if body.n not in (None, 1):
        raise Unanswerable("The local model gives one answer.", code="unsupported_parameter", param="n")
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.type != "json_schema" or wanted.json_schema is None or wanted.json_schema.schema is None:
        raise Unanswerable(
            "response_format holds no JSON schema.", code="invalid_value", param="response_format"
        )
    return wanted.json_schema.schema


def _positive(most: int | None) -> int | None:
    if most is not None and most < 1:
        raise Unanswerable("max_tokens must be at least 1.", code="invalid_value", param="max_tokens")
    return most


def _stops(body: _Asked, own: tuple[str, ...]) -> tuple[str, ...]:
    given = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return (*given, *own)


def _sampling(body: _Asked) -> dict[str, Any]:
    """Return how tokens are chosen: the likeliest ones, and by a fixed seed, unless asked otherwise."""
    sampling: dict[str, Any] = {"temperature": body.temperature or 0.0, "seed": body.seed or 0}
    if body.top_p is not None:
        sampling["top_p"] = body.top_p
    return sampling
