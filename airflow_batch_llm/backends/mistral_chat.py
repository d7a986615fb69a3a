"""Chats as Mistral's bodies have them, and its other endpoints' parameters.

A parameter that Mistral does not know is a 422 for the whole file, so that everything unknown is refused here
by its name. Reference: the request models of the mistralai SDK.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_batch_llm.backends.conversation import Chat, Media, Text, Tool, ToolChoice, Turn
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, MODERATIONS
from airflow_batch_llm.exceptions import Refused

#: Parameters that are known, by endpoint; of a chat those beside messages, tools and the output limit.
PARAMETERS = {
    CHAT: frozenset(
        {
            "temperature", "top_p", "stop", "random_seed", "metadata", "response_format", "presence_penalty",
            "frequency_penalty", "min_tokens", "repetition_penalty", "top_k", "logprobs", "top_logprobs",
            "prompt_logprobs", "top_prompt_logprobs", "prediction", "parallel_tool_calls", "reasoning_effort",
            "prompt_mode", "guardrails", "prompt_cache_key", "service_tier", "safe_prompt",
        }
    ),
    EMBEDDINGS: frozenset({"input", "metadata", "output_dimension", "output_dtype", "encoding_format"}),
    MODERATIONS: frozenset({"input", "metadata"}),
}  # fmt: skip
#: What OpenAI's bodies call otherwise.
_RENAMED = {CHAT: {"seed": "random_seed"}, EMBEDDINGS: {"dimensions": "output_dimension"}, MODERATIONS: {}}
#: Values that a parameter may have, where others that OpenAI knows are refused.
_VALUES = {
    "service_tier": ("auto", "standard_only"),
    "encoding_format": ("base64", "float"),
}
_FORMATS = ("text", "json_object", "json_schema")
_DETAILS = frozenset({"", "low", "high"})
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")


def parameters(endpoint: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by Mistral's names.

    :param given: by the names of OpenAI's bodies, or Mistral's own.
    :raises Refused: Mistral has no such parameter or value; ``reason`` is the parameter's name.
    """
    sent: dict[str, Any] = {}
    for name, value in given.items():
        called = _RENAMED[endpoint].get(name, name)
        if called not in PARAMETERS[endpoint]:
            raise Refused(f"Mistral's {endpoint} takes no parameter {name!r}: remove it", reason=name)
        if called in sent:
            raise Refused(f"{name!r} is given twice: Mistral calls it {called!r}", reason=name)
        if called in _VALUES and value not in _VALUES[called]:
            known = " or ".join(_VALUES[called])
            raise Refused(f"Mistral's {name!r} is {known}", reason=name)
        sent[called] = value
    form = sent.get("response_format")
    if form is not None and not (isinstance(form, Mapping) and form.get("type") in _FORMATS):
        raise Refused("'response_format' is none that Mistral knows", reason="response_format")
    return sent


def check_input(value: Any) -> None:
    """:raises Refused: the input of an embedding or moderation is neither a text nor a list of texts."""
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refused("Mistral takes a text or a list of texts as 'input'", reason="input")


# -- messages --------------------------------------------------------------------------------------
def messages(chat: Chat) -> list[dict[str, Any]]:
    """Return the messages of a chat, instructions first.

    :raises Refused: a part, or an order, that Mistral has no place for.
    """
    if chat.turns[-1].role == "assistant":
        raise Refused("Mistral answers a user or a tool: the last message is the assistant's", reason="role")
    sent: list[dict[str, Any]] = [{"role": "system", "content": text} for text in chat.system]
    sent += map(_message, chat.turns)
    return sent


def _message(turn: Turn) -> dict[str, Any]:
    content = _content(turn)
    if turn.role == "user":
        return {"role": "user", "content": content}
    if turn.role == "tool":
        named = {"name": turn.tool_name} if turn.tool_name else {}
        return {"role": "tool", "tool_call_id": call_id(turn.call_id), **named, "content": content}
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call_id(call.id),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in turn.calls
        ]
    return message


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    parts = turn.parts
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    if turn.role == "assistant" and any(isinstance(part, Media) for part in parts):
        raise Refused("a message of the assistant may hold text only", reason="content")
    return [_part(part) for part in parts]


def _part(part: Text | Media) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    address = part.url or f"data:{part.mime_type};base64,{part.data}"
    if part.kind == "file":
        named = {"document_name": part.name} if part.name else {}
        return {"type": "document_url", "document_url": address, **named}
    if part.detail not in _DETAILS:
        raise Refused(
            f"Mistral looks at an image with 'low' or 'high' detail, not {part.detail!r}", reason="detail"
        )
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": address, **detail}}


def call_id(given: str) -> str:
    """Return a call's id in the one form that Mistral's models take: nine letters and digits.

    The id only joins an answer of a tool to its call, so that another one, the same in both places, says
    the same.
    """
    if _CALL_ID.fullmatch(given):
        return given
    return base64.b32encode(hashlib.sha256(given.encode()).digest()).decode("ascii")[:9]


# -- tools -----------------------------------------------------------------------------------------
def tools(given: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the functions that the model may call."""
    return [{"type": "function", "function": _function(tool)} for tool in given]


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    # Mistral wants a schema of a function that has no parameters, too.
    parameters = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    function["parameters"] = dict(parameters)
    if tool.strict:
        function["strict"] = True
    return function


def tool_choice(choice: ToolChoice, given: Sequence[Tool]) -> Any:
    """Return the choice in Mistral's words, None where there is nothing to choose from and none is wanted.

    :raises Refused: a tool is to be called that is not there.
    """
    names = {tool.name for tool in given}
    if choice.mode == "named":
        if choice.name not in names:
            raise Refused("'tool_choice' names a function that is not among the tools", reason="tool_choice")
        return {"type": "function", "function": {"name": choice.name}}
    if not names:
        if choice.mode == "required":
            raise Refused("'tool_choice' wants a call, and there are no tools", reason="tool_choice")
        return None
    return "any" if choice.mode == "required" else choice.mode
