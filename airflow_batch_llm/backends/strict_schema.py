"""A JSON schema made acceptable to OpenAI's strict structured outputs, on a copy.

Strict mode wants every object closed (``additionalProperties: false``) with all its properties
required, and knows only a part of JSON Schema. Nothing is lost by dropping a constraint here: the
answer is checked against the caller's own schema when it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_batch_llm.exceptions import OutputSchemaError

_ANNOTATIONS = frozenset(
    {"default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$schema", "$id"}
)
_DROPPED = _ANNOTATIONS | {"discriminator", "uniqueItems", "minProperties", "maxProperties"}
_UNSUPPORTED = frozenset(
    {
        "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
        "patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "prefixItems",
        "additionalItems", "contains", "minContains", "maxContains", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
_DEFINITIONS = ("$defs", "definitions")
_MAX_DEPTH = 10
_MAX_PROPERTIES = 5_000


class _NotStrict(Exception):
    """The schema says something that strict mode cannot."""


def to_strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a strict copy of ``schema``, None where it cannot be made strict.

    Free-form objects (``dict[str, X]``), tuples, conditionals and a root that is not an object cannot.
    Properties that were optional become required: an answer that has them all fits the original too.
    """
    try:
        return _Maker(schema).root()
    except _NotStrict:
        return None


def with_object_on_top(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the schema in a form whose top says that it is an object, which the protocol asks of any schema.

    :param name: how the error names the schema.
    :raises OutputSchemaError: its top is a list, a single value, a choice, or anything at all.
    """
    top: Mapping[str, Any] = schema
    passed: set[str] = set()
    while "$ref" in top:
        reference = str(top["$ref"])
        target = None if reference in passed else _definition(schema, reference)
        if target is None:
            break
        passed.add(reference)
        top = {**target, **{key: value for key, value in top.items() if key != "$ref"}}
    kind = top.get("type")
    if kind == "object":
        return top
    if kind is None and _OF_OBJECTS & top.keys() and not _CHOICES & top.keys():
        return {**top, "type": "object"}
    if _CHOICES & top.keys():
        found = "a choice between forms"
    else:
        found = f"of type {kind!r}" if kind is not None else "not said to be an object"
    raise OutputSchemaError(
        f"output schema {name!r} cannot be sent: the protocol wants an object, and its top is {found}. "
        'Put it into a property of an object ({"items": [...]}, say)'
    )


#: What only objects have, and what a top cannot be.
_OF_OBJECTS = frozenset({"properties", "required", "additionalProperties", "allOf"})
_CHOICES = frozenset({"anyOf", "oneOf"})


def _definition(schema: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    parts = reference.split("/")
    if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
        return None
    definitions = schema.get(parts[1])
    target = definitions.get(parts[2]) if isinstance(definitions, Mapping) else None
    return target if isinstance(target, Mapping) else None


class _Maker:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._properties = 0

    def root(self) -> dict[str, Any]:
        body = {name: value for name, value in self._schema.items() if name not in _DEFINITIONS}
        made = self._node(body, (), 0, is_root=True)
        if made.get("type") != "object" or "anyOf" in made:
            raise _NotStrict
        for name in _DEFINITIONS:
            definitions = self._schema.get(name)
            if isinstance(definitions, Mapping):
                made[name] = {key: self._node(value, (), 1) for key, value in definitions.items()}
        return made

    def _node(
        self, node: Any, inlining: tuple[str, ...], depth: int, *, is_root: bool = False
    ) -> dict[str, Any]:
        if not isinstance(node, Mapping) or depth > _MAX_DEPTH or _UNSUPPORTED & node.keys():
            raise _NotStrict
        kept = {name: value for name, value in node.items() if name not in _DROPPED}
        if "$ref" in kept:
            return self._reference(kept, inlining, depth, is_root)
        if "allOf" in kept:
            return self._sole_part(kept, inlining, depth)
        if "oneOf" in kept:
            if "anyOf" in kept:
                raise _NotStrict
            kept["anyOf"] = kept.pop("oneOf")
        if "anyOf" in kept:
            kept["anyOf"] = [self._node(part, inlining, depth) for part in _list(kept["anyOf"])]
        if "items" in kept:
            kept["items"] = self._node(kept["items"], inlining, depth + 1)
        if _is_object(kept):
            self._close(kept, inlining, depth)
        elif not kept.keys() & {"type", "anyOf", "enum", "const"}:
            raise _NotStrict  # "anything"
        return kept

    def _close(self, kept: dict[str, Any], inlining: tuple[str, ...], depth: int) -> None:
        properties = kept.get("properties")
        if not isinstance(properties, Mapping) or kept.get("additionalProperties", False) is not False:
            raise _NotStrict  # free-form, or open by declaration
        self._properties += len(properties)
        required = _list(kept.get("required", []))
        if self._properties > _MAX_PROPERTIES or not set(required) <= properties.keys():
            raise _NotStrict
        kept.setdefault("type", "object")
        kept["properties"] = {
            name: self._node(value, inlining, depth + 1) for name, value in properties.items()
        }
        kept["required"] = list(properties)
        kept["additionalProperties"] = False

    def _reference(
        self, kept: dict[str, Any], inlining: tuple[str, ...], depth: int, is_root: bool
    ) -> dict[str, Any]:
        """Keep a bare reference; inline its target where words stand beside it, which strict mode forbids."""
        reference = kept.pop("$ref")
        target = self._target(reference)
        if kept.keys() - {"title", "description"}:
            raise _NotStrict
        if (kept or is_root) and reference not in inlining:
            return self._node({**target, **kept}, (*inlining, reference), depth)
        return {"$ref": reference}

    def _target(self, reference: Any) -> Mapping[str, Any]:
        target = _definition(self._schema, reference) if isinstance(reference, str) else None
        if target is None:
            raise _NotStrict
        return target

    def _sole_part(self, kept: dict[str, Any], inlining: tuple[str, ...], depth: int) -> dict[str, Any]:
        parts = _list(kept.pop("allOf"))
        if len(parts) != 1 or not isinstance(parts[0], Mapping) or kept.keys() - {"title", "description"}:
            raise _NotStrict
        return self._node({**parts[0], **kept}, inlining, depth)


def _is_object(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _NotStrict
    return value
