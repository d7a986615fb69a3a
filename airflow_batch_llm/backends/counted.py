"""Results whose size nobody names: their rows, against the batch's counts, tell whether they came whole."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.exceptions import TransferError

#: How often results that lack rows are read in one call, how many of these reads must bring the same to be
#: believed, and seconds between two reads.
_READS, _ALIKE, _PAUSE = 5, 3, 0.5


async def fetch_counted(
    fetch: Callable[[Path], Awaitable[None]],
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

    :param fetch: writes the results to a path, whole as far as it can tell.
    :param rows: how many the provider counts; 0 where it does not say.
    :param what: how messages name the results.
    :param pause: waits so many seconds.
    :raises TransferError: each read lacked rows, and they ended here and there, or in the middle of a row.
    """
    seen: Counter[bytes] = Counter()
    found = 0
    for read in range(_READS):
        if read:
            await pause(_PAUSE)
        await fetch(local)
        found, ends_whole = _counted(local)
        if found >= rows:
            return
        digest = _digest(local)
        seen[digest] += 1
        if seen[digest] == _ALIKE and ends_whole:
            return
    local.unlink()
    raise TransferError(f"{what}: {found} of {rows} rows arrived")


def count_rows(local: Path) -> int:
    """Return how many lines of a file are whole and not blank. The last one may be cut in its middle."""
    return _counted(local)[0]


def _counted(local: Path) -> tuple[int, bool]:
    """Return how many rows there are, and whether the last line is one."""
    found, last = 0, b""
    with local.open("rb") as file:
        for _, line in iter_lines(read_chunks(file)):
            found, last = found + 1, line
    whole = _is_whole(last)
    return (found if whole else found - 1), whole


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line or b"{}", strict=False)
    except UnicodeDecodeError:
        return line.rstrip().endswith(b"}")
    except (ValueError, RecursionError):
        return False
    return True


def _digest(local: Path) -> bytes:
    with local.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
