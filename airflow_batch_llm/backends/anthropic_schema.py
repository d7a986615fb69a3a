"""A JSON schema made acceptable to Anthropic's structured outputs, on a copy.

The protocol knows a part of JSON Schema: closed objects, lists, single values, choices, definitions that do
not refer to themselves. A bound that it does not know (``minimum``, ``maxLength``, ``pattern`` …) is told to
the model in the description, and the answer is held against the caller's own schema when it comes back.
There is no other than the strict mode, so what it cannot express at all is refused.

Reference: platform.claude.com, "Structured outputs".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_batch_llm.backends.strict_schema import with_object_on_top
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.exceptions import OutputSchemaError

_DEFINITIONS = ("$defs", "definitions")
#: Say nothing about which answers fit.
_ANNOTATIONS = frozenset(
    {
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
        "$id",
        "discriminator",
    }
)
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
#: Let properties in that nobody names.
_FREE_FORM = ("patternProperties", "propertyNames", "unevaluatedProperties")
_CHOICES = ("anyOf", "oneOf")
#: Characters of the bounds that a description tells.
_TOLD_LIMIT = 500


class _Unsayable(Exception):
    """The schema says something that has no form here; the message names it."""


def answer_format(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the member ``output_config.format`` that asks for answers of a schema.

    :param name: how an error names the schema.
    :raises OutputSchemaError: its top is no object, or it holds what the protocol cannot express.
    """
    return {
        "type": "json_schema",
        "schema": acceptable(with_object_on_top(schema, name), f"output schema {name!r}"),
    }


def acceptable(schema: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the copy: every object closed, every property required.

    :param what: how an error names the schema.
    :raises OutputSchemaError: the schema refers to itself, holds an object without named properties, or a
        place where anything fits; or it is none.
    """
    try:
        return _Maker(schema).root()
    except _Unsayable as e:
        raise OutputSchemaError(
            f"{what} cannot be sent: it holds {e}, which Anthropic's structured outputs cannot express. "
            "Change the schema, or ask for JSON in the prompt and check it with 'validate'"
        ) from None
    except (TypeError, AttributeError, RecursionError):
        raise OutputSchemaError(f"{what} cannot be sent: it is no JSON schema") from None


class _Maker:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._made: dict[str, dict[str, Any]] = {}
        self._places: dict[str, str] = {}
        self._open: set[str] = set()

    def root(self) -> dict[str, Any]:
        made = self._node({k: v for k, v in self._schema.items() if k not in _DEFINITIONS})
        return {**made, "$defs": self._made} if self._made else made

    def _node(self, node: Any) -> dict[str, Any]:
        if not isinstance(node, Mapping):
            raise _Unsayable("a place where anything fits")
        rest = {name: value for name, value in node.items() if name not in _ANNOTATIONS}
        if "$ref" in rest:
            return self._reference(rest)
        if "allOf" in rest:
            return self._node(self._merged(rest))
        kind = rest.get("type")
        if isinstance(kind, list) and "enum" not in rest and "const" not in rest:
            return self._several(rest, kind)
        made: dict[str, Any] = {name: rest.pop(name) for name in ("title",) if name in rest}
        description = rest.pop("description", None)
        made |= self._form(rest)
        told = _told(description, rest)
        return {**made, "description": told} if told else made

    def _form(self, rest: dict[str, Any]) -> dict[str, Any]:
        """Take what can be expressed out of ``rest`` and return it; what stays are bounds."""
        if "const" in rest or "enum" in rest:
            return _literals(rest)
        for name in _CHOICES:
            if name in rest:
                rest.pop("type", None)
                return {"anyOf": [self._node(part) for part in _list(rest.pop(name))]}
        kind = rest.pop("type", None)
        if kind == "object" or (kind is None and "properties" in rest):
            return self._object(rest)
        if kind == "array" or (kind is None and ("items" in rest or "prefixItems" in rest)):
            return self._array(rest)
        if not isinstance(kind, str):
            raise _Unsayable("a place where anything fits")
        made: dict[str, Any] = {"type": kind}
        if kind == "string" and rest.get("format") in _FORMATS:
            made["format"] = rest.pop("format")
        return made

    def _object(self, rest: dict[str, Any]) -> dict[str, Any]:
        properties = rest.pop("properties", None) or {}
        closed = rest.pop("additionalProperties", True) is False
        free = [name for name in _FREE_FORM if rest.pop(name, None) is not None]
        if not properties and (free or not closed):
            raise _Unsayable("an object without named properties")
        required = rest.pop("required", None) or []
        if not set(_list(required)) <= properties.keys():
            raise _Unsayable("a required property that is not described")
        return {
            "type": "object",
            "properties": {name: self._node(value) for name, value in properties.items()},
            "required": list(properties),
            "additionalProperties": False,
        }

    def _array(self, rest: dict[str, Any]) -> dict[str, Any]:
        first = rest.pop("prefixItems", None)
        items = rest.pop("items", None)
        made: dict[str, Any] = {"type": "array"}
        if first:
            # A tuple: any of its kinds at each place; the caller's own schema checks the places.
            kinds = [self._node(part) for part in _list(first)]
            kinds += [self._node(items)] if isinstance(items, Mapping) else []
            made["items"] = kinds[0] if all(kind == kinds[0] for kind in kinds) else {"anyOf": kinds}
        else:
            made["items"] = self._node(items)
        if rest.get("minItems") in (0, 1):
            made["minItems"] = rest.pop("minItems")
        return made

    def _several(self, rest: dict[str, Any], kinds: list[Any]) -> dict[str, Any]:
        """A list of types as a choice: each with the bounds that are its own."""
        words = ("title", "description")
        beside: dict[str, Any] = {name: rest.pop(name) for name in words if name in rest}
        return {**beside, "anyOf": [self._node(_of_type(kind, rest)) for kind in kinds]}

    # -- references --------------------------------------------------------------------------------
    def _reference(self, rest: dict[str, Any]) -> dict[str, Any]:
        """Keep a bare reference; put its target in where something stands beside it."""
        reference = rest.pop("$ref")
        where, name, target = self._target(reference)
        if rest:
            return self._within(where, lambda: self._node({**target, **rest}))
        if self._places.setdefault(name, where) != where:
            raise _Unsayable("two definitions of one name")
        if name not in self._made:
            self._made[name] = self._within(where, lambda: self._node(target))
        return {"$ref": f"#/$defs/{name}"}

    def _within(self, where: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if where in self._open:
            raise _Unsayable("a definition that refers to itself")
        self._open.add(where)
        try:
            return make()
        finally:
            self._open.discard(where)

    def _target(self, reference: Any) -> tuple[str, str, Mapping[str, Any]]:
        parts = reference.split("/") if isinstance(reference, str) else []
        if len(parts) == 3 and parts[0] == "#" and parts[1] in _DEFINITIONS:
            definitions = self._schema.get(parts[1])
            target = definitions.get(parts[2]) if isinstance(definitions, Mapping) else None
            if isinstance(target, Mapping):
                return reference, parts[2], target
        raise _Unsayable("a reference to what is not among its definitions")

    def _merged(self, rest: dict[str, Any]) -> dict[str, Any]:
        """Return one schema for ``allOf``: its parts are objects that say different things, or one alone."""
        parts = [self._opened(part) for part in _list(rest.pop("allOf"))]
        merged: dict[str, Any] = {}
        for part in (*parts, rest):
            for name, value in part.items():
                if name == "properties":
                    both = merged.setdefault(name, {})
                    if any(key in both and both[key] != member for key, member in value.items()):
                        raise _Unsayable("'allOf' with parts that say different things of one property")
                    both.update(value)
                elif name == "required":
                    merged[name] = [*merged.get(name, []), *_list(value)]
                elif name == "additionalProperties" or name in ("title", "description"):
                    merged[name] = value
                elif merged.setdefault(name, value) != value:
                    raise _Unsayable(f"'allOf' with parts of which each has its own {name!r}")
        return merged

    def _opened(self, part: Any) -> Mapping[str, Any]:
        if not isinstance(part, Mapping):
            raise _Unsayable("a place where anything fits")
        if "$ref" not in part:
            return part
        _, _, target = self._target(part["$ref"])
        return {**target, **{name: value for name, value in part.items() if name != "$ref"}}


def _literals(rest: dict[str, Any]) -> dict[str, Any]:
    rest.pop("type", None)
    name = "const" if "const" in rest else "enum"
    values = [rest["const"]] if name == "const" else _list(rest["enum"])
    if not values or not all(value is None or isinstance(value, (str, int, float)) for value in values):
        raise _Unsayable(f"{name!r} with values that are no texts, numbers, booleans or null")
    return {name: rest.pop(name)}


#: Bounds that belong to one type only, for schemas of several.
_OWN = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", *_FREE_FORM),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_OWN["integer"] = _OWN["number"]


def _of_type(kind: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, **{name: rest[name] for name in _OWN.get(kind, ()) if name in rest}}


def _told(description: Any, bounds: Mapping[str, Any]) -> str:
    """Return the description with the bounds that the protocol does not know."""
    said = description if isinstance(description, str) else ""
    if not bounds:
        return said
    told = ", ".join(f"{name}: {jsonl.dumps(value).decode()}" for name, value in bounds.items())
    return f"{said} ({told[:_TOLD_LIMIT]})".lstrip()


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Unsayable("a member that should be a list and is none")
    return value
