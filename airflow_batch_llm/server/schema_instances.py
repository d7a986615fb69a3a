"""Instances that are valid under a JSON schema, always the same for the same text.

A scalar property takes the value that a line of the text states by its name (``Total: 12.50``).

Handled: object, array, string, number, integer, boolean, null, type lists, enum, const, anyOf, oneOf,
allOf (merged), local ``$ref``, required, min/max of numbers, lengths and counts, multipleOf,
uniqueItems, and the formats date, date-time, time, email, uri and uuid. ``pattern`` is not.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_batch_llm.server.labelled_values import labelled
from airflow_batch_llm.server.word_match import best_option

#: Below this depth optional parts are left out, so that recursive schemas end.
_DEEP = 6
_TOO_DEEP = 40
#: Kinds whose value a line of the text may state by name.
_LABELLED = frozenset({"string", "integer", "number", "boolean"})
_FORMATS = {
    "date": "2026-01-15",
    "date-time": "2026-01-15T09:30:00Z",
    "time": "09:30:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/simulated",
}


class SchemaError(ValueError):
    """The schema cannot be followed: a reference leads nowhere, or it never ends."""


def make_instance(schema: Any, text: str) -> Any:
    """Return an instance of ``schema`` that depends on ``text`` alone.

    :raises SchemaError: a ``$ref`` is not local or leads nowhere, or every instance is endless.
    """
    return _Maker(schema, text).make(schema, "", 0)


class _Maker:
    def __init__(self, root: Any, text: str) -> None:
        self._root = root
        self._text = text
        self._seed = text.encode("utf-8", "surrogatepass")

    def make(self, schema: Any, path: str, depth: int) -> Any:
        if depth > _TOO_DEEP:
            raise SchemaError("the schema has no end")
        schema = self._flatten(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._option(schema["enum"], path)
        kind = self._kind(schema, depth)
        if (
            kind in _LABELLED
            and (said := labelled(self._text, path.rpartition("/")[2], schema, kind)) is not None
        ):
            return said
        if kind == "object":
            return self._object(schema, path, depth)
        if kind == "array":
            return self._array(schema, path, depth)
        if kind == "string":
            return self._string(schema, path)
        if kind in ("integer", "number"):
            return self._number(schema, path, whole=kind == "integer")
        return bool(self._draw(path, 2)) if kind == "boolean" else None

    def _flatten(self, schema: Any) -> Mapping[str, Any]:
        """Follow references and choices until a schema is left that says itself what it wants."""
        for _ in range(_TOO_DEEP):
            if not isinstance(schema, Mapping):
                return {}
            if "$ref" in schema:
                schema = {**self._resolve(schema["$ref"]), **{k: v for k, v in schema.items() if k != "$ref"}}
            elif "allOf" in schema:
                merged: dict[str, Any] = {k: v for k, v in schema.items() if k != "allOf"}
                for part in schema["allOf"]:
                    merged = _merge(merged, self._flatten(part))
                schema = merged
            elif choices := schema.get("anyOf") or schema.get("oneOf"):
                rest = {k: v for k, v in schema.items() if k not in ("anyOf", "oneOf")}
                schema = _merge(rest, self._flatten(self._choice(choices)))
            else:
                return schema
        raise SchemaError("the schema's references run in a circle")

    def _choice(self, choices: Sequence[Any]) -> Any:
        """Prefer what is not null: an answer that says something."""
        said = [c for c in choices if not (isinstance(c, Mapping) and c.get("type") == "null")]
        return (said or choices)[0]

    def _resolve(self, reference: Any) -> Mapping[str, Any]:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError("only references into the schema itself can be followed")
        found = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or part not in found:
                raise SchemaError("a reference leads nowhere")
            found = found[part]
        if not isinstance(found, Mapping):
            raise SchemaError("a reference leads to something that is no schema")
        return found

    def _kind(self, schema: Mapping[str, Any], depth: int) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            if depth > _DEEP and "null" in kind:
                return "null"
            kind = next((k for k in kind if k != "null"), "null")
        if isinstance(kind, str):
            return kind
        for key, implied in (("properties", "object"), ("items", "array"), ("minimum", "number")):
            if key in schema:
                return implied
        return "string"

    def _object(self, schema: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
        required = schema.get("required") or ()
        properties: Mapping[str, Any] = schema.get("properties") or {}
        made: dict[str, Any] = {}
        for name, part in properties.items():
            if name not in required and depth >= _DEEP:
                continue
            if depth >= _DEEP and self._may_be_null(part):
                made[name] = None
            else:
                made[name] = self.make(part, f"{path}/{name}", depth + 1)
        for name in required:
            if name not in made:
                made[name] = self.make(schema.get("additionalProperties"), f"{path}/{name}", depth + 1)
        return made

    def _may_be_null(self, part: Any) -> bool:
        if not isinstance(part, Mapping):
            return False
        if "null" in (part.get("type") or ()) and "enum" not in part:
            return True
        choices = part.get("anyOf") or part.get("oneOf") or ()
        return any(isinstance(c, Mapping) and c.get("type") == "null" for c in choices)

    def _array(self, schema: Mapping[str, Any], path: str, depth: int) -> list[Any]:
        least = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", max(least, 2)))
        first = schema.get("prefixItems") or []
        items = schema.get("items")
        if items is False:
            most = min(most, len(first))
        wanted = least if depth >= _DEEP else min(max(least, 1 + self._draw(path, 2)), most)
        if schema.get("uniqueItems") and not first:
            return self._distinct(items, path, depth, least, wanted)
        return [
            self.make(first[i] if i < len(first) else items, f"{path}/{i}", depth + 1) for i in range(wanted)
        ]

    def _distinct(self, items: Any, path: str, depth: int, least: int, wanted: int) -> list[Any]:
        options = self._flatten(items).get("enum")
        if options:
            return self._options_ranked(options, path)[: max(least, min(wanted, len(options)))]
        found: list[Any] = []
        for i in range(wanted * 8):
            made = self.make(items, f"{path}/{i}", depth + 1)
            if isinstance(made, str) and made in found:
                made = f"{made} {i}"
            if made not in found:
                found.append(made)
            if len(found) == wanted:
                break
        return found

    def _option(self, options: Sequence[Any], path: str) -> Any:
        return self._options_ranked(options, path)[0]

    def _options_ranked(self, options: Sequence[Any], path: str) -> list[Any]:
        """Put the option the text speaks for first; where none does, the hash chooses."""
        best = best_option(self._text, [str(option) for option in options])
        start = self._draw(path, len(options)) if best is None else best
        return [*options[start:], *options[:start]]

    def _string(self, schema: Mapping[str, Any], path: str) -> str:
        form = schema.get("format")
        if form == "uuid":
            return str(
                uuid.UUID(bytes=hashlib.md5(self._seed + path.encode(), usedforsecurity=False).digest())
            )
        if form in _FORMATS:
            return _FORMATS[form]
        most = schema.get("maxLength")
        least = int(schema.get("minLength", 0))
        words = self._text[-400:].split()[:8]
        said = " ".join(words) if words else "simulated"
        if len(said) < least:
            said += "." * (least - len(said))
        return said if most is None else said[: int(most)]

    def _number(self, schema: Mapping[str, Any], path: str, *, whole: bool) -> int | float:
        low = _bound(schema, "minimum", "exclusiveMinimum", 1, whole)
        high = _bound(schema, "maximum", "exclusiveMaximum", -1, whole)
        if low is None:
            low = 0 if high is None or high >= 0 else high - 100
        if high is None:
            high = max(low, 0) + 100
        step = schema.get("multipleOf") or (1 if whole else None)
        if step is None:
            return float(round(low + (high - low) * self._draw(path, 101) / 100, 12))
        if whole and isinstance(step, float) and not step.is_integer():
            step = 1
        first, last = math.ceil(low / step), math.floor(high / step)
        value = (first + self._draw(path, max(1, min(last - first, 1 << 31) + 1))) * step
        return int(value) if whole else value

    def _draw(self, path: str, below: int) -> int:
        """Return a number from 0 to ``below`` - 1 that depends on text and place."""
        digest = hashlib.blake2b(self._seed, key=path.encode()[-64:], digest_size=8).digest()
        return int.from_bytes(digest, "big") % below


def _bound(
    schema: Mapping[str, Any], closed: str, opened: str, inward: int, whole: bool
) -> int | float | None:
    """Return the tighter of the two bounds, an open one moved inward."""
    bounds: list[int | float] = []
    if (value := schema.get(closed)) is not None:
        tight = math.ceil if inward > 0 else math.floor
        bounds.append(tight(value) if whole else value)
    value = schema.get(opened)
    if value is not None and not isinstance(value, bool):
        if whole:
            bounds.append(math.floor(value) + 1 if inward > 0 else math.ceil(value) - 1)
        else:
            bounds.append(value + inward * max(abs(value), 1) * 1e-6)
    if not bounds:
        return None
    return max(bounds) if inward > 0 else min(bounds)


def _merge(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**one, **two}
    if "properties" in one and "properties" in two:
        merged["properties"] = {**one["properties"], **two["properties"]}
    if "required" in one and "required" in two:
        merged["required"] = [*one["required"], *two["required"]]
    return merged
