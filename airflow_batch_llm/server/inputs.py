"""The texts of a body that may hold one text, several, or tokens in place of text."""

from __future__ import annotations

from typing import Any

from airflow_batch_llm.server.replies import BadBody

#: Most texts that one request may hold.
MOST = 2_048


def texts_of(value: Any, param: str) -> list[str]:
    """Return the texts of ``prompt`` or ``input``. Tokens stand for words of the same spelling.

    :raises BadBody: it is none of the forms, or there is nothing in it.
    """
    if isinstance(value, str):
        found = [value]
    elif _is_list_of(value, int):
        found = [_words(value)]
    elif _is_list_of(value, str):
        found = value
    elif _is_list_of(value, list) and all(_is_list_of(tokens, int) for tokens in value):
        found = [_words(tokens) for tokens in value]
    elif value == []:
        raise BadBody(f"{param} is empty.", code="empty_array", param=param)
    else:
        raise BadBody(f"{param} has the wrong type.", code="invalid_type", param=param)
    if len(found) > MOST:
        raise BadBody(f"{param} holds more than {MOST} texts.", code="array_above_max_length", param=param)
    return found


def number_of_inputs(value: Any) -> int:
    """Return for how many vectors an ``input`` asks; one where it cannot be read."""
    return len(value) if isinstance(value, list) and value and not _is_list_of(value, int) else 1


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is kind for one in value)


def _words(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))
