"""Rows as files keep them: JSON types, text that UTF-8 can encode, nested no deeper than code can walk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_batch_llm.core.jsonl import dumps

#: How deeply a row may be nested: less than what Python and the JSON library can walk.
MAX_DEPTH = 200

_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_SCALARS = frozenset({int, float, bool, type(None)})


def storable_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row as ``rows.jsonl`` keeps it: JSON types, and text that UTF-8 can encode.

    Half a surrogate pair becomes U+FFFD, bytes become base64, dates ISO 8601, decimals and all other
    types their text; what is nested deeper than 200 levels becomes null, as numbers that are not finite
    do on writing. Prompts see the row as it was.
    """
    for name, value in row.items():
        kind = type(value)
        if kind is str:
            if not value.isascii() and _HALF_SURROGATE.search(value):
                break
        elif kind not in _JSON_SCALARS:
            break
        if not name.isascii() and _HALF_SURROGATE.search(name):
            break
    else:
        return row
    return {_whole_text(str(name)): storable(value) for name, value in row.items()}


def storable(value: Any, depth: int = 0) -> Any:
    """Return one value of a row as :func:`storable_row` keeps it."""
    if isinstance(value, str):
        return _whole_text(value)
    if isinstance(value, (Mapping, list, tuple)):
        if depth == MAX_DEPTH:
            return None
        if isinstance(value, Mapping):
            return {_whole_text(str(k)): storable(v, depth + 1) for k, v in value.items()}
        return [storable(v, depth + 1) for v in value]
    try:
        dumps(value)
    except ValueError:
        return _whole_text(str(value))
    return value


def _whole_text(text: str) -> str:
    return _HALF_SURROGATE.sub("�", text)


def has_half_surrogate(value: Any) -> bool:
    """Say whether a text anywhere in ``value``, names included, holds half a surrogate pair."""
    if isinstance(value, str):
        return not value.isascii() and _HALF_SURROGATE.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_half_surrogate(k) or has_half_surrogate(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return any(has_half_surrogate(v) for v in value)
    return False


def nested_deeper_than(value: Any, limit: int) -> bool:
    """Say whether lists and objects are nested deeper than ``limit`` levels."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return any(isinstance(value, (dict, list)) for value in level)
