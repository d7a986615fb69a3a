"""A chat as Gemini's request has it: contents of parts, tools as function declarations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_batch_llm.backends.conversation import Media, Text, Tool, ToolCall, ToolChoice, Turn
from airflow_batch_llm.backends.gemini_schema import to_gemini_schema
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.exceptions import Refused

#: What stands in place of the signature that a model puts on its own call, in a history that lacks it
#: (ai.google.dev, "Thought signatures"). Gemini 3 refuses a call without; older models need none.
_NO_SIGNATURE = "skip_thought_signature_validator"
#: An upload of the provider's own is the only address whose reading is certain in a batch.
_UPLOADED = re.compile(r"https://generativelanguage\.googleapis\.com/[a-z0-9]+/files/[A-Za-z0-9_-]+")
_MODES = {"none": "NONE", "auto": "AUTO", "required": "ANY", "named": "ANY"}


def text_parts(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Return a part for each text."""
    return [{"text": text} for text in texts]


def contents_of(turns: Sequence[Turn], *, signed: bool) -> list[dict[str, Any]]:
    """Return the turns as contents; turns of one role that follow each other are one content.

    :param signed: whether the model wants a signature on calls of the history.
    :raises Refused: a part that a batch cannot hold; ``reason`` is its name.
    """
    contents: list[dict[str, Any]] = []
    last = ""
    for turn in turns:
        parts = _parts_of(turn, signed)
        if turn.role == last:
            contents[-1]["parts"].extend(parts)
        else:
            contents.append({"role": "model" if turn.role == "assistant" else "user", "parts": parts})
        last = turn.role
    return contents


def tools_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the tools as one list of function declarations."""
    return [{"functionDeclarations": [_declaration(tool) for tool in tools]}] if tools else []


def tool_config_of(choice: ToolChoice | None, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return which tools the model may, or has to, call.

    A call that is asked for outright fits its schema in any case; one that is left to the model does where a
    tool is ``strict``, and then all of them.
    """
    mode = choice.mode if choice is not None else "auto"
    strict = mode == "auto" and any(tool.strict for tool in tools)
    config: dict[str, Any] = {"mode": "VALIDATED" if strict else _MODES[mode]}
    if choice is not None and choice.mode == "named":
        config["allowedFunctionNames"] = [choice.name]
    return {"functionCallingConfig": config}


def _parts_of(turn: Turn, signed: bool) -> list[dict[str, Any]]:
    if turn.role == "tool":
        return [_tool_result(turn)]
    parts = [_part(part) for part in turn.parts]
    for number, call in enumerate(turn.calls):
        part: dict[str, Any] = {"functionCall": _call(call)}
        if signed and not number:  # of several calls at once the first bears it
            part["thoughtSignature"] = _NO_SIGNATURE
        parts.append(part)
    return parts


def _part(part: Text | Media) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"text": part.text}
    if part.detail:
        raise Refused("Gemini batches take no 'detail' of an image: leave it out", reason="detail")
    if part.url:
        if _UPLOADED.fullmatch(part.url):
            return {"fileData": {"fileUri": part.url}}
        raise Refused(
            f"Gemini batches do not read an {part.kind} from an address: give its bytes (a data URL; "
            "Image reads them from storage)",
            reason="content",
        )
    return {"inlineData": {"mimeType": part.mime_type, "data": part.data}}


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = jsonl.loads(call.arguments.encode()) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, Mapping):
        raise Refused("the arguments of a tool call in the history are no JSON object", reason="tool_calls")
    return {"id": call.id, "name": call.name, "args": arguments}


def _tool_result(turn: Turn) -> dict[str, Any]:
    if not turn.tool_name:
        raise Refused(
            "a tool's message answers a call that is not in the history: Gemini needs the function's name",
            reason="tool_call_id",
        )
    if not all(isinstance(part, Text) for part in turn.parts):
        raise Refused("a tool's message may hold text only", reason="content")
    said = "".join(part.text for part in turn.parts if isinstance(part, Text))
    return {"functionResponse": {"id": turn.call_id, "name": turn.tool_name, "response": {"output": said}}}


def _declaration(tool: Tool) -> dict[str, Any]:
    made: dict[str, Any] = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    parameters = tool.parameters
    if parameters and not _takes_nothing(parameters):
        schema = to_gemini_schema(parameters)
        if schema is not None:
            made["parameters"] = schema
        else:
            made["parametersJsonSchema"] = dict(parameters)
    return made


def _takes_nothing(parameters: Mapping[str, Any]) -> bool:
    """Say whether a schema is that of a function without parameters, which declares none."""
    return parameters.get("type") == "object" and not (
        parameters.get("properties") or parameters.get("additionalProperties")
    )
