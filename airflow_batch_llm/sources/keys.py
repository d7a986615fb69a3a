"""How a row's key columns become its ``custom_id``.

The rule is fixed, because ids join a job to its answers, to the sink and to earlier runs:

- one column: its text; several: the JSON array of the parts, so that no two keys give the same id;
- a string stays as it is, byte for byte; whole numbers are decimal digits; ``true`` and ``false``;
- UUIDs in lower case with hyphens; dates and times in ISO 8601, those with a zone in UTC, so that the
  session's zone does not matter; decimals in plain digits as the database scales them;
- NULL gives no id (the engine refuses the row and names its place);
- a float, bytes or anything else is refused: its text is not stable enough to be an id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.declared import names
from airflow_batch_llm.exceptions import ConfigurationError, SourceError


class KeyColumns:
    """The key of a source.

    :raises SourceError: there is no column, or one is named twice.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        try:
            self.columns = names(columns, "key")
        except ConfigurationError as e:
            raise SourceError(e.args[0]) from None

    def check_columns(self, row: Iterable[str], what: str) -> None:
        """:raises SourceError: a key column is not among those of a row."""
        there = list(row)
        missing = [column for column in self.columns if column not in there]
        if missing:
            raise SourceError(
                f"{what} has no key column {', '.join(map(repr, missing))}; it has: {', '.join(there)}"
            )

    def of(self, row: Mapping[str, Any], where: str) -> tuple[str | None, dict[str, Any]]:
        """Return a row's id and its key columns as JSON types.

        :param where: how the error names the row's place.
        :raises SourceError: a key column is of a type that cannot be part of an id.
        """
        key: dict[str, Any] = {}
        for column in self.columns:
            value = row.get(column)
            if type(value) is not str and type(value) is not int:
                value = _stable(value, column, where)
            key[column] = value
        return id_of(key), key


def id_of(key: Mapping[str, Any]) -> str | None:
    """Return the id that key columns give, as :meth:`KeyColumns.of` found them."""
    if None in key.values():
        return None
    if len(key) == 1:
        return _text(next(iter(key.values())))
    try:
        return dumps(list(key.values())).decode("utf-8")
    except ValueError:
        # Half a surrogate pair: hand it on as it is, for the engine to refuse the row by its place.
        return "\x1f".join(map(_text, key.values()))


def _stable(value: Any, column: str, where: str) -> str | int | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite():
        return format(value, "f")
    raise SourceError(
        f"{where}: key column {column!r} is a {type(value).__name__}; "
        "ids are made of text, whole numbers, decimals, UUIDs, dates and times"
    )


def _text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
