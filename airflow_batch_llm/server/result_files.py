"""Turns the engine's parts into finished result files: as they are, or as a scenario wants them."""

from __future__ import annotations

import random
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from airflow_batch_llm.server.scenario import Results
from airflow_batch_llm.server.wire import Dialect

_BOM = b"\xef\xbb\xbf"


def write_result_file(part: Path, target: Path, wanted: Results, dialect: Dialect, *, lost: int = 0) -> None:
    """Write the finished file of a part. Memory holds one number a row, never the rows.

    :param lost: so many rows, the first ones, are left out.

    The same part and wishes give the same bytes, so that a killed server can do it again.
    """
    if not lost and not _is_odd(wanted):
        shutil.copyfile(part, target)
        return
    with part.open("rb") as source, target.open("wb") as file:
        offsets = _offsets(source)[lost:]
        _order(offsets, wanted)
        if wanted.bom:
            file.write(_BOM)
        end = b"\r\n" if wanted.crlf else b"\n"
        pending = b""
        for line in _lines(source, offsets, wanted, dialect):
            file.write(pending)
            file.write(line)
            pending = end
        if wanted.broken_last_line and offsets:
            file.write(pending)
            broken = _line_at(source, offsets[0])
            file.write(broken[: len(broken) // 2])
        elif not wanted.no_last_newline:
            file.write(pending)


def _is_odd(wanted: Results) -> bool:
    return wanted.model_copy(update={"late": 0, "failures_in_output": False}) != Results()


def _offsets(source: BinaryIO) -> array[int]:
    found = array("Q")
    position = 0
    for line in source:
        found.append(position)
        position += len(line)
    return found


def _order(offsets: array[int], wanted: Results) -> None:
    """Repeat the first rows at the end, then shuffle."""
    offsets.extend(offsets[: wanted.repeat])
    if wanted.shuffle is not None:
        random.Random(wanted.shuffle).shuffle(offsets)


def _lines(source: BinaryIO, offsets: array[int], wanted: Results, dialect: Dialect) -> Iterator[bytes]:
    """Yield the rows with what does not belong between them: each oddity after one row more than the last."""
    for index, offset in enumerate(offsets):
        line = _line_at(source, offset)
        yield line
        if index < wanted.blank_lines:
            yield b""
        if index < wanted.foreign:
            yield dialect.with_custom_id(line, f"foreign-{index}")
        if index < wanted.no_id:
            yield dialect.with_custom_id(line, None)


def _line_at(source: BinaryIO, offset: int) -> bytes:
    source.seek(offset)
    return source.readline().removesuffix(b"\n")
