"""Requests written as items of Anthropic's create call: ``{"custom_id", "params"}``, one a line."""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_batch_llm.backends.anthropic_messages import (
    message_list,
    system_blocks,
    tool_choice,
    tool_list,
)
from airflow_batch_llm.backends.anthropic_params import BEFORE_SAMPLING_WENT, SAMPLING, message_params
from airflow_batch_llm.backends.anthropic_schema import answer_format
from airflow_batch_llm.backends.conversation import MAX_TOKENS, Chat, chat_reader
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import CHAT, not_offered
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.exceptions import OutputSchemaError, Refused

_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOTHING = (b"false", b"null")
#: Parameters of a chat that are read beside the others.
_ELSEWHERE = frozenset({"model", "parallel_tool_calls"})


def line_encoder(template: RequestTemplate, *, version: str) -> LineEncoder:
    """Return the encoder of a batch's lines. They end in 0x0A and hold no other.

    :param version: of the API, which decides about sampling parameters.
    :raises Refused: the template asks for what the protocol lacks; ``reason`` is its name.
    :raises OutputSchemaError: its output schema cannot be expressed.
    """
    if template.endpoint != CHAT:
        raise Refused(not_offered("Anthropic", template.endpoint, [CHAT]), reason="endpoint")
    if template.native:
        return _native_encoder(version)
    return _Encoder(template, version).encode


def _native_encoder(version: str) -> LineEncoder:
    """Bodies that are the provider's own ``params``: only the frame is added."""
    refused = () if version == BEFORE_SAMPLING_WENT else SAMPLING

    def encode(wire_id: str, body: bytes) -> bytes:
        try:
            members = _members_of(body)
        except (ValueError, RecursionError) as e:
            raise Refused("the request body is not a JSON object", reason="not_an_object") from e
        if bytes(members.get("stream", b"null")) not in _NOTHING:
            raise Refused("a batch cannot stream its answers: remove 'stream' from the body", reason="stream")
        for name in ("model", "max_tokens", "messages"):
            if bytes(members.get(name, b"null")) in (b"null", b'""'):
                raise Refused(f"the request body has no {name!r}", reason=f"missing_{name}")
        for name in refused:
            if name in members:
                message_params({name: jsonl.loads(bytes(members[name]))}, version=version)
        return _framed(wire_id, body)

    return encode


def _framed(wire_id: str, params: bytes) -> bytes:
    params = params.strip()
    if b"\n" in params or b"\r" in params:
        params = jsonl.dumps(jsonl.loads(params))
    return b'{"custom_id":"' + wire_id.encode() + b'","params":' + params + b"}\n"


class _Encoder:
    """Translates caller-level chats. What a body shares with the template is translated once."""

    def __init__(self, template: RequestTemplate, version: str) -> None:
        self._template = template
        self._version = version
        self._read = chat_reader(template)
        if all(template.params.get(name) is None for name in MAX_TOKENS):
            raise _no_limit()
        self._format: dict[str, Any] | None = None
        if template.output_schema is not None:
            self._format = answer_format(template.output_schema, template.schema_name)
        shared = self._read(b'{"messages":[{"role":"user","content":"-"}]}')
        self._shared, self._settings, self._choice = shared, self._params(shared), self._choice_of(shared)
        self._tools = tool_list(shared.tools, cached=False)

    def encode(self, wire_id: str, body: bytes) -> bytes:
        """Return the line of a request."""
        chat = self._read(body)
        try:
            encoded = jsonl.dumps(self._translated(chat))
        except OutputSchemaError as e:
            # The body's own schema: its row dies alone.
            raise Refused(e.args[0], reason="response_format") from e
        except ValueError as e:
            raise Refused("the request cannot be written as JSON", reason="not_json") from e
        return b'{"custom_id":"' + wire_id.encode() + b'","params":' + encoded + b"}\n"

    def _translated(self, chat: Chat) -> dict[str, Any]:
        if chat.max_tokens is None:
            raise _no_limit()
        shared = self._template.shared_messages if self._template.cache_prefix else 0
        known = chat.settings is self._shared.settings
        params = {
            "model": chat.settings.get("model", self._template.model),
            "max_tokens": chat.max_tokens,
            **(self._settings if known else self._params(chat)),
        }
        system = system_blocks(chat.system, shared=shared)
        messages = message_list(chat.turns, shared=shared - len(chat.system))
        if chat.tools:
            # The cache's order is tools, system, messages: tools are marked where nothing shared follows.
            alone = self._template.cache_prefix and not shared
            same = chat.tools is self._shared.tools and not alone
            params["tools"] = self._tools if same else tool_list(chat.tools, cached=alone)
        choice = self._choice if known and chat.tools is self._shared.tools else self._choice_of(chat)
        if choice is not None:
            params["tool_choice"] = choice
        if system:
            params["system"] = system
        params["messages"] = messages
        return params

    def _params(self, chat: Chat) -> dict[str, Any]:
        settings = {name: value for name, value in chat.settings.items() if name not in _ELSEWHERE}
        params = message_params(settings, version=self._version)
        if self._format is not None:
            config = params.setdefault("output_config", {})
            if "format" in config:
                raise Refused(
                    "give an output schema or 'response_format', not both", reason="response_format"
                )
            config["format"] = self._format
        return params

    @staticmethod
    def _choice_of(chat: Chat) -> dict[str, Any] | None:
        parallel = chat.settings.get("parallel_tool_calls")
        return tool_choice(chat.tool_choice, chat.tools, parallel)


def _no_limit() -> Refused:
    return Refused(
        "Anthropic wants an output limit with each request: give the task 'max_tokens' (tokens)",
        reason="max_tokens",
    )
