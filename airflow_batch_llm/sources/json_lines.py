"""JSON lines: one object a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from airflow_batch_llm.core.jsonl import iter_lines, loads_lenient, read_chunks
from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.sources.base import MAX_FAULTS, listed
from airflow_batch_llm.sources.storable import MAX_DEPTH, nested_deeper_than


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
