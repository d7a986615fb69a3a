"""CSV by RFC 4180 with a header line, in UTF-8. Every value is text; an empty field is the empty string."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.sources.base import MAX_FAULTS, listed

#: Longest field in characters. Python's own default of 131,072 is shorter than many documents.
_MAX_FIELD = 1 << 26


def csv_header(file: BinaryIO, path: str) -> tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]:
    """Return the columns and the records of an open CSV file, each with the line on which it begins.

    A file without a line has neither. The records raise SourceError for those that are ragged; the file is
    then read on, up to 20 of them, so that they can be mended together.

    :raises SourceError: broken quoting, other text than UTF-8, two columns of one name.
    """
    records = _csv_records(file, path)
    _, header = next(records, (1, []))
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise SourceError(f"{path}: the header names {', '.join(map(repr, twice))} more than once")
    return header, _rows(records, header, path)


def _rows(
    records: Iterator[tuple[int, list[str]]], header: list[str], path: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    faults: list[str] = []
    for number, record in records:
        if len(record) != len(header):
            faults.append(f"line {number} has {len(record)} fields instead of {len(header)}")
            if len(faults) > MAX_FAULTS:
                break
        elif not faults:
            yield number, dict(zip(header, record, strict=True))
    if faults:
        more = len(faults) > MAX_FAULTS
        raise SourceError(f"{path}: {listed(faults[:MAX_FAULTS], more=more)}")


def _csv_records(file: BinaryIO, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line on which the record begins, fields)`` of every record that is not a blank line."""
    if csv.field_size_limit() < _MAX_FIELD:
        csv.field_size_limit(_MAX_FIELD)
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
