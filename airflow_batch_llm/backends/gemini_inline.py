"""Requests that go with the create call, and results that come in the batch itself: lines of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.backends.tolerant_json import mended
from airflow_batch_llm.core import jsonl


class _Line(msgspec.Struct):
    key: str
    request: msgspec.Raw


_decode_line = msgspec.json.Decoder(_Line).decode


def inline_requests(lines: Path) -> list[dict[str, Any]]:
    """Return the requests of an upload's lines in the form that a create call has them in."""
    with lines.open("rb") as file:
        found = [_decode_line(line) for _, line in jsonl.iter_lines(jsonl.read_chunks(file))]
    return [{"request": one.request, "metadata": {"key": one.key}} for one in found]


def write_inlined(rows: Sequence[Any], local: Path) -> None:
    """Write results as one JSON line each, as the batch shows them."""
    with local.open("wb", buffering=1 << 20) as file:
        for row in rows:
            file.write(_encode(row) + b"\n")


def _encode(row: Any) -> bytes:
    """Encode a result; half a surrogate pair becomes U+FFFD, so that no line is lost for it."""
    try:
        return jsonl.dumps(row)
    except ValueError:
        return jsonl.dumps(mended(row))
