"""What a caller asks in a chat, as plain values, for protocols whose bodies look otherwise than OpenAI's.

A caller-level body is ``{"messages": [...]}`` in the form of OpenAI's chat, with tools and parameters beside
it. A protocol of another form reads it here, and refuses by name what it has no place for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import Refused

#: The caller's two names of the output limit.
MAX_TOKENS = ("max_tokens", "max_completion_tokens")

_DATA_URL = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=\s]+)", re.IGNORECASE)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a document: at an address, or its bytes.

    :param kind: ``image`` or ``file``.
    :param url: http or https; "" where the bytes are given.
    :param mime_type: of the bytes, e.g. ``image/png``; "" for an address.
    :param data: the bytes in base64.
    :param name: a document's file name, "" where there is none.
    :param detail: how closely an image is looked at (``low``, ``high``, ``original``); "" as the model likes.
    """

    kind: Literal["image", "file"]
    url: str = ""
    mime_type: str = ""
    data: str = ""
    name: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made. ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message that is not an instruction.

    :param call_id: which call a ``tool`` turn answers.
    :param tool_name: the name of the function called, found by that id, else as the message gives it; "" for
        neither.
    """

    role: Literal["user", "assistant", "tool"]
    parts: tuple[Text | Media, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    tool_name: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``parameters`` is its JSON schema, None where it has none."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``none``, ``auto``, ``required``, or ``named`` with the tool's name."""

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """One request.

    :param system: the instructions at the beginning (system and developer messages), in order.
    :param max_tokens: the output limit, None where none is given.
    :param settings: every other parameter, by the name that OpenAI's chat has for it; none is None.
    """

    system: tuple[str, ...]
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    max_tokens: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def chat_reader(template: RequestTemplate) -> Callable[[bytes], Chat]:
    """Return what reads a body of the template: parameters of the body go before those of the template.

    Bodies that bring nothing but messages share the template's values: their ``settings`` are one object.

    :raises Refused: (from here or from the reader) the endpoint is another one; a message, tool or parameter
        that cannot be read; ``reason`` is its name. ``stream`` and more than one answer are refused.
    """
    if template.endpoint != CHAT:
        raise Refused(f"this reads chats, not {template.endpoint!r}", reason="endpoint")
    shared = {name: value for name, value in template.params.items() if value is not None}
    of_template = _settings(dict(shared))  # the template's own faults are told before a row is read

    def read(body: bytes) -> Chat:
        try:
            own = _decode(body)
        except (ValueError, RecursionError) as e:
            raise Refused("the request body is not a JSON object", reason="not_an_object") from e
        if "messages" not in own:
            raise Refused("the request body has no 'messages'", reason="missing_messages")
        messages = own.pop("messages")
        if not own:
            tools, choice, limit, settings = of_template
            system, turns = read_messages(messages)
            return Chat(system, turns, tools, choice, limit, settings)
        merged = dict(shared)
        for name, value in own.items():
            if value is None:
                merged.pop(name, None)
                continue
            if name in MAX_TOKENS:
                for other in MAX_TOKENS:
                    merged.pop(other, None)
            merged[name] = value
        tools, choice, limit, settings = _settings(merged)
        system, turns = read_messages(messages)
        return Chat(system, turns, tools, choice, limit, settings)

    return read


def _settings(
    merged: dict[str, Any],
) -> tuple[tuple[Tool, ...], ToolChoice | None, int | None, dict[str, Any]]:
    if merged.pop("stream", False):
        raise Refused("a batch cannot stream its answers: remove 'stream'", reason="stream")
    if merged.pop("n", 1) != 1:
        raise Refused("one answer per request is read: remove 'n'", reason="n")
    limit = None
    for name in MAX_TOKENS:
        if (given := merged.pop(name, None)) is not None:
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise Refused(f"{name!r} must be a whole number above 0", reason=name)
            limit = given
    tools = read_tools(merged.pop("tools", None) or ())
    choice = merged.pop("tool_choice", None)
    return tools, read_tool_choice(choice) if choice is not None else None, limit, merged


# -- messages --------------------------------------------------------------------------------------
#: What a message of a role may hold, beside members that say nothing (null, an empty list).
_MEMBERS = {
    "system": frozenset({"role", "content"}),
    "developer": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "refusal", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id", "name"}),
}
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def _refuse_others(value: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    """:raises Refused: a member that no other protocol has a place for; ``reason`` is its name."""
    if value.keys() <= known:
        return
    for name, member in value.items():
        if name not in known and member not in _NOTHING:
            raise Refused(f"{what} has a member {name!r}, which is read by no other protocol", reason=name)


def read_messages(messages: Any) -> tuple[tuple[str, ...], tuple[Turn, ...]]:
    """Return the instructions at the beginning and the turns after them.

    An instruction further down is refused: protocols with a place of its own for instructions have no other.

    :raises Refused: ``reason`` is ``messages``, ``role`` or ``content``.
    """
    if not isinstance(messages, list) or not messages:
        raise Refused("'messages' must be a list with at least one message", reason="messages")
    system: list[str] = []
    turns: list[Turn] = []
    names: dict[str, str] = {}
    for message in messages:
        if not isinstance(message, dict):
            raise Refused("a message is not an object", reason="messages")
        role = message.get("role")
        if isinstance(role, str) and role in _MEMBERS:
            _refuse_others(message, _MEMBERS[role], "a message")
        if role in ("system", "developer"):
            if turns:
                raise Refused("a system message stands behind other messages", reason="role")
            system.append(_words(message.get("content")))
            continue
        turn = _turn(role, message, names)
        names |= {call.id: call.name for call in turn.calls}
        turns.append(turn)
    if not turns:
        raise Refused("there is no message beside the instructions", reason="messages")
    return tuple(system), tuple(turns)


def _turn(role: Any, message: dict[str, Any], names: Mapping[str, str]) -> Turn:
    content = message.get("content")
    if role == "user":
        parts = _parts(content)
        if not parts:
            raise Refused("a message has no content", reason="content")
        return Turn("user", parts)
    if role == "assistant":
        calls = _calls(message.get("tool_calls"))
        said = content if content is not None else message.get("refusal")
        parts = _parts(said) if said is not None and said != "" else ()
        if not parts and not calls:
            raise Refused("a message has no content", reason="content")
        return Turn("assistant", parts, calls)
    if role == "tool":
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str) or not call_id:
            raise Refused("a tool's message names no call", reason="tool_call_id")
        named = message.get("name")
        name = names.get(call_id) or (named if isinstance(named, str) else "")
        return Turn("tool", _parts(content), call_id=call_id, tool_name=name)
    raise Refused("a message has a role that is none of system, user, assistant, tool", reason="role")


def _words(content: Any) -> str:
    parts = _parts(content)
    if not all(isinstance(part, Text) for part in parts):
        raise Refused("a system message may hold text only", reason="content")
    return "".join(part.text for part in parts if isinstance(part, Text))


def _parts(content: Any) -> tuple[Text | Media, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise Refused("a message's content is neither text nor a list of parts", reason="content")
    return tuple(_part(part) for part in content)


_PART = {
    "text": frozenset({"type", "text"}),
    "image_url": frozenset({"type", "image_url"}),
    "file": frozenset({"type", "file"}),
}
_IMAGE = frozenset({"url", "detail"})
_FILE = frozenset({"file_data", "filename"})


def _part(part: Any) -> Text | Media:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _PART:
        _refuse_others(part, _PART[kind], "a part of a message")
    if kind == "text" and isinstance(part.get("text"), str):
        return Text(part["text"])
    if kind == "image_url":
        image = part.get("image_url")
        image = image if isinstance(image, dict) else {"url": image}
        _refuse_others(image, _IMAGE, "an image")
        if isinstance(image.get("url"), str):
            detail = image.get("detail")
            return _media("image", image["url"], detail="" if detail in (None, "auto") else str(detail))
    if kind == "file" and isinstance(part.get("file"), dict):
        file = part["file"]
        _refuse_others(file, _FILE, "a file")
        if isinstance(file.get("file_data"), str):
            name = file.get("filename")
            return _media("file", file["file_data"], name=name if isinstance(name, str) else "")
    raise Refused(
        "a message has a part that is neither text, image_url nor a file with its data", reason="content"
    )


def _media(kind: Literal["image", "file"], url: str, *, name: str = "", detail: str = "") -> Media:
    found = _DATA_URL.fullmatch(url)
    if found:
        data = "".join(found[2].split())
        return Media(kind, mime_type=found[1].lower(), data=data, name=name, detail=detail)
    if url.startswith(("https://", "http://")):
        return Media(kind, url=url, name=name, detail=detail)
    raise Refused(f"the address of an {kind} is neither http(s) nor a base64 data URL", reason="content")


def _calls(calls: Any) -> tuple[ToolCall, ...]:
    if not isinstance(calls, list):
        if calls in _NOTHING:
            return ()
        raise Refused("'tool_calls' must be a list", reason="tool_calls")
    return tuple(map(_call, calls))


def _call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and all(
        isinstance(value, str) for value in (call.get("id"), function.get("name"), function.get("arguments"))
    ):
        return ToolCall(call["id"], function["name"], function["arguments"])
    raise Refused("a tool call names no function with arguments", reason="tool_calls")


# -- tools -----------------------------------------------------------------------------------------
def read_tools(tools: Any) -> tuple[Tool, ...]:
    """Read ``[{"type": "function", "function": {…}}]``. :raises Refused: another kind of tool."""
    if not isinstance(tools, (list, tuple)):
        raise Refused("'tools' must be a list", reason="tools")
    return tuple(_tool(tool) for tool in tools)


_FUNCTION = frozenset({"name", "description", "parameters", "strict"})


def _tool(tool: Any) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refused(
            'a tool is not {"type": "function", "function": {"name": …, "parameters": …}}', reason="tools"
        )
    _refuse_others(function, _FUNCTION, "a tool")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise Refused("a tool's parameters are not a JSON schema", reason="tools")
    return Tool(
        function["name"], str(function.get("description") or ""), parameters, bool(function.get("strict"))
    )


def read_tool_choice(choice: Any) -> ToolChoice:
    """Read OpenAI's ``tool_choice``. :raises Refused: a choice that is not known."""
    if choice == "none" or choice == "auto" or choice == "required":
        return ToolChoice(choice)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return ToolChoice("named", function["name"])
    raise Refused("'tool_choice' is neither none, auto, required nor a function", reason="tool_choice")
