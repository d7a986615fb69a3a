"""Requests written as upload lines of the Gemini API: ``{"key": wire id, "request": {…}}``.

What all rows of a batch share is translated once. Whatever the request has no place for is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from airflow_batch_llm.backends.conversation import Chat, chat_reader
from airflow_batch_llm.backends.gemini_contents import contents_of, text_parts, tool_config_of, tools_of
from airflow_batch_llm.backends.gemini_settings import answer_form, embedding_settings, generation_config
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, not_offered
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.exceptions import Refused

ENDPOINTS = frozenset({CHAT, EMBEDDINGS})
#: What a body of the provider's own form asks with.
_MAIN = {CHAT: "contents", EMBEDDINGS: "content"}

_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_values_of = msgspec.json.Decoder(dict[str, Any]).decode


def line_encoder(template: RequestTemplate) -> LineEncoder:
    """Return the encoder of a batch's lines. Its lines end in 0x0A and hold no other.

    :raises Refused: the template asks for what the protocol lacks; ``reason`` is its name.
    """
    if template.endpoint not in ENDPOINTS:
        raise Refused(not_offered("Gemini", template.endpoint, ENDPOINTS), reason="endpoint")
    if template.native:
        return _native_encoder(_MAIN[template.endpoint])
    if template.endpoint == EMBEDDINGS:
        return _framed(_embeddings_reader(template))
    return _framed(_chat_translator(template))


def old_model(model: str) -> bool:
    """Say whether a model is of the generations before Gemini 3, which sign no calls."""
    return model.rpartition("/")[2].startswith(("gemini-1", "gemini-2"))


def _framed(request_of: Callable[[bytes], dict[str, Any]]) -> LineEncoder:
    def encode(wire_id: str, body: bytes) -> bytes:
        request = request_of(body)
        try:
            return jsonl.dumps({"key": wire_id, "request": request}) + b"\n"
        except ValueError as e:
            raise Refused("the request cannot be written as JSON", reason="not_json") from e

    return encode


# -- chats -----------------------------------------------------------------------------------------
#: A body that brings nothing but a message: what becomes of it is the template's doing.
_PLAIN = b'{"messages":[{"role":"user","content":"."}]}'


def _chat_translator(template: RequestTemplate) -> Callable[[bytes], dict[str, Any]]:
    read = chat_reader(template)
    form = answer_form(template.output_schema)
    signed = not old_model(template.model)

    def asked_of(chat: Chat) -> dict[str, Any]:
        """Return all of a request but what is said."""
        made: dict[str, Any] = {}
        if chat.tools:
            made["tools"] = tools_of(chat.tools)
            made["toolConfig"] = tool_config_of(chat.tool_choice, chat.tools)
        elif chat.tool_choice is not None and chat.tool_choice.mode in ("required", "named"):
            raise Refused("'tool_choice' asks for a tool, and there is none", reason="tool_choice")
        config = generation_config(chat.settings, chat.max_tokens, form, template.model)
        return made | ({"generationConfig": config} if config else {})

    plain = read(_PLAIN)
    shared = {name: msgspec.Raw(jsonl.dumps(value)) for name, value in asked_of(plain).items()}

    def request_of(body: bytes) -> dict[str, Any]:
        chat = read(body)
        # Instructions stand first: what requests have in common at their beginning is cached by itself.
        said: dict[str, Any] = {}
        if chat.system:
            said["systemInstruction"] = {"parts": text_parts(chat.system)}
        said["contents"] = contents_of(chat.turns, signed=signed)
        return said | (shared if chat.settings is plain.settings else asked_of(chat))

    return request_of


# -- embeddings ------------------------------------------------------------------------------------
def _embeddings_reader(template: RequestTemplate) -> Callable[[bytes], dict[str, Any]]:
    if template.output_schema is not None:
        raise Refused("vectors follow no schema: remove the output schema", reason="output_schema")
    shared = embedding_settings(template.params)

    def request_of(body: bytes) -> dict[str, Any]:
        try:
            own = _values_of(body)
        except (ValueError, RecursionError) as e:
            raise Refused("the request body is not a JSON object", reason="not_an_object") from e
        if "input" not in own:
            raise Refused("the request body has no 'input'", reason="missing_input")
        text = _one_text(own.pop("input"))
        return {"content": {"parts": [{"text": text}]}, **shared, **embedding_settings(own)}

    return request_of


def _one_text(given: Any) -> str:
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if isinstance(given, str):
        return given
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        raise Refused("Gemini batches take one text a request: give each a row of its own", reason="input")
    raise Refused("'input' is not a text: Gemini batches take no tokens", reason="input")


# -- bodies of the provider's own form -------------------------------------------------------------
def _native_encoder(main: str) -> LineEncoder:
    def encode(wire_id: str, body: bytes) -> bytes:
        try:
            members = _members_of(body)
        except (ValueError, RecursionError) as e:
            raise Refused("the request body is not a JSON object", reason="not_an_object") from e
        if main not in members:
            raise Refused(f"the request body has no {main!r}", reason=f"missing_{main}")
        members.pop("model", None)  # the batch has one, in its address
        return jsonl.dumps({"key": wire_id, "request": _one_line(members)}) + b"\n"

    return encode


def _one_line(members: Mapping[str, msgspec.Raw]) -> Mapping[str, Any]:
    """Return the members without the line ends of a pretty-printed body."""
    return {
        name: jsonl.loads(bytes(value)) if b"\n" in bytes(value) or b"\r" in bytes(value) else value
        for name, value in members.items()
    }
