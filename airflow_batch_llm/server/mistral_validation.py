"""Mistral checks a file when it is uploaded: every line, and every fault is told.

What a batch will be made of it is not known then, so that a body with ``messages`` is checked as a chat and
any other by its members alone. Ids may be missing or used twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.server.mistral_bodies import MEMBERS
from airflow_batch_llm.server.settings import ServerLimits

#: Faults that are told at most.
MOST = 100
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 1.5),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
_COUNTS = {"max_tokens": 0, "min_tokens": 0, "random_seed": 0, "n": 1}
_FORMATS = ("text", "json_object", "json_schema")
_CHAT = MEMBERS["/v1/chat/completions"]
_OTHERS = frozenset[str]().union(*MEMBERS.values())

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class LineFault:
    """One thing wrong with a line. ``line`` counts from 1."""

    line: int
    message: str

    def shown(self) -> dict[str, Any]:
        """Return it as the refusal shows it."""
        return {"message": self.message, "line_number": self.line}


def check_upload(path: Path, limits: ServerLimits) -> list[LineFault]:
    """Return what is wrong with the lines of a file, at most :data:`MOST` things."""
    faults: list[LineFault] = []
    number = 0
    with path.open("rb") as file:
        while len(faults) < MOST and (line := file.readline(limits.max_line_bytes + 1)):
            number += 1
            if len(line) > limits.max_line_bytes:
                return [*faults, LineFault(number, "The line is too long.")]
            fault = check_line(line.removesuffix(b"\n"))
            if fault is not None:
                faults.append(LineFault(number, fault))
    return faults if number else [LineFault(1, "The file is empty.")]


def check_line(line: bytes) -> str | None:
    """Return what is wrong with a line (without its 0x0A), if anything is."""
    try:
        value = _any.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "Invalid JSON"
    if not isinstance(value, dict):
        return "Input should be a valid dictionary"
    if not isinstance(value.get("custom_id"), str | None):
        return "custom_id: Input should be a valid string"
    body = value.get("body")
    if not isinstance(body, dict):
        return "body: Field required" if body is None else "body: Input should be a valid dictionary"
    return next(_faults(body), None)


def _faults(body: dict[str, Any]) -> Iterator[str]:
    is_chat = "messages" in body
    unknown = sorted(body.keys() - (_CHAT if is_chat else _OTHERS))
    if unknown:
        yield f"body.{unknown[0]}: Extra inputs are not permitted"
    if not isinstance(body.get("model"), str | None):
        yield "body.model: Input should be a valid string"
    if is_chat:
        yield from _chat_faults(body)
    elif "input" not in body:
        yield "body.messages: Field required"
    elif not isinstance(body["input"], str | list):
        yield "body.input: Input should be a valid string or list"


def _chat_faults(body: dict[str, Any]) -> Iterator[str]:
    yield from _message_faults(body["messages"])
    for name, (least, most) in _RANGES.items():
        value = body.get(name)
        if value is not None and not (_is_number(value) and least <= value <= most):
            yield f"body.{name}: Input should be a number from {least} to {most}"
    for name, fewest in _COUNTS.items():
        value = body.get(name)
        if value is not None and not (type(value) is int and value >= fewest):
            yield f"body.{name}: Input should be an integer of at least {fewest}"
    if body.get("stream"):
        yield "body.stream: Streaming is not supported in a batch"
    yield from _format_faults(body.get("response_format"))
    yield from _tool_faults(body.get("tools"), body.get("tool_choice"))


def _message_faults(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "body.messages: Input should be a list with at least one message"
        return
    for place, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            yield f"body.messages.{place}.role: Input should be one of {', '.join(sorted(_ROLES))}"
        elif not isinstance(message.get("content"), str | list | None):
            yield f"body.messages.{place}.content: Input should be a valid string or list"


def _format_faults(wanted: Any) -> Iterator[str]:
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind not in _FORMATS:
        yield f"body.response_format.type: Input should be one of {', '.join(_FORMATS)}"
    elif kind == "json_schema":
        schema = wanted.get("json_schema")
        if (
            not isinstance(schema, dict)
            or not isinstance(schema.get("schema"), dict)
            or not schema.get("name")
        ):
            yield "body.response_format.json_schema: Field required"


def _tool_faults(tools: Any, choice: Any) -> Iterator[str]:
    if not isinstance(tools, list | None):
        yield "body.tools: Input should be a valid list"
        return
    functions = [tool.get("function") for tool in tools or () if isinstance(tool, dict)]
    names = {function.get("name") for function in functions if isinstance(function, dict)}
    if isinstance(choice, dict):
        function = choice.get("function")
        if not isinstance(function, dict) or function.get("name") not in names:
            yield "body.tool_choice: The function is not among the tools"
    elif choice not in (None, "auto", "none", "any", "required"):
        yield "body.tool_choice: Input should be auto, none, any, required or a function"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
