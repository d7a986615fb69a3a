"""Result files that a person downloaded: what is in one, told before anything is changed by it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.model import Batch, Row
from airflow_batch_llm.core.verdicts import Verdict

#: Lines of a file that are named; of the others only how many there are.
_NAMED = 5


def hint(batch: Batch) -> str:
    """Say how a person brings the results of a batch."""
    short = batch.batch_id.removeprefix(f"{batch.job_id}-")
    return f"batch-llm hand-in {batch.job_id[:12]} {short} --output FILE --reason …"


@dataclass(frozen=True, slots=True)
class HandedFile:
    """A file as a person hands it in.

    :param kind: ``output`` or ``error``, as the provider calls it; the rows of both are read alike.
    """

    kind: str
    local: Path


@dataclass
class Contents:
    """What is in a result file.

    :param found: wire ids of the batch that it has a row for.
    :param lines: lines that are not blank.
    :param foreign: rows of other batches.
    :param repeated: further rows for a request that it has one for.
    :param unreadable: numbers (from 1) of the lines that are no row, or none that can be understood.
    """

    size: int = 0
    sha256: str = ""
    found: set[str] = field(default_factory=set)
    lines: int = 0
    foreign: int = 0
    repeated: int = 0
    unreadable: list[int] = field(default_factory=list)

    def unreadable_lines(self) -> str:
        """Name the lines that cannot be read."""
        named = ", ".join(str(number) for number in self.unreadable[:_NAMED])
        more = len(self.unreadable) - _NAMED
        return f"{'line' if len(self.unreadable) == 1 else 'lines'} {named}" + (
            f" and {more} more" if more > 0 else ""
        )


def contents_of(local: Path, decode: Callable[[bytes], Row], ours: Collection[str]) -> Contents:
    """Read a file once, with the batch's own decoder.

    :param ours: the wire ids of the batch.
    :raises OSError: it cannot be read.
    """
    read = Contents()
    digest = hashlib.sha256()
    with local.open("rb") as file:
        for number, line in iter_lines(_digested(file, digest, read)):
            read.lines += 1
            row = decode(line)
            if row.wire_id and row.wire_id not in ours:
                read.foreign += 1
            elif not row.wire_id or row.verdict is Verdict.UNKNOWN:
                read.unreadable.append(number)
            elif row.wire_id in read.found:
                read.repeated += 1
            if row.wire_id in ours:
                read.found.add(row.wire_id)
    read.sha256 = digest.hexdigest()
    return read


def _digested(file: BinaryIO, digest: Any, read: Contents) -> Iterator[bytes]:
    for chunk in read_chunks(file):
        digest.update(chunk)
        read.size += len(chunk)
        yield chunk
