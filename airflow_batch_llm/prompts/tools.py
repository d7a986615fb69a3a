"""Tools that a model may call, in the form of chat completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.declared import plain_argument
from airflow_batch_llm.exceptions import ConfigurationError, PromptError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHOICES = ("none", "auto", "required")


def checked_tools(tools: Any, tool_choice: Any) -> tuple[list[dict[str, Any]] | None, Any]:
    """Return ``tools`` and ``tool_choice`` of a prompt as JSON types.

    :raises PromptError: a tool is not of the form, two have one name, or the choice is none of them.
    """
    if tools is None:
        if tool_choice is not None:
            raise PromptError("a prompt with tool_choice needs tools")
        return None, None
    if not isinstance(tools, (list, tuple)) or not tools:
        raise PromptError('the prompt\'s tools must be a list of {"type": "function", "function": {…}}')
    plain = [_plain(tool, f"tool {number}") for number, tool in enumerate(tools)]
    names = [_name_of(tool, number) for number, tool in enumerate(plain)]
    functions = [name for name in names if name is not None]
    for name in functions:
        if functions.count(name) > 1:
            raise PromptError(f"two tools of the prompt are called {name!r}")
    return plain, _choice(tool_choice, functions)


def _name_of(tool: Mapping[str, Any], number: int) -> str | None:
    """Return a function's name, None for a tool of another type, which goes through as it is."""
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise PromptError(f"tool {number} of the prompt has no type")
    if kind != "function":
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PromptError(
            f"tool {number} of the prompt must be of the chat form "
            '{"type": "function", "function": {"name": …, "parameters": …}}, '
            "with a name of up to 64 letters, digits, _ and -"
        )
    return name


def _choice(choice: Any, functions: list[str]) -> Any:
    if choice is None or choice in _CHOICES:
        return choice
    if not isinstance(choice, Mapping):
        raise PromptError(
            f'tool_choice can be {", ".join(_CHOICES)} or {{"type": "function", "function": {{"name": …}}}}'
        )
    plain = _plain(choice, "tool_choice")
    function = plain.get("function")
    if plain.get("type") == "function" and (
        not isinstance(function, Mapping) or function.get("name") not in functions
    ):
        raise PromptError(f"tool_choice names none of the prompt's tools; there are: {', '.join(functions)}")
    return plain


def _plain(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise PromptError(f"{what} of the prompt is a {type(value).__name__}, not an object")
    try:
        plain: dict[str, Any] = plain_argument(value, what)
        dumps(plain)
    except ConfigurationError as e:
        raise PromptError(e.args[0]) from None
    except ValueError:
        raise PromptError(f"{what} of the prompt cannot be written as JSON") from None
    return plain
