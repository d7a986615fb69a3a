"""Values that a text states by name, one to a line: ``Total: 12.50``. How the simulated model "extracts"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from typing import Any

#: Only the end of a long prompt is looked at: instructions come first, the row's text last.
_WINDOW = 4_000
_LINE = re.compile(r"^[ \t]*([^\W\d][\w \t-]{0,60}?)[ \t]*[:=][ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_BETWEEN = re.compile(r"[\s_-]+")
_TRUE, _FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})


def labelled(text: str, name: str, schema: Mapping[str, Any], kind: str) -> Any:
    """Return the value of the last line that begins with ``name`` and a colon, None where none fits.

    Case, spaces, hyphens and underscores in the name make no difference.

    :param schema: the property's schema; a value that breaks its bounds does not fit.
    :param kind: ``string``, ``integer``, ``number`` or ``boolean``.
    """
    said = _lines(text[-_WINDOW:]).get(_plain(name))
    if said is None:
        return None
    if kind == "boolean":
        word = said.lower()
        return True if word in _TRUE else False if word in _FALSE else None
    if kind == "string":
        return said if _fits_text(said, schema) else None
    return _number(said, schema, whole=kind == "integer")


@lru_cache(maxsize=64)
def _lines(text: str) -> dict[str, str]:
    return {_plain(name): value for name, value in _LINE.findall(text)}


def _plain(name: str) -> str:
    return _BETWEEN.sub("", name).lower()


def _fits_text(said: str, schema: Mapping[str, Any]) -> bool:
    if schema.get("format") == "date":
        try:
            date.fromisoformat(said)
        except ValueError:
            return False
    elif schema.get("format"):
        return False
    return int(schema.get("minLength", 0)) <= len(said) <= int(schema.get("maxLength", len(said)))


def _number(said: str, schema: Mapping[str, Any], *, whole: bool) -> int | float | None:
    if "multipleOf" in schema:
        return None
    try:
        value: int | float = int(said) if whole else float(said)
    except ValueError:
        return None
    above = schema.get("minimum", value) <= value and value > schema.get("exclusiveMinimum", value - 1)
    below = value <= schema.get("maximum", value) and value < schema.get("exclusiveMaximum", value + 1)
    return value if above and below and abs(value) < 1e15 else None
