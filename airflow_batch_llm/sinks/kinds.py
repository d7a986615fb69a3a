"""What kind of column a value needs: told by the output schema, or by the first values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_batch_llm.core.drafts import AnswerSchema

TEXT = "text"
INTEGER = "integer"
NUMBER = "number"
BOOLEAN = "boolean"
JSON = "json"
DATE = "date"
TIME = "time"
#: An embedding. Once its length is known: ``vector(1536)``.
VECTOR = "vector"

_KINDS = {
    "string": TEXT,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": BOOLEAN,
    "object": JSON,
    "array": JSON,
}
_FORMATS = {"date": DATE, "date-time": TIME}

#: A point in time as text: a date, or a date with a time of day.
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")


def object_kinds(schema: AnswerSchema | None) -> dict[str, str] | None:
    """Return property -> kind of answers that are objects; None where answers are not taken apart.

    Dates and times are told from text only where a pydantic model checks them: ``format`` in a JSON schema
    binds nobody, and an answer is not lost for a 30th of February.
    """
    if schema is None:
        return None
    whole = getattr(schema, "output_schema", None) or schema.json_schema
    top = _referred(whole, whole)
    properties = top.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None
    checked = getattr(schema, "model", None) is not None
    return {name: _kind(_referred(part, whole), whole, checked) for name, part in properties.items()}


def kind_of_values(values: Iterable[Any]) -> str:
    """Return the kind of column that holds all these values; text where they differ."""
    kinds = {_value_kind(value) for value in values} - {"null"}
    if kinds == {"integer", "number"}:
        return NUMBER
    return _KINDS.get(kinds.pop(), TEXT) if len(kinds) == 1 else TEXT


def kind_of_versions(values: Iterable[Any]) -> str:
    """Return the kind of column for versions: a point in time where all are written as one."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, str) and ISO_TIME.fullmatch(value) for value in known):
        return TIME
    return kind_of_values(known)


def kind_of_vectors(vectors: Iterable[Any]) -> str:
    """Return ``vector(n)`` where all the vectors have n numbers, else ``vector``."""
    lengths = {len(vector) for vector in vectors if isinstance(vector, list)}
    return f"{VECTOR}({lengths.pop()})" if len(lengths) == 1 else VECTOR


def _referred(part: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow ``$ref`` inside the schema (a chain of at most as many steps as there are definitions)."""
    for _ in range(16):
        reference = part.get("$ref") if isinstance(part, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = whole
        for step in reference[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            target = target.get(step, {}) if isinstance(target, Mapping) else {}
        part = target
    return part if isinstance(part, Mapping) else {}


def _kind(part: Mapping[str, Any], whole: Mapping[str, Any], checked: bool) -> str:
    """Return the kind of column for a property: text where it may hold several kinds."""
    options = [option for option in _options(part, whole) if _option_kinds(option) != {"null"}]
    kinds = {kind for option in options for kind in _option_kinds(option)} - {"null"}
    if kinds == {"integer", "number"}:
        return NUMBER
    if kinds == {"object", "array"}:
        return JSON
    if kinds == {"string"} and checked:
        formats = {option.get("format") for option in options}
        return _FORMATS.get(str(formats.pop()), TEXT) if len(formats) == 1 else TEXT
    return _KINDS.get(kinds.pop(), TEXT) if len(kinds) == 1 else TEXT


def _options(part: Mapping[str, Any], whole: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    options = part.get("anyOf") or part.get("oneOf") or [part]
    return [_referred(option, whole) for option in options]


def _option_kinds(option: Mapping[str, Any]) -> set[str]:
    kind = option.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {str(k) for k in kind}
    if "const" in option:
        return {_value_kind(option["const"])}
    if isinstance(option.get("enum"), list):
        return {_value_kind(value) for value in option["enum"]}
    return {"any"}


def _value_kind(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (Mapping, "object"),
        ((list, tuple), "array"),
    ):
        if isinstance(value, kind):
            return name
    return "any"
