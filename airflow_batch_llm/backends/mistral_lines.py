"""Requests written as Mistral's lines: ``{"custom_id", "body"}``, with the model at the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_batch_llm.backends.conversation import Chat, chat_reader
from airflow_batch_llm.backends.mistral_chat import check_input, messages, parameters, tool_choice, tools
from airflow_batch_llm.backends.openai_lines import named_schema, one_line
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, MODERATIONS, not_offered
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.exceptions import Refused

ENDPOINTS = frozenset({CHAT, EMBEDDINGS, MODERATIONS})

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOTHING = (b"false", b"null")
#: Parameters of a chat that are no parameters of the body: the model is the batch's.
_MODEL = "model"


def line_encoder(template: RequestTemplate) -> LineEncoder:
    """Return the encoder of a batch's lines. They end in 0x0A and hold no other.

    :raises Refused: the template asks for what Mistral lacks; ``reason`` is its name.
    :raises OutputSchemaError: its output schema is none of an object.
    """
    if template.endpoint not in ENDPOINTS:
        raise Refused(not_offered("Mistral", template.endpoint, ENDPOINTS), reason="endpoint")
    if template.native:
        return _native_encoder(template)
    if template.endpoint == CHAT:
        return _ChatEncoder(template).encode
    return _InputEncoder(template).encode


def _native_encoder(template: RequestTemplate) -> LineEncoder:
    def encode(wire_id: str, body: bytes) -> bytes:
        try:
            members = _members_of(body)
        except (ValueError, RecursionError) as e:
            raise Refused("the request body is not a JSON object", reason="not_an_object") from e
        if bytes(members.get("stream", b"null")) not in _NOTHING:
            raise Refused("a batch cannot stream its answers: remove 'stream' from the body", reason="stream")
        if not template.model and bytes(members.get(_MODEL, b'""')) in (b'""', b"null"):
            raise Refused("neither the batch nor the request body names a model", reason="missing_model")
        return _line(wire_id, one_line(body))

    return encode


class _ChatEncoder:
    """Translates caller-level chats. What all bodies share is translated once."""

    def __init__(self, template: RequestTemplate) -> None:
        self._template = template
        self._read = chat_reader(template)
        self._format: dict[str, Any] | None = None
        if template.output_schema is not None:
            made = named_schema(template.schema_name, template.output_schema)
            self._format = {"type": "json_schema", "json_schema": made}
        shared = self._read(b'{"messages":[{"role":"user","content":"-"}]}')
        self._shared_settings, self._shared = shared.settings, self._around(shared)

    def encode(self, wire_id: str, body: bytes) -> bytes:
        """Return the line of a request."""
        chat = self._read(body)
        around = self._shared if chat.settings is self._shared_settings else self._around(chat)
        return _line(wire_id, _dumps({**around, "messages": messages(chat)}))

    def _around(self, chat: Chat) -> dict[str, Any]:
        """Return what stands beside the messages."""
        given = dict(chat.settings)
        _check_model(given.pop(_MODEL, None), self._template)
        around = parameters(CHAT, given)
        if self._format is not None:
            if "response_format" in around:
                raise Refused(
                    "give an output schema or 'response_format', not both", reason="response_format"
                )
            around["response_format"] = self._format
        if chat.max_tokens is not None:
            around["max_tokens"] = chat.max_tokens
        if chat.tools:
            around["tools"] = tools(chat.tools)
        choice = tool_choice(chat.tool_choice, chat.tools) if chat.tool_choice is not None else None
        if choice is not None:
            around["tool_choice"] = choice
        return around


class _InputEncoder:
    """Translates bodies whose content is one ``input``: embeddings and moderations."""

    def __init__(self, template: RequestTemplate) -> None:
        self._template = template
        if template.output_schema is not None:
            raise Refused(
                f"answers of the endpoint {template.endpoint} follow no schema: remove the output schema",
                reason="output_schema",
            )
        self._shared = self._parameters(template.params)

    def encode(self, wire_id: str, body: bytes) -> bytes:
        """Return the line of a request."""
        try:
            own = _decode(body)
        except (ValueError, RecursionError) as e:
            raise Refused("the request body is not a JSON object", reason="not_an_object") from e
        sent = {**self._shared, **self._parameters(own)}
        if "input" not in sent:
            raise Refused("the request body has no 'input'", reason="missing_input")
        check_input(sent["input"])
        return _line(wire_id, _dumps(sent))

    def _parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in given.items() if value is not None}
        if given.get("stream") is False:
            del given["stream"]
        _check_model(given.pop(_MODEL, None), self._template)
        return parameters(self._template.endpoint, given)


def _check_model(model: Any, template: RequestTemplate) -> None:
    if model is not None and model != template.model:
        raise Refused("a batch of Mistral's has one model: remove 'model' from the body", reason=_MODEL)


def _dumps(body: Mapping[str, Any]) -> bytes:
    try:
        return jsonl.dumps(body)
    except ValueError as e:
        raise Refused("the request cannot be written as JSON", reason="not_json") from e


def _line(wire_id: str, body: bytes) -> bytes:
    return b'{"custom_id":"' + wire_id.encode() + b'","body":' + body + b"}\n"
