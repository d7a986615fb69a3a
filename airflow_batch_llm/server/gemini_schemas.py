"""Gemini's ``Schema`` (a selection of OpenAPI's, types in capitals) as JSON schema."""

from __future__ import annotations

from typing import Any

_SAME = (
    "format",
    "title",
    "description",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "required",
    "default",
)


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a ``Schema`` that was read (:data:`gemini_members.SCHEMA`)."""
    made: dict[str, Any] = {name: schema[name] for name in _SAME if name in schema}
    if (kind := schema.get("type", "TYPE_UNSPECIFIED").lower()) != "type_unspecified":
        made["type"] = [kind, "null"] if schema.get("nullable") else kind
    if "enum" in schema:
        made["enum"] = [*schema["enum"], None] if schema.get("nullable") else schema["enum"]
    if "items" in schema:
        made["items"] = json_schema(schema["items"])
    if "properties" in schema:
        properties = schema["properties"]
        first = [name for name in schema.get("propertyOrdering", ()) if name in properties]
        made["properties"] = {name: json_schema(properties[name]) for name in [*first, *properties]}
    if "additionalProperties" in schema:
        more = schema["additionalProperties"]
        made["additionalProperties"] = more if isinstance(more, bool) else json_schema(more)
    if "defs" in schema:
        made["$defs"] = {name: json_schema(one) for name, one in schema["defs"].items()}
    if "ref" in schema:
        made["$ref"] = schema["ref"].replace("#/defs/", "#/$defs/")
    if "anyOf" in schema:
        made["anyOf"] = [json_schema(one) for one in schema["anyOf"]]
    return made
