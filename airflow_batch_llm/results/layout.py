"""Answers as columns: which there are, and of which type, decided by the answers themselves.

Parquet files and data frames have the columns that are described here; what an answer is on its line of
``part-….jsonl`` stands in ``core/drafts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.core.jsonl import dumps

#: Tokens of an answer, as ``usage_input`` and so on.
USAGE = ("input", "output", "cached", "cache_write", "reasoning")
#: The column of answers that are not taken apart.
OUTPUT = "output"
#: Columns that every file has, before and after those of the rows.
_FIRST = ("custom_id",)
_LAST = ("model", "finish_reason", "round", "origin", *(f"usage_{name}" for name in USAGE), "wire_id")

#: Types of columns.
TEXT, INTEGER, NUMBER, BOOLEAN, VECTOR = "text", "integer", "number", "boolean", "vector"
_SCALARS = (INTEGER, NUMBER, BOOLEAN)
_LARGEST = 2**63
#: Above this a whole number is not exact as a floating point number.
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    :param name: as files show it.
    :param kind: ``text``, ``integer`` (64 bits), ``number`` (double), ``boolean`` or ``vector`` (list of
        32-bit floats).
    :param part: where the value is: ``answer``, ``usage``, ``key``, ``carry``, ``property``, ``output``, or
        ``rest``: the output where it is no object although it should be.
    :param field: its name there.
    """

    name: str
    kind: str
    part: str
    field: str


class _Seen:
    """The kinds of value that a column was seen to hold."""

    def __init__(self) -> None:
        self.types: set[type] = set()
        self.beyond_exact = self.beyond_64_bits = False

    def note(self, value: Any) -> None:
        kind = type(value)
        self.types.add(kind)
        if kind is int and not -_EXACT <= value <= _EXACT:
            self.beyond_exact = True
            if not -_LARGEST <= value < _LARGEST:
                self.beyond_64_bits = True

    def kind(self, expected: str | None = None) -> str:
        """Return the type that holds all values as they are; text where there is no such.

        :param expected: what the output schema says; it stands where it can hold the values.
        """
        found = self.types - {type(None)}
        if not found or expected == TEXT:
            return expected or TEXT
        if found == {bool}:
            return BOOLEAN
        if found == {int} and not self.beyond_64_bits and expected != NUMBER:
            return INTEGER
        if found <= {int, float} and not self.beyond_exact:
            return NUMBER
        return TEXT


class Layout:
    """Collects what answers hold, then says which columns that makes.

    :param properties: property -> kind of structured answers, as the output schema says
        (``sinks/kinds.py``); None where answers are not taken apart.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self._expected: dict[str, str] | None = None
        if properties is not None:
            # Whatever else a database may have a type for (dates, JSON) is text here.
            self._expected = {n: kind if kind in _SCALARS else TEXT for n, kind in properties.items()}
        self._key: dict[str, _Seen] = {}
        self._carry: dict[str, _Seen] = {}
        self._properties: dict[str, _Seen] = {name: _Seen() for name in properties or ()}
        self._vectors = self._others = False

    def note(self, answer: Answer) -> None:
        """Take an answer into account."""
        _note_all(self._key, answer.key)
        _note_all(self._carry, answer.carry)
        output = answer.output
        if self._expected is not None and isinstance(output, dict):
            _note_all(self._properties, output)
        elif output is None:
            pass
        elif is_vector(output):
            self._vectors = True
        else:
            self._others = True

    def columns(self) -> list[Column]:
        """Return the columns in order: id, key, carried, output, bookkeeping.

        Of several with one name the first keeps it: key columns and carried ones, and properties of the
        answer, then begin with ``key_``, ``carry_`` or ``output_``.
        """
        whole = self._expected is None
        taken = {*_FIRST, *_LAST, *((OUTPUT,) if whole else ())}
        columns = [Column("custom_id", TEXT, "answer", "custom_id")]

        def add(part: str, prefix: str, seen: Mapping[str, _Seen], kinds: Mapping[str, str]) -> None:
            for field, values in seen.items():
                name = field
                while name in taken:
                    name = prefix + name
                taken.add(name)
                columns.append(Column(name, values.kind(kinds.get(field)), part, field))

        add("key", "key_", self._key, {})
        add("carry", "carry_", self._carry, {})
        add("property", "output_", self._properties, self._expected or {})
        if whole:
            columns.append(Column(OUTPUT, VECTOR if self._all_vectors() else TEXT, "output", ""))
        elif self._others or self._vectors:
            name = OUTPUT
            while name in taken:
                name = f"output_{name}"
            columns.append(Column(name, TEXT, "rest", ""))
        return [*columns, *_bookkeeping()]

    def _all_vectors(self) -> bool:
        return self._vectors and not self._others


def layout_of(answers: Iterable[Answer], properties: Mapping[str, str] | None) -> Layout:
    """Return the layout that holds all of the answers."""
    layout = Layout(properties)
    for answer in answers:
        layout.note(answer)
    return layout


def getter(column: Column) -> Callable[[Answer], Any]:
    """Return what takes a column's value from an answer: of the column's type, or None."""
    field, part, kind = column.field, column.part, column.kind
    fit = _FITS[kind]
    if part == "answer":
        return lambda answer: getattr(answer, field)
    if part == "usage":
        return lambda answer: answer.usage.get(field, 0)
    if part == "property":
        return lambda answer: fit(answer.output.get(field)) if isinstance(answer.output, dict) else None
    if part == "output":
        return lambda answer: fit(answer.output)
    if part == "rest":
        return lambda answer: None if isinstance(answer.output, dict) else fit(answer.output)
    return lambda answer: fit(getattr(answer, part).get(field))


def is_vector(value: Any) -> bool:
    """Say whether a value is a list of numbers."""
    return isinstance(value, list) and bool(value) and set(map(type, value)) <= {float, int}


def _note_all(seen: dict[str, _Seen], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if (found := seen.get(name)) is None:
            found = seen[name] = _Seen()
        found.note(value)


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return dumps(value).decode("utf-8")


def _as_number(value: Any) -> float | None:
    return None if value is None else float(value)


def _as_it_is(value: Any) -> Any:
    return value


_FITS: dict[str, Callable[[Any], Any]] = {
    TEXT: _as_text,
    INTEGER: _as_it_is,
    NUMBER: _as_number,
    BOOLEAN: _as_it_is,
    VECTOR: _as_it_is,
}


def _bookkeeping() -> list[Column]:
    plain = [Column(name, TEXT, "answer", name) for name in ("model", "finish_reason")]
    usage = [Column(f"usage_{name}", INTEGER, "usage", name) for name in USAGE]
    return [
        *plain,
        Column("round", INTEGER, "answer", "round"),
        Column("origin", TEXT, "answer", "origin"),
        *usage,
        Column("wire_id", TEXT, "answer", "wire_id"),
    ]
