"""Rows in files: JSON lines and CSV, plain or gzipped, local or on object storage."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from airflow_batch_llm.core.jsonl import iter_lines, loads_lenient, read_chunks
from airflow_batch_llm.declared import Context, Renderer, conn_id_argument, names, path_argument
from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.sources.base import (
    MAX_DEPTH,
    MAX_FAULTS,
    RowReader,
    Source,
    listed,
    nested_deeper_than,
)
from airflow_batch_llm.sources.locations import open_input

_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}

#: Longest CSV field in characters. Python's own default of 131,072 is shorter than many documents.
_MAX_CSV_FIELD = 1 << 26


class FileSource(Source):
    """Rows in a file, read as a stream.

    JSON lines: one object a line; a byte order mark, CRLF, blank lines and a missing last newline are
    tolerated, as are NaN, Infinity and half surrogate pairs. CSV: RFC 4180 with a header line, UTF-8,
    every value text.

    :param path: local path or address (``s3://bucket/{{ ds }}/tickets.jsonl``). Templated.
    :param format: ``jsonl`` or ``csv``; taken from the suffix (``.jsonl``, ``.ndjson``, ``.csv``, each
        also with ``.gz``) where not given.
    :param key: the columns that name a row.
    :param conn_id: Airflow connection of the storage.
    """

    def __init__(
        self,
        path: str,
        format: str | None = None,
        *,
        key: str | Sequence[str],
        conn_id: str | None = None,
    ) -> None:
        if format not in (None, "jsonl", "csv"):
            raise SourceError(f"file format {format!r} is not known; there are 'jsonl' and 'csv'")
        self.path = path_argument(path, "FileSource's path")
        self.format = format
        self.key = names(key, "key")
        self.conn_id = None if conn_id is None else conn_id_argument(conn_id, "FileSource's conn_id")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as given."""
        return {
            "type": "file",
            "path": self.path,
            "format": self.format,
            "key": list(self.key),
            "conn_id": self.conn_id,
        }

    def resolve(self, context: Context) -> RowReader:
        """Render the path. :raises SourceError: the format cannot be told from it."""
        path = Renderer(context).text(self.path, "the source's path")
        return file_reader(path, self.format, self.key, self.conn_id)


def file_reader(path: str, format: str | None, key: Sequence[str], conn_id: str | None) -> RowReader:
    """Return the reader for a file. :raises SourceError: its format is neither given nor known by suffix."""
    format = format or format_of(path)
    if format == "jsonl":
        return JsonLinesReader(path, key, conn_id)
    if format == "csv":
        return CsvReader(path, key, conn_id)
    raise SourceError(f"cannot tell the format of {path} from its name; give format='jsonl' or 'csv'")


def format_of(path: str) -> str | None:
    """Return the format that a file's suffix tells, None where it tells none."""
    plain = path.removesuffix(".gz")
    return next((name for suffix, name in _FORMATS.items() if plain.endswith(suffix)), None)


class JsonLinesReader(RowReader):
    """Rows of a JSON lines file."""

    def __init__(self, path: str, key: Sequence[str], conn_id: str | None) -> None:
        super().__init__(key, path, "line")
        self._path, self._conn_id = path, conn_id

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the lines' objects. :raises SourceError: lines that are no objects, the first 20 named."""
        with open_input(self._path, self._conn_id) as file:
            yield from json_objects(file, self._path)


def json_objects(file: BinaryIO, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line from 1, object)`` of an open JSON lines file.

    :raises SourceError: a line is not a JSON object. The file is then read on, up to 20 such lines, so
        that they can be mended together.
    """
    faults: list[str] = []
    for number, line in iter_lines(read_chunks(file)):
        value, fault = _object(line)
        if fault:
            faults.append(f"line {number} {fault}")
            if len(faults) > MAX_FAULTS:
                break
        elif not faults:
            yield number, value
    if faults:
        raise SourceError(f"{path}: {listed(faults[:MAX_FAULTS], more=len(faults) > MAX_FAULTS)}")


def _object(line: bytes) -> tuple[dict[str, Any], str]:
    """Return a line's object, or what is wrong with the line."""
    try:
        value = loads_lenient(line)
    except RecursionError:
        return {}, "is nested too deeply"
    except ValueError:
        return {}, "is not JSON"
    if not isinstance(value, dict):
        return {}, "is not an object"
    if line.count(b"{") + line.count(b"[") > MAX_DEPTH and nested_deeper_than(value, MAX_DEPTH):
        return {}, "is nested too deeply"
    return value, ""


class CsvReader(RowReader):
    """Rows of a CSV file. Every value is text; an empty field is the empty string."""

    def __init__(self, path: str, key: Sequence[str], conn_id: str | None) -> None:
        super().__init__(key, path, "line")
        self._path, self._conn_id = path, conn_id

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the records. :raises SourceError: broken quoting, other text than UTF-8, ragged records."""
        with open_input(self._path, self._conn_id) as file:
            header: list[str] | None = None
            faults: list[str] = []
            for number, record in _csv_records(file, self._path):
                if header is None:
                    header = self._checked_header(record)
                elif len(record) != len(header):
                    faults.append(f"line {number} has {len(record)} fields instead of {len(header)}")
                    if len(faults) > MAX_FAULTS:
                        break
                elif not faults:
                    yield number, dict(zip(header, record, strict=True))
            if faults:
                more = len(faults) > MAX_FAULTS
                raise SourceError(f"{self._path}: {listed(faults[:MAX_FAULTS], more=more)}")

    def _checked_header(self, header: list[str]) -> list[str]:
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise SourceError(f"{self._path}: the header names {', '.join(map(repr, twice))} more than once")
        return header


def _csv_records(file: BinaryIO, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line on which the record begins, fields)`` of every record that is not a blank line."""
    if csv.field_size_limit() < _MAX_CSV_FIELD:
        csv.field_size_limit(_MAX_CSV_FIELD)
    # Strict: otherwise a quote that is never closed swallows the rest of the file without a word.
    reader = csv.reader(_text_lines(file, path), strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as e:
            raise SourceError(f"{path}: the record that begins on line {begin} is not CSV: {e}") from None
        if record:
            yield begin, record


def _text_lines(file: Iterable[bytes], path: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            raise SourceError(f"{path}: line {number} is not UTF-8") from None
