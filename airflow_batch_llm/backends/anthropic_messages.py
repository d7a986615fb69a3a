"""A conversation in the form of Anthropic's Messages: system blocks, turns of content blocks, tools."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from airflow_batch_llm.backends.anthropic_schema import acceptable
from airflow_batch_llm.backends.conversation import Media, Text, Tool, ToolCall, ToolChoice, Turn
from airflow_batch_llm.exceptions import OutputSchemaError, Refused

Block = dict[str, Any]

#: Marks the end of what requests share. An hour: a batch is worked on for longer than the usual 5 minutes.
CACHE = {"type": "ephemeral", "ttl": "1h"}

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"
_object = msgspec.json.Decoder(dict[str, Any]).decode


# -- system, turns ---------------------------------------------------------------------------------
def system_blocks(system: Sequence[str], *, shared: int) -> list[Block]:
    """Return the instructions, one block a message; blank ones, which the protocol refuses, are left out.

    :param shared: how many of them all requests have; the end of these is marked.
    """
    blocks: list[Block] = [{"type": "text", "text": text} for text in system if _says_something(text)]
    same = sum(map(_says_something, system[: max(shared, 0)]))
    if same:
        blocks[same - 1]["cache_control"] = CACHE
    return blocks


def message_list(turns: Sequence[Turn], *, shared: int) -> list[Block]:
    """Return the messages.

    Turns of one side that follow each other are one message: the results of several calls must be.

    :param shared: how many turns all requests have; the end of these is marked.
    :raises Refused: a turn that is blank, or holds what its side cannot send.
    """
    messages: list[Block] = []
    for place, turn in enumerate(turns):
        role = "assistant" if turn.role == "assistant" else "user"
        blocks = _blocks(turn)
        if place == shared - 1:
            blocks[-1]["cache_control"] = CACHE
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    _check_opening(turns[-1])
    for message in messages:
        content = message["content"]
        if len(content) == 1 and content[0].keys() == {"type", "text"}:
            message["content"] = content[0]["text"]
    return messages


def _check_opening(last: Turn) -> None:
    """The words of an assistant that speak last are what the answer begins with.

    :raises Refused: they end in white space, which the protocol does not go on from.
    """
    words = last.parts[-1] if last.role == "assistant" and last.parts and not last.calls else None
    if isinstance(words, Text) and words.text != words.text.rstrip():
        raise Refused(
            "the last message is the assistant's, and the answer cannot go on from white space: take it off",
            reason="content",
        )


def _blocks(turn: Turn) -> list[Block]:
    if turn.role == "tool":
        return [_tool_result(turn)]
    if turn.role == "assistant" and not all(isinstance(part, Text) for part in turn.parts):
        raise Refused("a message of the assistant may hold text only", reason="content")
    blocks = _content(turn.parts) + [_tool_use(call) for call in turn.calls]
    if not blocks:
        raise Refused("a message is blank, which Anthropic does not take", reason="content")
    return blocks


def _tool_result(turn: Turn) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": turn.call_id}
    content = _content(turn.parts)
    if len(content) == 1 and content[0]["type"] == "text":
        block["content"] = content[0]["text"]
    elif content:
        block["content"] = content
    return block


def _tool_use(call: ToolCall) -> Block:
    try:
        arguments = _object(call.arguments.encode() if call.arguments.strip() else b"{}")
    except (ValueError, RecursionError) as e:
        raise Refused("the arguments of a tool call are no JSON object", reason="tool_calls") from e
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


# -- parts -----------------------------------------------------------------------------------------
def _content(parts: Iterable[Text | Media]) -> list[Block]:
    """Return the blocks of parts; blank texts, which the protocol refuses, are left out."""
    return [
        {"type": "text", "text": part.text} if isinstance(part, Text) else _media(part)
        for part in parts
        if not isinstance(part, Text) or _says_something(part.text)
    ]


def _says_something(text: str) -> bool:
    return bool(text) and not text.isspace()


def _media(media: Media) -> Block:
    if media.detail:
        raise Refused(
            f"an image asks for detail {media.detail!r}: Anthropic takes none; leave it out", reason="detail"
        )
    if media.kind == "image":
        return {"type": "image", "source": _image_source(media)}
    block: Block = {"type": "document", "source": _document_source(media)}
    if media.name:
        block["title"] = media.name
    return block


def _image_source(image: Media) -> Block:
    if image.url:
        return {"type": "url", "url": image.url}
    if image.mime_type not in _IMAGES:
        raise Refused(
            f"an image is {image.mime_type}: Anthropic takes JPEG, PNG, GIF and WebP", reason="content"
        )
    return {"type": "base64", "media_type": image.mime_type, "data": image.data}


def _document_source(document: Media) -> Block:
    if document.url:
        return {"type": "url", "url": document.url}
    if document.mime_type == _PDF:
        return {"type": "base64", "media_type": _PDF, "data": document.data}
    if document.mime_type.startswith("text/"):
        return {"type": "text", "media_type": "text/plain", "data": _decoded(document.data)}
    raise Refused(f"a file is {document.mime_type}: Anthropic takes PDF and text", reason="content")


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as e:
        raise Refused("a text file is not base64 of UTF-8", reason="content") from e


# -- tools -----------------------------------------------------------------------------------------
def tool_list(tools: Iterable[Tool], *, cached: bool) -> list[Block]:
    """Return the tools.

    :raises Refused: a tool's parameters are no object, or those of a strict one cannot be expressed.
    """
    listed = [_tool(tool) for tool in tools]
    if listed and cached:
        listed[-1]["cache_control"] = CACHE
    return listed


def _tool(tool: Tool) -> Block:
    schema: Mapping[str, Any] = {"properties": {}} if tool.parameters is None else tool.parameters
    if schema.get("type", "object") != "object":
        raise Refused(f"the parameters of tool {tool.name!r} are not those of an object", reason="tools")
    schema = {"type": "object", **schema}
    made: Block = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    if not tool.strict:
        return {**made, "input_schema": schema}
    try:
        strict = acceptable(schema, f"the schema of tool {tool.name!r}")
    except OutputSchemaError as e:
        raise Refused(e.args[0], reason="tools") from e
    return {**made, "input_schema": strict, "strict": True}


def tool_choice(choice: ToolChoice | None, tools: Sequence[Tool], parallel: bool | None) -> Block | None:
    """Return ``tool_choice``, None where nothing is to be said.

    :param parallel: OpenAI's ``parallel_tool_calls``; without tools there is nothing to forbid.
    :raises Refused: a tool must be called, and there is none, or none of that name.
    """
    mode = choice.mode if choice is not None else "auto"
    if not tools:
        if mode in ("required", "named"):
            raise Refused("'tool_choice' asks for a tool, and there are no tools", reason="tool_choice")
        return None
    if mode == "none":
        return {"type": "none"}
    made: Block = {"type": {"required": "any", "named": "tool"}.get(mode, mode)}
    if choice is not None and mode == "named":
        if choice.name not in {tool.name for tool in tools}:
            raise Refused("'tool_choice' names a tool that is not there", reason="tool_choice")
        made["name"] = choice.name
    if parallel is False:
        made["disable_parallel_tool_use"] = True
    return made if choice is not None or parallel is False else None
