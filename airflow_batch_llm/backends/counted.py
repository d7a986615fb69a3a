"""Results whose size nobody names: their rows, against the batch's counts, tell whether they came whole."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.model import RemoteBatch, ResultFile
from airflow_batch_llm.exceptions import TransferError

#: How often results that lack rows are read in one call, how many of these reads must bring the same to be
#: believed, and seconds between two reads.
_READS, _ALIKE, _PAUSE = 5, 3, 0.5

#: Reads an object without making its members: a quick look at lines that may be many.
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def fetch_counted(
    fetch: Callable[[Path], Awaitable[bool | None]],
    local: Path,
    *,
    rows: int,
    what: str,
    pause: Callable[[float], Awaitable[None]],
) -> None:
    """Fetch results to ``local``; where they lack rows they are read again, a little later.

    A stream that is cut on a line's end looks whole, and its rows would be paid for again. Three reads that
    bring the very same bytes are believed: then the rows are truly missing. Two are not enough: streams of
    rows of equal length that break off half-way end at the same row. Nor are any that end in the middle of a
    row: something cuts them off at one place.

    :param fetch: writes the results to a path, whole as far as it can tell; True: it knows that they are.
    :param rows: how many the provider counts; 0 where it does not say.
    :param what: how messages name the results.
    :param pause: waits so many seconds.
    :raises TransferError: each read lacked rows, and they ended here and there, or in the middle of a row.
    """
    seen: Counter[bytes] = Counter()
    found = 0
    try:
        for read in range(_READS):
            if read:
                await pause(_PAUSE)
            if await fetch(local) or not rows:
                return
            found, ends_whole = await asyncio.to_thread(_counted, local)
            if found >= rows:
                return
            digest = await asyncio.to_thread(_digest, local)
            seen[digest] += 1
            if seen[digest] == _ALIKE and ends_whole:
                return
        raise TransferError(f"{what}: {found} of {rows} rows arrived")
    except BaseException:
        # A read before may have left what is not believed.
        local.unlink(missing_ok=True)
        raise


def rows_of(batch: RemoteBatch, file: ResultFile) -> int:
    """Return how many rows a result file holds at least by the batch's own counts; 0 where they say nothing.

    Rows that failed are in the error file; without one they are counted into the output, where some servers
    put them. Those that are in neither cost two more reads: what lacks rows is believed in the end.
    """
    failed = batch.counts.get("failed", 0)
    if file.kind == "error":
        return failed
    apart = any(other.kind == "error" for other in batch.files)
    return batch.counts.get("completed", 0) + (0 if apart else failed)


def count_rows(local: Path) -> int:
    """Return how many lines of a file are rows: JSON objects. The last one may be cut in its middle."""
    return _counted(local)[0]


def holds_rows_only(local: Path) -> bool:
    """Say whether each line of a file that is not blank is a JSON object."""
    with local.open("rb") as file:
        return all(_is_row(line) for _, line in iter_lines(read_chunks(file)))


def _counted(local: Path) -> tuple[int, bool]:
    """Return how many rows there are, and whether the last line is whole."""
    found, last = 0, b""
    with local.open("rb") as file:
        for _, line in iter_lines(read_chunks(file)):
            found, last = found + _is_row(line), line
    return found, not last or _is_row(last) or _is_json(last)


def _is_row(line: bytes) -> bool:
    """Say whether a line is a JSON object, such as rows are: a page's line is none."""
    if not (line.startswith(b"{") and line.endswith(b"}")):
        return False
    try:
        _objects.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _is_json(line)
    return True


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line, strict=False)
    except (UnicodeDecodeError, RecursionError):
        # Reading the rows mends the one, and dead-letters the other.
        return line.endswith(b"}")
    except ValueError:
        return False
    return True


def _digest(local: Path) -> bytes:
    with local.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
