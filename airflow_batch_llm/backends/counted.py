"""Results whose size nobody names: their rows, against the batch's counts, tell whether they came whole."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from airflow_batch_llm.backends.tolerant_json import loads_tolerant
from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.exceptions import TransferError

#: How often results that lack rows are read in one call.
_READS = 3


async def fetch_counted(
    fetch: Callable[[Path], Awaitable[None]], local: Path, *, rows: int, what: str
) -> None:
    """Fetch results to ``local``; where they lack rows they are read again.

    A stream that is cut on a line's end looks whole, and its rows would be paid for again. Two reads that
    bring the very same bytes are believed: then the rows are truly missing.

    :param fetch: writes the results to a path, whole as far as it can tell.
    :param rows: how many the provider counts; 0 where it does not say.
    :param what: how messages name the results.
    :raises TransferError: each read lacked rows, and each ended elsewhere.
    """
    seen: set[bytes] = set()
    found = 0
    for _ in range(_READS):
        await fetch(local)
        found = count_rows(local)
        if found >= rows:
            return
        digest = _digest(local)
        if digest in seen:
            return
        seen.add(digest)
    local.unlink()
    raise TransferError(f"{what}: {found} of {rows} rows arrived")


def count_rows(local: Path) -> int:
    """Return how many rows a file has: lines that are not blank, less a last one that is cut off."""
    found, last = 0, b""
    with local.open("rb") as file:
        for _, line in iter_lines(read_chunks(file)):
            found, last = found + 1, line
    return found - _is_cut(last)


def _is_cut(line: bytes) -> bool:
    """Say whether a line is no JSON, as half of one is not."""
    try:
        loads_tolerant(line)
    except (ValueError, RecursionError):
        return bool(line)
    return False


def _digest(local: Path) -> bytes:
    with local.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
