"""What a task asks of the rows of any source: redacted, with carried columns, several samples of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.declared import names
from airflow_batch_llm.exceptions import ConfigurationError, SourceError
from airflow_batch_llm.sources.keys import id_of
from airflow_batch_llm.sources.storable import storable

#: The key column that tells the samples of a row apart.
SAMPLE = "sample"

Redact = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RowOptions:
    """What a task asks of the rows of any source.

    :param carry: columns that stand beside the answers.
    :param samples: answers asked for each row; from 2 on ``sample`` (1, 2 …) is a further key column.
    :param redact: changes a row before anything of it is rendered or kept.
    :raises ConfigurationError: a column is named twice, or ``samples`` is not a number of at least 1.
    """

    carry: tuple[str, ...] = ()
    samples: int = 1
    redact: Redact | None = None

    def __post_init__(self) -> None:
        if self.carry:
            names(self.carry, "carry")
        if not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise ConfigurationError(f"samples must be a whole number of at least 1, not {self.samples!r}")

    def check_key(self, key: Sequence[str], what: str) -> None:
        """See that the columns fit the key of a source.

        :raises SourceError: a carried column is in the key already, or the column ``sample`` would be twice.
        """
        again = [column for column in self.carry if column in key]
        if again:
            raise SourceError(
                f"carry names {', '.join(map(repr, again))}, which is in the key of {what}; key columns "
                "stand beside every answer anyway"
            )
        if self.samples > 1 and SAMPLE in (*key, *self.carry):
            raise SourceError(
                f"{what} has a column {SAMPLE!r} in its key or in carry, and samples={self.samples} makes "
                "another of that name; rename it in the source"
            )


#: Rows as the source has them.
AS_THEY_ARE = RowOptions()


def redacted(redact: Redact, row: Mapping[str, Any], fixed: Collection[str], where: str) -> dict[str, Any]:
    """Return a row as ``redact`` gives it back. The row as it was goes no further, whatever happens.

    :param fixed: columns that must stay as they are.
    :param where: how the error names the row.
    :raises SourceError: it failed, gave back something else than a row, or changed a fixed column.
    """
    given = dict(row)
    try:
        found = redact(given)
    except Exception as e:
        fault = f"failed with {type(e).__name__}{_place(e)}"
    else:
        fault = _misshapen(found, row, fixed)
        if not fault:
            return dict(found)
    # Outside of the handler: the error of the function may quote the row, and would be shown along.
    raise SourceError(f"{where}: redact {fault}; nothing was sent")


def _misshapen(found: Any, row: Mapping[str, Any], fixed: Collection[str]) -> str:
    if not isinstance(found, Mapping):
        return f"returned a {type(found).__name__}, not the row"
    if not all(isinstance(name, str) for name in found):
        return "returned a row with a column whose name is not a string"
    for column in fixed:
        if column not in found or not _same(found[column], row[column]):
            return f"changed {column!r}, which names the row and must stay as it is"
    return ""


def _same(value: Any, before: Any) -> bool:
    return type(value) is type(before) and bool(value == before)


def _place(error: Exception) -> str:
    """Return file and line in which an error arose."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f" in line {frame.tb_lineno} of {os.path.basename(frame.tb_frame.f_code.co_filename)}"


class CarriedColumns:
    """The columns of one reading that stand beside the answers."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._unseen = set(columns)
        self._there: tuple[str, ...] = ()

    def of(self, row: Mapping[str, Any], where: str, *, fixed: bool) -> dict[str, Any]:
        """Return the carried columns of a row as JSON types; one that the row does not have is null.

        :param fixed: rows have all columns that there are; else one may be absent where it is null.
        :raises SourceError: there is no such column.
        """
        missing = [column for column in self._columns if column not in row]
        if missing and fixed:
            raise SourceError(_unknown(where, missing, row))
        if self._unseen:
            self._there = self._there or tuple(map(str, row))
            self._unseen.intersection_update(missing)
        return {column: _json_types(row.get(column)) for column in self._columns}

    def check(self, where: str) -> None:
        """:raises SourceError: a column was in no row at all."""
        if self._unseen and self._there:
            raise SourceError(_unknown(where, sorted(self._unseen), self._there))


def _unknown(where: str, columns: Sequence[str], there: Iterable[str]) -> str:
    unknown = ", ".join(map(repr, columns))
    return f"{where} has no column {unknown} to carry; it has: {', '.join(there)}"


def _json_types(value: Any) -> Any:
    return value if type(value) is int else msgspec.to_builtins(storable(value))


def sampled(draft: Draft, samples: int) -> Iterator[Draft]:
    """Yield a row's draft once for every sample. A row without a proper id stays one: it is refused."""
    if samples == 1 or not draft.custom_id or not isinstance(draft.custom_id, str):
        yield draft
        return
    for sample in range(1, samples + 1):
        key = {**draft.key, SAMPLE: sample}
        yield replace(draft, custom_id=id_of(key), key=key, sample=sample)
