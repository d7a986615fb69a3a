"""Rows handed over by an upstream task, or written into the DAG file."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.declared import Context, Renderer, is_reference, names, plain_argument
from airflow_batch_llm.exceptions import ConfigurationError, SourceError
from airflow_batch_llm.sources.base import ResolvedSource, RowReader, Source
from airflow_batch_llm.sources.database import is_statement
from airflow_batch_llm.sources.files import file_reader, format_of
from airflow_batch_llm.sources.storable import storable_row

#: Largest list of rows, in bytes of JSON, that may travel through Airflow.
MAX_ROWS_BYTES = 48 * 1024

_REFERENCE_FIELDS = {"path", "format", "conn_id"}


class RowsSource(Source):
    """Rows of an upstream task: small lists as they are, everything else by reference.

    :param rows: a list of dicts of at most 48 KB as JSON; or the result of a task (``task.output``, the
        value of a ``@task`` call) that is such a list, a list of such lists (a mapped task), or names a
        file; or a reference to a file: its path, or ``{"path": …, "format": …, "conn_id": …}``. Paths are
        templated.
    :param key: the columns that name a row.
    :raises SourceError: the list is too large, or something else than rows.
    :raises ConfigurationError: a query is given in the place of rows.
    """

    def __init__(self, rows: Any, *, key: str | Sequence[str]) -> None:
        self.rows = rows
        self.key = names(key, "key")
        if not is_reference(rows) and not isinstance(rows, (str, Mapping)):
            self.rows = _checked_rows(rows, "the rows in the DAG file")
        elif isinstance(rows, Mapping):
            self.rows = _checked_reference(rows)
        elif isinstance(rows, str):
            _refuse_statement(rows)

    def serialize(self) -> dict[str, Any]:
        """Return the reference, or the number and digest of rows: rows are not for Airflow's tables."""
        if isinstance(self.rows, list):
            encoded = dumps([storable_row(row) for row in self.rows])
            rows: Any = {"count": len(self.rows), "sha256": hashlib.sha256(encoded).hexdigest()}
        else:
            rows = plain_argument(self.rows, "rows")
        return {"type": "rows", "rows": rows, "key": list(self.key)}

    def _templated(self) -> Iterable[Any]:
        return () if isinstance(self.rows, list) else (self.rows,)

    def resolve(self, context: Context) -> ResolvedSource:
        """Pull the upstream task's result or render the reference.

        :raises SourceError: what came is neither rows nor a reference, or is too large.
        """
        value = self.rows
        if is_reference(value):
            value = value.resolve(context)
            if value is None:
                raise SourceError("the upstream task returned nothing; return an empty list for no rows")
        elif not isinstance(value, list):
            value = Renderer(context)(value)
        if isinstance(value, (str, Mapping)):
            return self._file(value)
        return ListReader(_checked_rows(value, "the rows of the upstream task"), self.key)

    def _file(self, reference: str | Mapping[str, Any]) -> ResolvedSource:
        if isinstance(reference, str):
            _refuse_statement(reference)
            reference = {"path": reference}
        reference = _checked_reference(reference)
        return file_reader(reference["path"], reference.get("format"), self.key, reference.get("conn_id"))


class ListReader(RowReader):
    """Rows that are already here."""

    def __init__(self, rows: list[dict[str, Any]], key: Sequence[str]) -> None:
        super().__init__(key, "the list of rows")
        self._rows = rows

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the rows, numbered from 1: copies, since they are read again and a reader may change them."""
        yield from enumerate(map(copy.deepcopy, self._rows), 1)


def as_source(value: Any, key: str | Sequence[str] | None = None) -> Source:
    """Return a source as it is, and make one of rows, of a task's result or of a reference.

    :raises ConfigurationError: rows come without ``key``, or a query is given in their place.
    :raises SourceError: it is nothing that rows can come from.
    """
    if isinstance(value, Source):
        return value
    if isinstance(value, str):
        _refuse_statement(value)
    elif isinstance(value, Mapping):
        _checked_reference(value)
    if key is None:
        raise ConfigurationError("rows need a key: name the columns that make a row unique")
    return RowsSource(value, key=key)


def _refuse_statement(text: str) -> None:
    """:raises ConfigurationError: the text is a query or the name of a file with one, not a path to rows."""
    if text.strip().lower().endswith(".sql") or (is_statement(text) and format_of(text) is None):
        raise ConfigurationError(
            "the source is a query; give SqlSource(conn_id, sql, key=...). A string as source is the path of "
            "a file with rows"
        )


def _checked_reference(value: Mapping[str, Any]) -> dict[str, Any]:
    """:raises SourceError: a dict is given that is no reference to a file."""
    path = value.get("path")
    if set(value) - _REFERENCE_FIELDS or not (isinstance(path, str) or is_reference(path)) or path == "":
        raise SourceError(
            "the source is a dict; rows are a list of dicts, also where there is only one, and a reference "
            "to a file is a path or a dict with the fields path, format and conn_id"
        )
    return dict(value)


def _checked_rows(value: Any, what: str) -> list[dict[str, Any]]:
    """Return the rows as a list of dicts, lists in it (a mapped task's results) laid end to end."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise SourceError(f"{what} are a {type(value).__name__}, not a list of dicts")
    rows: list[dict[str, Any]] = []
    size = 0
    for item in value:
        for row in item if isinstance(item, (list, tuple)) else (item,):
            if not isinstance(row, Mapping):
                raise SourceError(f"{what}: {_no_dict(len(rows) + 1, item, row)}")
            rows.append(dict(row))
            size += len(dumps(storable_row(row))) + 1
            if size > MAX_ROWS_BYTES:
                raise SourceError(
                    f"{what} are more than {MAX_ROWS_BYTES // 1024} KB as JSON; write them to a JSON lines "
                    "file or a table, and hand over its path or use SqlSource"
                )
    return rows


def _no_dict(place: int, item: Any, row: Any) -> str:
    if row is item:
        return f"row {place} is a {type(row).__name__}, not a dict; give a list of dicts, one a row"
    return (
        f"row {place} is in a list of {type(row).__name__}, not of dicts. Give a list of dicts, one a row: "
        "the tuples of a cursor need their column names (or use SqlSource)"
    )
