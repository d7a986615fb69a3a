"""Which columns an answer fills, and with what values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.core.drafts import Answer, AnswerSchema, LandingInfo
from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.exceptions import SinkError

#: Bookkeeping columns in their order, with their kinds. ``_landed_at`` follows them.
BOOKKEEPING = {
    "_custom_id": "text",
    "_model": "text",
    "_job_id": "text",
    "_run_id": "text",
    "_job_created_at": "number",
    "_revision": "integer",
    "_round": "integer",
}
LANDED_AT = "_landed_at"

#: The column of an answer that is not an object.
OUTPUT = "output"

_KINDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a sink.

    :param key: the answer's key column -> the table's column.
    :param outputs: the answer's property -> the table's column.
    :param whole: the output is one value in one column, not an object taken apart.
    :param kinds: table column -> ``text``, ``integer``, ``number`` or ``boolean``, as far as known before
        the first answer (key columns are not).
    """

    key: Mapping[str, str]
    outputs: Mapping[str, str]
    whole: bool
    kinds: Mapping[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns in the order of :meth:`values`, ``_landed_at`` last."""
        key = [column for column in self.key.values() if column not in BOOKKEEPING]
        return (*key, *self.outputs.values(), *BOOKKEEPING, LANDED_AT)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The table's columns that are unique together."""
        return tuple(self.key.values())

    def values(self, answer: Answer, info: LandingInfo, landed_at: Any) -> tuple[Any, ...]:
        """Return an answer's values, in the order of :attr:`columns`.

        :raises SinkError: the answer lacks a key column.
        """
        key = []
        for name, column in self.key.items():
            if column in BOOKKEEPING:
                continue
            if name not in answer.key:
                raise SinkError(
                    f"answer {answer.custom_id!r} has no key column {name!r}; it has: {sorted(answer.key)}. "
                    "The sink's key must be among the source's key columns"
                )
            key.append(cell(answer.key[name]))
        if self.whole:
            outputs = [cell(answer.output)]
        else:
            output = answer.output if isinstance(answer.output, Mapping) else {}
            outputs = [cell(output.get(name)) for name in self.outputs]
        return (
            *key,
            *outputs,
            answer.custom_id,
            answer.model,
            info.job_id,
            info.key.run_id,
            info.created_at,
            info.revision,
            answer.round,
            landed_at,
        )


def layout(
    key: Mapping[str, str], columns: Sequence[str] | Mapping[str, str] | None, schema: AnswerSchema | None
) -> Layout:
    """Return the columns of a sink.

    :param key: key column -> table column.
    :param columns: which properties to write; a mapping also renames them. None for all.
    :raises SinkError: a property is not in the schema, or two values go to the same column.
    """
    properties = object_properties(schema)
    known: Mapping[str, str] = {OUTPUT: "text"} if properties is None else properties
    outputs = {name: name for name in known} if columns is None else _as_mapping(columns)
    unknown = sorted(set(outputs) - set(known))
    if unknown:
        raise SinkError(f"the answers have no {', '.join(map(repr, unknown))}; they have: {', '.join(known)}")
    kinds = {column: known[name] for name, column in outputs.items()} | BOOKKEEPING
    key_only = [column for column in key.values() if column not in BOOKKEEPING]
    targets = [*key_only, *outputs.values(), *BOOKKEEPING, LANDED_AT]
    twice = sorted({column for column in targets if targets.count(column) > 1})
    if twice:
        raise SinkError(
            f"two values go to the column {', '.join(map(repr, twice))}; "
            "rename one with columns={property: column}"
        )
    return Layout(key, outputs, properties is None, kinds)


def cell(value: Any) -> Any:
    """Return a value as a column takes it: scalars as they are, everything else as JSON text.

    NUL becomes U+FFFD, in every database alike: PostgreSQL cannot hold it, and SQLite's tools cut there.
    """
    if isinstance(value, str):
        return value.replace("\0", "�") if "\0" in value else value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return dumps(_without_nul(value)).decode("utf-8")


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "�")
    if isinstance(value, Mapping):
        return {_without_nul(k): _without_nul(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nul(v) for v in value]
    return value


def _as_mapping(columns: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    return dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}


def object_properties(schema: AnswerSchema | None) -> dict[str, str] | None:
    """Return property -> kind of answers that are objects; None where answers are not taken apart."""
    if schema is None:
        return None
    whole = getattr(schema, "output_schema", None) or schema.json_schema
    top = _referred(whole, whole)
    properties = top.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None
    return {name: _kind(_referred(part, whole), whole) for name, part in properties.items()}


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


def _kind(part: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Return the kind of column for a property: text where it may hold several kinds or is no scalar."""
    kinds = {kind for option in _options(part, whole) for kind in _option_kinds(option)} - {"null"}
    if kinds == {"integer", "number"}:
        return "number"
    return _KINDS.get(kinds.pop(), "text") if len(kinds) == 1 else "text"


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
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "any"


def key_kinds(layout: Layout, answers: Sequence[Answer]) -> dict[str, str]:
    """Return the kinds of the key columns that the first answers show; text where they differ."""
    kinds = {}
    for name, column in layout.key.items():
        if column not in BOOKKEEPING:
            seen = {_value_kind(answer.key.get(name)) for answer in answers}
            kinds[column] = _KINDS.get(seen.pop(), "text") if len(seen) == 1 else "text"
    return kinds
