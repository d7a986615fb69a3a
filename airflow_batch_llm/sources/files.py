"""Rows in files: JSON lines, CSV and Parquet, one file or many, local or on object storage."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from airflow_batch_llm.declared import (
    Context,
    Renderer,
    conn_id_argument,
    names,
    path_argument,
    plain_argument,
)
from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.sources.base import RowReader, Source
from airflow_batch_llm.sources.csv_records import csv_header
from airflow_batch_llm.sources.json_lines import json_objects
from airflow_batch_llm.sources.locations import has_wildcards, matching_files, open_input
from airflow_batch_llm.sources.parquet import open_parquet

FORMATS = ("jsonl", "csv", "parquet")
_PACKED = ".gz"
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_UNITS = {"jsonl": "line", "csv": "line", "parquet": "row"}


class FileSource(Source):
    """Rows in a file, or in all files that a pattern names, read as a stream.

    JSON lines: one object a line; a byte order mark, CRLF, blank lines and a missing last newline are
    tolerated, as are NaN, Infinity and half surrogate pairs. CSV: RFC 4180 with a header line, UTF-8,
    every value text. Parquet: lists and structs are lists and dicts, timestamps are datetimes (nanoseconds
    are cut to microseconds), decimals are decimals, binary is bytes.

    :param path: local path or address (``s3://bucket/{{ ds }}/tickets.jsonl``), or a pattern of several files
        (``s3://bucket/{{ ds }}/part-*.parquet``): ``*`` and ``?`` within a folder, ``**`` through all folders
        below. Templated.
    :param format: ``jsonl``, ``csv`` or ``parquet``; where not given, by the suffix of each file:
        ``.jsonl``, ``.ndjson`` and ``.csv``, each also with ``.gz``; ``.parquet`` and ``.pq``.
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
        if format is not None and format not in FORMATS:
            raise SourceError(f"file format {format!r} is not known; there are {_listed(FORMATS)}")
        self.path = path_argument(path, "FileSource's path")
        self.format = format
        self.key = names(key, "key")
        self.conn_id = None if conn_id is None else conn_id_argument(conn_id, "FileSource's conn_id")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as given."""
        return {
            "type": "file",
            "path": plain_argument(self.path, "FileSource's path"),
            "format": self.format,
            "key": list(self.key),
            "conn_id": self.conn_id,
        }

    def _templated(self) -> Iterable[Any]:
        return (self.path,)

    def resolve(self, context: Context) -> RowReader:
        """Render the path. :raises SourceError: it is of one file, whose format cannot be told from it."""
        path = Renderer(context).text(self.path, "the source's path")
        return file_reader(path, self.format, self.key, self.conn_id)


def file_reader(path: str, format: str | None, key: Sequence[str], conn_id: str | None) -> RowReader:
    """Return the reader for a path or a pattern.

    :raises SourceError: it is a file's, whose format is neither given nor known by its suffix.
    """
    if has_wildcards(path):
        return FilesReader(path, format, key, conn_id)
    return FileReader(path, format or _told_format(path), key, conn_id)


def format_of(path: str) -> str | None:
    """Return the format that a file's suffix tells, None where it tells none."""
    return next((name for suffix, name in _SUFFIXES.items() if path.endswith(suffix)), None)


def _told_format(path: str) -> str:
    format = format_of(path)
    if format is None:
        raise SourceError(
            f"cannot tell the format of {path} from its name; give format= one of {_listed(FORMATS)}"
        )
    return format


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(map(repr, words[:-1]))} and {words[-1]!r}"


class FileReader(RowReader):
    """Rows of one file."""

    def __init__(self, path: str, format: str, key: Sequence[str], conn_id: str | None) -> None:
        super().__init__(key, path, _UNITS[format])
        self.fixed_columns = format != "jsonl"
        self._path, self._format, self._conn_id = path, format, conn_id

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the rows with their lines, or their numbers in a Parquet file."""
        return self.needed_rows(None)

    def needed_rows(
        self, columns: frozenset[str] | None
    ) -> Generator[tuple[int, Mapping[str, Any]], None, None]:
        """Yield the rows; of a Parquet file with these columns, if it has them all.

        :raises SourceError: there is no such file, or it is not of its format; lines that are at fault, the
            first 20 named.
        """
        if self._format == "parquet":
            with open_parquet(self._path, self._conn_id) as parquet:
                self._key.check_columns(parquet.columns, self._what)
                yield from parquet.rows(columns)
            return
        with open_input(self._path, self._conn_id) as file:
            if self._format == "jsonl":
                yield from json_objects(file, self._path)
                return
            header, records = csv_header(file, self._path)
            if header:
                self._key.check_columns(header, self._what)
            yield from records


class FilesReader(RowReader):
    """Rows of all files that a pattern names, one file after the other. Places count on from file to file."""

    def __init__(self, pattern: str, format: str | None, key: Sequence[str], conn_id: str | None) -> None:
        super().__init__(key, pattern)
        self._pattern, self._format, self._conn_id = pattern, format, conn_id
        self._readers: list[FileReader] = []
        #: The place before the first row of each reader.
        self._offsets: list[int] = []

    @property
    def id_origin(self) -> str:
        """Say what the ids are made of and what a draft's ``line`` counts, for errors about ids."""
        return super().id_origin.removesuffix(", counted by row")

    def place_name(self, place: int) -> str:
        """Return file and line, or row, of a place that was read."""
        number = bisect_left(self._offsets, place) - 1
        reader = self._readers[number]
        return f"{reader.what}, {reader.place_name(place - self._offsets[number])}"

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the rows of all files in the order of their names; none where no file matches."""
        return self.needed_rows(None)

    def needed_rows(self, columns: frozenset[str] | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the rows of all files in the order of their names; none where no file matches.

        :raises SourceError: as for one file; a file's format cannot be told.
        """
        self._readers, self._offsets = [], []
        readers = [
            FileReader(path, self._format or _told_format(path), self._key.columns, self._conn_id)
            for path in matching_files(self._pattern, self._conn_id)
        ]
        place = 0
        for reader in readers:
            offset = place
            self._readers.append(reader)
            self._offsets.append(offset)
            self.fixed_columns = reader.fixed_columns
            with closing(reader.needed_rows(columns)) as rows:
                for number, row in rows:
                    place = offset + number
                    yield place, row
