"""Values as columns take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.exceptions import SinkError
from airflow_batch_llm.sinks.kinds import ISO_TIME

Cell = Callable[[Any], Any]


def cell(value: Any) -> Any:
    """Return a value as most columns take it: scalars as they are, everything else as JSON text.

    NUL becomes U+FFFD, in every database alike: PostgreSQL cannot hold it, and SQLite's tools cut there.
    """
    if isinstance(value, str):
        return value.replace("\0", "\ufffd") if "\0" in value else value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return json_text(value)


def json_text(value: Any) -> str | None:
    """Return a value as JSON text, for a column that checks it; None stays None."""
    return None if value is None else dumps(without_nul(value)).decode("utf-8")


def json_part(value: Any) -> Any:
    """Return a value so that it becomes a part of a JSON document as it is."""
    return None if value is None else msgspec.Raw(dumps(without_nul(value)))


def whole_number(value: Any) -> Any:
    """Return whole numbers without their fraction: in JSON 2.0 is an integer as well."""
    return int(value) if isinstance(value, float) and value.is_integer() else cell(value)


def moment(form: Callable[[datetime], str]) -> Cell:
    """Return the conversion of points in time: those written in ISO 8601 take one form, in UTC.

    What names no offset is taken for UTC. Everything else stays as it is.

    :param form: how a point in time is written.
    """

    def convert(value: Any) -> Any:
        found = _parsed(value)
        return cell(value) if found is None else form(found)

    return convert


def iso(value: datetime) -> str:
    """Write a point in time at a fixed width, so that text orders as time does."""
    return value.isoformat(timespec="microseconds")


def iso_without_offset(value: datetime) -> str:
    """Write a point in time (UTC) as MySQL and MariaDB read it."""
    return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def version_text(column: str) -> Cell:
    """Return the conversion of versions that go to a text column.

    :raises SinkError: (when called) the version is a number, which does not order as text.
    """
    as_time = moment(iso)

    def convert(value: Any) -> Any:
        if isinstance(value, (int, float)):
            raise SinkError(
                f"the versions for the column {column!r} are numbers but the column holds text, in which 10 "
                "comes before 9; make it a number"
            )
        return as_time(value)

    return convert


def without_nul(value: Any) -> Any:
    """Return a JSON value with every NUL in its texts replaced."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {without_nul(k): without_nul(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nul(v) for v in value]
    return value


def size_of(value: Any) -> int:
    """Return about how many bytes a value takes in a statement."""
    if isinstance(value, str):
        return len(value)
    return memoryview(value).nbytes if isinstance(value, msgspec.Raw) else 8


def _parsed(value: Any) -> datetime | None:
    if not isinstance(value, str) or not ISO_TIME.fullmatch(value):
        return None
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
