"""Anthropic's Messages bodies (``params``): checked as the API checks them, and turned into OpenAI's chat."""

from __future__ import annotations

from typing import Any

from airflow_batch_llm.server.anthropic_content import check_cache_control, document_parts, image
from airflow_batch_llm.server.translation import (
    BadRequest,
    chat_body,
    function_tool,
    json_format,
    message,
    named_tool,
    text_part,
    tool_call,
)

#: What ``anthropic-version`` may say; the newer one has no sampling parameters.
OLDER, NEWER = "2023-06-01", "2026-10-21"
VERSIONS = (OLDER, NEWER)

_SAMPLING = ("temperature", "top_p", "top_k")
_KNOWN = frozenset(
    {
        "model",
        "max_tokens",
        "messages",
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "metadata",
        "output_config",
        "service_tier",
        "stop_sequences",
        "stream",
        "system",
        "thinking",
        "tool_choice",
        "tools",
        *_SAMPLING,
    }
)
_LEAST_BUDGET = 1_024
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def to_chat(params: dict[str, Any], version: str) -> bytes:
    """Return OpenAI's chat body for a request.

    What only the real service does something with (``metadata``, ``service_tier``, ``container``, …) is taken
    and left out.

    :raises BadRequest: as the API would refuse it; ``param`` names the member.
    """
    for name in params:
        if name not in _KNOWN:
            raise _bad(name, "Extra inputs are not permitted")
    model = params.get("model")
    if not isinstance(model, str) or not model:
        raise _bad("model", "Field required")
    if params.get("stream"):
        raise _bad("stream", "streaming is not supported in a batch")
    limit = _output_limit(params)
    settings = {
        "max_tokens": limit,
        "stop": _stop_sequences(params.get("stop_sequences")),
        **_sampling(params, version),
        **_tools(params),
        **_output(params, limit),
    }
    check_cache_control(params)
    return chat_body(model, [*_system(params.get("system")), *_messages(params, version)], **settings)


def _bad(param: str, message: str) -> BadRequest:
    return BadRequest(f"{param}: {message}", param=param)


# -- settings --------------------------------------------------------------------------------------
def _output_limit(params: dict[str, Any]) -> int:
    limit = params.get("max_tokens")
    if limit is None:
        raise _bad("max_tokens", "Field required")
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise _bad("max_tokens", "Input should be a valid integer")
    if limit < 1:
        raise _bad("max_tokens", "Input should be greater than or equal to 1")
    return limit


def _stop_sequences(given: Any) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise _bad("stop_sequences", "Input should be a list of strings")
    if not all(one.strip() for one in given):
        raise _bad("stop_sequences", "each stop sequence must contain non-whitespace")
    return given


def _sampling(params: dict[str, Any], version: str) -> dict[str, Any]:
    given = {name: params[name] for name in _SAMPLING if name in params}
    for name, value in given.items():
        if version == NEWER:
            raise _bad(name, "sampling parameters are not supported in this version of the API")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _bad(name, "Input should be a valid number")
        if value is not None and name != "top_k" and not 0 <= value <= 1:
            raise _bad(name, "must be from 0 to 1")
    return given


def _output(params: dict[str, Any], limit: int) -> dict[str, Any]:
    """Read ``output_config`` and ``thinking``."""
    config = params.get("output_config")
    config = {} if config is None else config
    if not isinstance(config, dict):
        raise _bad("output_config", "Input should be an object")
    effort = config.get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise _bad("output_config.effort", f"Input should be one of {', '.join(_EFFORTS)}")
    found: dict[str, Any] = {}
    wanted = config.get("format")
    if wanted is not None:
        schema = wanted.get("schema") if isinstance(wanted, dict) else None
        if not isinstance(schema, dict) or wanted.get("type") != "json_schema":
            raise _bad("output_config.format", "Input should be a json_schema with its schema")
        found["response_format"] = json_format(schema)
    if thinks(params, limit):
        found["reasoning_effort"] = effort or "high"
    return found


def thinks(params: dict[str, Any], limit: int) -> bool:
    """Say whether thinking is asked for. :raises BadRequest: ``thinking`` is wrong."""
    thinking = params.get("thinking")
    if thinking is None:
        return False
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < _LEAST_BUDGET:
            raise _bad("thinking.enabled.budget_tokens", f"must be at least {_LEAST_BUDGET}")
        if budget >= limit:
            raise _bad("max_tokens", "must be greater than thinking.budget_tokens")
    elif kind not in ("adaptive", "between_tools", "disabled"):
        raise _bad("thinking.type", "Input should be adaptive, between_tools, disabled or enabled")
    return kind in ("enabled", "adaptive")


# -- tools -----------------------------------------------------------------------------------------
def _tools(params: dict[str, Any]) -> dict[str, Any]:
    given = params.get("tools")
    given = [] if given is None else given
    if not isinstance(given, list):
        raise _bad("tools", "Input should be a list")
    found: dict[str, Any] = {"tools": [_tool(f"tools.{i}", tool) for i, tool in enumerate(given)]}
    choice = params.get("tool_choice")
    if choice is None:
        return found
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("auto", "any", "tool", "none"):
        raise _bad("tool_choice.type", "Input should be auto, any, tool or none")
    if not given and kind != "none":
        raise _bad("tool_choice", "may only be specified while providing tools")
    if kind == "tool":
        name = choice.get("name")
        if name not in [tool["function"]["name"] for tool in found["tools"]]:
            raise _bad("tool_choice.name", "no tool has this name")
        found["tool_choice"] = named_tool(name)
    elif given:
        found["tool_choice"] = "required" if kind == "any" else kind
    if choice.get("disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    return found


def _tool(place: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise _bad(place, "Input should be an object")
    if tool.get("type") not in (None, "custom"):
        raise _bad(place, "tools that run at the provider are not simulated here")
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise _bad(f"{place}.name", "Field required")
    if not isinstance(schema, dict):
        raise _bad(f"{place}.input_schema", "Field required")
    if schema.get("type") != "object":
        raise _bad(f"{place}.input_schema.type", "Input should be 'object'")
    return function_tool(name, tool.get("description"), schema, strict=bool(tool.get("strict")))


# -- messages --------------------------------------------------------------------------------------
def _system(system: Any) -> list[dict[str, Any]]:
    if system is None or system == []:
        return []
    if isinstance(system, str):
        return [message("system", [text_part(system)])]
    if not isinstance(system, list):
        raise _bad("system", "Input should be a string or a list of text blocks")
    return [message("system", [_text(f"system.{i}", block) for i, block in enumerate(system)])]


def _messages(params: dict[str, Any], version: str) -> list[dict[str, Any]]:
    given = params.get("messages")
    if given is None:
        raise _bad("messages", "Field required")
    if not isinstance(given, list) or not given:
        raise _bad("messages", "at least one message is required")
    found: list[dict[str, Any]] = []
    for index, one in enumerate(given):
        place = f"messages.{index}"
        role = one.get("role") if isinstance(one, dict) else None
        if role not in ("user", "assistant"):
            raise _bad(f"{place}.role", "Input should be 'user' or 'assistant'")
        found += _turn(f"{place}.content", role, one.get("content"), version)
    return found


def _turn(place: str, role: str, content: Any, version: str) -> list[dict[str, Any]]:
    """Return the messages of one turn: the answers of tools come first, each in a message of its own."""
    if isinstance(content, str):
        if not content:
            raise _bad(place, "text content blocks must be non-empty")
        return [message(role, [text_part(content)])]
    if not isinstance(content, list) or not content:
        raise _bad(place, "Input should be a string or a list of content blocks, and not empty")
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        inside = f"{place}.{index}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            if version == NEWER and role == "user" and block.get("citations"):
                raise _bad(f"{inside}.citations", "citations of user text are not supported")
            parts.append(_text(inside, block))
        elif kind == "image" and role == "user":
            parts.append(image(inside, block))
        elif kind == "document":
            if version == NEWER and role == "assistant":
                raise _bad(inside, "documents are not supported in assistant turns")
            parts += document_parts(inside, block)
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(inside, block))
        elif kind == "tool_result" and role == "user":
            results.append(_result(inside, block))
        elif kind not in ("thinking", "redacted_thinking") or role != "assistant":
            raise _bad(inside, f"this type of block is not known in a turn of the {role}")
    own = [message(role, parts, calls=calls)] if parts or calls else []
    return results + own


def _text(place: str, block: Any) -> dict[str, Any]:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    if not isinstance(text, str):
        raise _bad(place, "Input should be a text block")
    if not text:
        raise _bad(place, "text content blocks must be non-empty")
    return text_part(text)


def _call(place: str, block: dict[str, Any]) -> dict[str, Any]:
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(given, dict):
        raise _bad(place, "a tool_use block needs id, name and input")
    return tool_call(call_id, name, given)


def _result(place: str, block: dict[str, Any]) -> dict[str, Any]:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str):
        raise _bad(f"{place}.tool_use_id", "Field required")
    if content is None or content == []:
        return message("tool", [text_part("")], call_id=call_id)
    if isinstance(content, str):
        return message("tool", [text_part(content)], call_id=call_id)
    if not isinstance(content, list):
        raise _bad(f"{place}.content", "Input should be a string or a list of content blocks")
    parts: list[dict[str, Any]] = []
    for index, inner in enumerate(content):
        inside = f"{place}.content.{index}"
        kind = inner.get("type") if isinstance(inner, dict) else None
        if kind == "image":
            parts.append(image(inside, inner))
        elif kind == "document":
            parts += document_parts(inside, inner)
        else:
            parts.append(_text(inside, inner))
    return message("tool", parts, call_id=call_id)
