"""A JSON schema in the form of Gemini's own ``Schema``, on a copy.

Batches take two forms. JSON Schema as it is (``responseJsonSchema``) is taken too, but batches were seen to
answer to it with the right fields and the wrong contents, where ``responseSchema`` worked (reported against
ruby_llm, #894, August 2026). So a schema is written in the older form wherever that can say it. Nothing is
lost by a constraint that is dropped here: the answer is checked against the caller's own schema when it
comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {
    "string": "STRING",
    "number": "NUMBER",
    "integer": "INTEGER",
    "boolean": "BOOLEAN",
    "array": "ARRAY",
    "object": "OBJECT",
}
#: Constraints that both forms have, for any type.
_KEPT = ("title", "description", "minItems", "maxItems", "minimum", "maximum")
#: Formats that are known for a type; another is refused.
_FORMATS = {
    "STRING": frozenset({"date-time"}),
    "NUMBER": frozenset({"float", "double"}),
    "INTEGER": frozenset({"int32", "int64"}),
}
_UNSUPPORTED = frozenset(
    {
        "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties",
        "prefixItems", "propertyNames", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
_DEFINITIONS = ("$defs", "definitions")
_MAX_DEPTH = 32


class _NotSaid(Exception):
    """The schema says something that the older form cannot."""


def to_gemini_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema in Gemini's own form, None where that cannot say it.

    Free-form objects (``dict[str, X]``), "anything", tuples, conditionals and schemas that hold themselves
    cannot be said.
    """
    try:
        return _Maker(schema).node(schema, ())
    except (_NotSaid, TypeError, RecursionError):  # what is no schema has no form in either
        return None


class _Maker:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def node(self, node: Any, inlining: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(node, Mapping) or _UNSUPPORTED & node.keys() or len(inlining) > _MAX_DEPTH:
            raise _NotSaid
        if "$ref" in node:
            return self._reference(node, inlining)
        if "allOf" in node:
            return self._sole_part(node, inlining)
        choices = node.get("anyOf", node.get("oneOf"))
        if choices is not None:
            return self._choice(node, choices, inlining)
        made = {name: node[name] for name in _KEPT if node.get(name) is not None}
        kind, nullable = _type_of(node)
        if kind is None:
            raise _NotSaid
        made = {"type": kind, **made}
        if nullable:
            made["nullable"] = True
        if node.get("format") in _FORMATS.get(kind, ()):
            made["format"] = node["format"]
        _add_values(made, node, kind)
        if kind == "ARRAY":
            made["items"] = self.node(node.get("items"), inlining)
        if kind == "OBJECT":
            self._add_properties(made, node, inlining)
        return made

    def _add_properties(
        self, made: dict[str, Any], node: Mapping[str, Any], inlining: tuple[str, ...]
    ) -> None:
        properties = node.get("properties")
        # An object without properties is refused, and one with any others cannot be said.
        if not isinstance(properties, Mapping) or not properties:
            raise _NotSaid
        if node.get("additionalProperties", False) not in (True, False):
            raise _NotSaid
        made["properties"] = {name: self.node(value, inlining) for name, value in properties.items()}
        required = [name for name in node.get("required") or () if name in properties]
        if required:
            made["required"] = required
        made["propertyOrdering"] = list(properties)

    def _choice(self, node: Mapping[str, Any], choices: Any, inlining: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(choices, list) or "properties" in node:
            raise _NotSaid
        others = [one for one in choices if not (isinstance(one, Mapping) and one.get("type") == "null")]
        if not others:
            raise _NotSaid
        made = [self.node(one, inlining) for one in others]
        said = {name: node[name] for name in ("title", "description") if node.get(name)}
        whole = {**made[0], **said} if len(made) == 1 else {"anyOf": made, **said}
        if len(others) < len(choices):
            whole["nullable"] = True
        return whole

    def _reference(self, node: Mapping[str, Any], inlining: tuple[str, ...]) -> dict[str, Any]:
        reference = str(node["$ref"])
        target = _definition(self._schema, reference)
        if target is None or reference in inlining:
            raise _NotSaid
        beside = {name: value for name, value in node.items() if name != "$ref"}
        return self.node({**target, **beside}, (*inlining, reference))

    def _sole_part(self, node: Mapping[str, Any], inlining: tuple[str, ...]) -> dict[str, Any]:
        parts = node["allOf"]
        if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], Mapping):
            raise _NotSaid
        beside = {name: value for name, value in node.items() if name != "allOf"}
        return self.node({**parts[0], **beside}, inlining)


def _type_of(node: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the type and whether null is allowed; None for no type, or for several."""
    kind = node.get("type")
    if kind is None and "properties" in node:
        kind = "object"
    if kind is None and all(isinstance(one, str) for one in _values_of(node) or (None,)):
        kind = "string"
    kinds = kind if isinstance(kind, list) else [kind]
    named = [one for one in kinds if one != "null"]
    if len(named) != 1 or not isinstance(named[0], str):
        return None, False
    return _TYPES.get(named[0]), len(named) < len(kinds)


def _values_of(node: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that are allowed, None for any."""
    if "const" in node:
        return [node["const"]]
    values = node.get("enum")
    return values if isinstance(values, list) and values else None


def _add_values(made: dict[str, Any], node: Mapping[str, Any], kind: str) -> None:
    """Say which values are allowed: only strings can be listed, others stand in the description."""
    values = _values_of(node)
    if values is None:
        return
    if None in values:
        made["nullable"] = True
        values = [value for value in values if value is not None]
    if kind == "STRING" and all(isinstance(value, str) for value in values):
        made["enum"], made["format"] = values, "enum"
        return
    said = f"one of {', '.join(map(str, values))}"
    made["description"] = f"{made['description']} ({said})" if made.get("description") else said


def _definition(schema: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    parts = reference.split("/")
    if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
        return None
    definitions = schema.get(parts[1])
    target = definitions.get(parts[2]) if isinstance(definitions, Mapping) else None
    return target if isinstance(target, Mapping) else None
