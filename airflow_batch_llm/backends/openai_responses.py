"""Chat messages and tools in the form of the responses endpoint, so that one prompt serves both.

System messages at the beginning become ``instructions``, other messages input items. Texts and whatever
else is a JSON value of its own are moved as the bytes they are. What has no place there is refused.

Reference: developers.openai.com, API reference "Responses", guide "Migrate to the Responses API".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from airflow_batch_llm.core import jsonl
from airflow_batch_llm.exceptions import Refused

T = TypeVar("T")

_NULL = msgspec.Raw(b"null")
_INSTRUCTING = ("system", "developer")
_ROLES = (*_INSTRUCTING, "user", "assistant", "tool")


class _Called(msgspec.Struct):
    name: msgspec.Raw
    arguments: msgspec.Raw = msgspec.Raw(b'""')
    input: msgspec.Raw = msgspec.Raw(b'""')


class _Call(msgspec.Struct):
    id: msgspec.Raw
    function: _Called | None = None
    custom: _Called | None = None


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: msgspec.Raw = _NULL
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: msgspec.Raw = _NULL
    phase: msgspec.Raw = _NULL


_messages_of = msgspec.json.Decoder(list[_Message])
_parts_of = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_object_of = msgspec.json.Decoder(dict[str, msgspec.Raw])


def translated(members: Mapping[str, msgspec.Raw], *, instructed: bool) -> dict[str, bytes]:
    """Return a body's members with messages, tools and the choice of one in the form of this endpoint.

    :param instructed: the batch gives ``instructions`` itself: system messages then stay messages.
    :raises Refused: something has no place there; ``reason`` is the member's name.
    """
    own = {name: bytes(value) for name, value in members.items()}
    raw = own.pop("messages", None)
    if raw is not None:
        if "input" in own:
            raise Refused("give 'messages' or 'input', not both", reason="messages")
        instructions, items = _input_of(raw, instructed=instructed or "instructions" in own)
        if instructions is not None:
            own["instructions"] = instructions
        own["input"] = jsonl.dumps(items)
    if "tools" in own:
        own["tools"] = jsonl.dumps(tools_form(jsonl.loads(own["tools"])))
    if "tool_choice" in own:
        own["tool_choice"] = jsonl.dumps(tool_choice_form(jsonl.loads(own["tool_choice"])))
    return own


def translated_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared parameters with tools and the choice of one in the form of this endpoint."""
    made = dict(params)
    if "tools" in made:
        made["tools"] = tools_form(made["tools"])
    if "tool_choice" in made:
        made["tool_choice"] = tool_choice_form(made["tool_choice"])
    return made


# -- messages --------------------------------------------------------------------------------------
def _input_of(raw: bytes, *, instructed: bool) -> tuple[bytes | None, list[Any]]:
    messages = _decoded(_messages_of, raw, "messages")
    leading = 0
    while not instructed and leading < len(messages) and messages[leading].role in _INSTRUCTING:
        leading += 1
    if leading and leading == len(messages):
        leading = 0  # an input without any item is none
    items: list[Any] = []
    for message in messages[leading:]:
        items += _items_of(message)
    return _instructions(messages[:leading]), items


def _instructions(messages: Sequence[_Message]) -> bytes | None:
    if not messages:
        return None
    if len(messages) == 1 and _is_text(messages[0].content):
        return bytes(messages[0].content)
    return jsonl.dumps("\n\n".join(_joined_text(message.content) for message in messages))


def _joined_text(content: msgspec.Raw) -> str:
    """Return the words of a system message, which may only be words."""
    value = jsonl.loads(bytes(content))
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise Refused("a system message may hold text only", reason="messages")
    return "".join(str(text) for text in texts)


def _items_of(message: _Message) -> Iterable[dict[str, Any]]:
    """Return the input items of one message: itself, then the calls that an assistant made in it."""
    if message.role not in _ROLES:
        raise Refused("a message has a role that the responses endpoint lacks", reason="role")
    if message.role == "tool":
        output = message.content if _is_text(message.content) else _parts(message.content, "input_text")
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": output}]
    items = []
    content = _content(message)
    if content is not None:
        item = {"type": "message", "role": message.role, "content": content}
        items.append(item if bytes(message.phase) == b"null" else item | {"phase": message.phase})
    return items + [_call_item(call) for call in message.tool_calls or ()]


def _content(message: _Message) -> msgspec.Raw | str | list[Any] | None:
    if message.refusal:
        return [{"type": "refusal", "refusal": message.refusal}]
    if message.tool_calls and bytes(message.content) in (b"null", b'""'):
        return None
    if _is_text(message.content):
        return message.content
    if bytes(message.content) == b"null":
        raise Refused("a message has no content", reason="content")
    parts = _parts(message.content, "output_text" if message.role == "assistant" else "input_text")
    if parts and all(part["type"] == "output_text" for part in parts):
        # Words of the assistant alone: as parts they would want an id, which an answer has and this lacks.
        return "".join(jsonl.loads(bytes(part["text"])) for part in parts)
    return parts


def _parts(content: msgspec.Raw, text_kind: str) -> list[dict[str, Any]]:
    return [_part(part, text_kind) for part in _decoded(_parts_of, bytes(content), "content")]


def _part(part: dict[str, msgspec.Raw], text_kind: str) -> dict[str, Any]:
    kind = _word(part.get("type"))
    rest = {name: value for name, value in part.items() if name not in ("type", kind)}
    if kind == "text":
        if not _is_text(part.get("text", _NULL)):
            raise Refused("a message has a part of text without text", reason="content")
        return {"type": text_kind, "text": part["text"], **rest}
    if kind == "image_url":
        image = part.get("image_url", _NULL)
        shown = {"url": image} if _is_text(image) else _decoded(_object_of, bytes(image), "image_url")
        detail = shown.get("detail", "auto")
        return {"type": "input_image", "image_url": shown.get("url", _NULL), "detail": detail, **rest}
    if kind == "file":
        file = _decoded(_object_of, bytes(part.get("file", _NULL)), "file")
        return {"type": "input_file", **file, **rest}
    if kind.startswith(("input_", "output_")) and kind != "input_audio" or kind == "refusal":
        return dict(part)  # this endpoint's own form
    raise Refused("a message has a part, audio say, that the responses endpoint lacks", reason="content")


def _call_item(call: _Call) -> dict[str, Any]:
    if call.function is not None:
        kind, called = "function_call", {"arguments": call.function.arguments}
        name = call.function.name
    elif call.custom is not None:
        kind, called = "custom_tool_call", {"input": call.custom.input}
        name = call.custom.name
    else:
        raise Refused("a tool call names neither a function nor a custom tool", reason="tool_calls")
    return {"type": kind, "call_id": call.id, "name": name, **called}


def _is_text(value: msgspec.Raw) -> bool:
    return bytes(value)[:1] == b'"'


def _word(value: msgspec.Raw | None) -> str:
    found = jsonl.loads(bytes(value)) if value is not None else ""
    return found if isinstance(found, str) else ""


def _decoded(decoder: msgspec.json.Decoder[T], raw: bytes, member: str) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError as e:
        # Names and places, never a value: "Object contains unknown field `name` - at `$[0]`".
        raise Refused(f"{member!r} cannot be sent to the responses endpoint: {e}", reason=member) from e


# -- tools -----------------------------------------------------------------------------------------
def tools_form(tools: Any) -> Any:
    """Return chat tools in this endpoint's form; those that are in it already stay as they are.

    A chat tool is not strict unless it says so, one of this endpoint is: the difference is written out.
    """
    return [_tool_form(tool) for tool in tools] if isinstance(tools, (list, tuple)) else tools


def _tool_form(tool: Any) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    function, custom = tool.get("function"), tool.get("custom")
    if isinstance(function, Mapping):
        open_form = {"parameters": {"type": "object", "properties": {}}, "strict": False}
        return {"type": "function", **open_form, **function}
    if isinstance(custom, Mapping):
        return {"type": "custom", **custom, **_format_form(custom.get("format"))}
    return tool


def _format_form(wanted: Any) -> dict[str, Any]:
    if isinstance(wanted, Mapping) and isinstance(wanted.get("grammar"), Mapping):
        return {"format": {"type": "grammar", **wanted["grammar"]}}
    return {}


def tool_choice_form(choice: Any) -> Any:
    """Return a chat choice of a tool in this endpoint's form."""
    if not isinstance(choice, Mapping):
        return choice
    kind = choice.get("type")
    inner = choice.get(kind) if isinstance(kind, str) else None
    if not isinstance(inner, Mapping):
        return choice
    if kind == "allowed_tools":
        return {"type": kind, **inner, "tools": [tool_choice_form(tool) for tool in inner.get("tools", ())]}
    return {"type": kind, **inner}
