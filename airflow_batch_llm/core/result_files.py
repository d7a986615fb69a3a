"""Result files, read row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.core.files import encode_line, iter_requests_as
from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.model import Batch, Row
from airflow_batch_llm.core.tools import Tools


def iter_raw_rows(tools: Tools, batch: Batch, batch_files: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Decode the stored result files, line by line."""
    for file in batch_files:
        opened = tools.workspace.open_checked(
            f"{tools.root}/{file['path']}", int(file["bytes"]), str(file["sha256"])
        )
        with opened as stream:
            yield from _decoded(stream, tools.decoder_of(batch))


def rows_in(local: Path, decode: Callable[[bytes], Row]) -> Iterator[Row]:
    """Decode a file that is not in the workspace (yet), line by line."""
    with local.open("rb") as stream:
        yield from _decoded(stream, decode)


def _decoded(stream: Any, decode: Callable[[bytes], Row]) -> Iterator[Row]:
    for _, line in iter_lines(read_chunks(stream)):
        yield decode(line)


class _WireId(msgspec.Struct, gc=False):
    """The part of a request that the provider sees of it."""

    wire_id: str


_ids = msgspec.json.Decoder(_WireId)


def wire_ids_of(tools: Tools, batch: Batch) -> set[str]:
    """Return what the requests of a batch are called at the provider."""
    return {request.wire_id for request in iter_requests_as(_ids, tools.workspace, tools.root, batch)}


def row_digest(row: Row) -> bytes:
    """Digest what a row says, whatever its id: decides between rows of the same verdict."""
    return hashlib.sha256(encode_line(msgspec.structs.replace(row, wire_id=""))).digest()
