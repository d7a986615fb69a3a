"""JSON lines, byte for byte.

Byte 0x0A ends a line and nothing else does: U+2028, U+0085, form feeds and carriage returns are data
(``str.splitlines`` and text-mode files get this wrong). A byte order mark before a line (files laid end
to end have it in the middle), blank lines and a carriage return before the 0x0A are dropped on reading
and never written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20

_encoder = msgspec.json.Encoder()
_sorted_encoder = msgspec.json.Encoder(order="sorted")
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def iter_lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line number from 1, line without its end)`` of every line that is not blank.

    :param chunks: the file's bytes in pieces of any size (down to one byte).
    """
    number = 0
    tail: list[bytes] = []
    for chunk in chunks:
        if not chunk:
            continue
        pieces = chunk.split(b"\n")
        if len(pieces) == 1:
            tail.append(chunk)
            continue
        if tail:
            tail.append(pieces[0])
            pieces[0] = b"".join(tail)
            tail.clear()
        last = pieces.pop()
        if last:
            tail.append(last)
        for piece in pieces:
            number += 1
            line = piece.removeprefix(_BOM).strip(b" \t\r")
            if line:
                yield number, line
    if tail:
        line = b"".join(tail).removeprefix(_BOM).strip(b" \t\r")
        if line:
            yield number + 1, line


def read_chunks(file: Any, size: int = _CHUNK) -> Iterator[bytes]:
    """Yield the bytes of an open binary file in pieces of ``size`` bytes."""
    while chunk := file.read(size):
        yield chunk


def loads(line: bytes) -> Any:
    """Parse one line of strict JSON.

    :raises ValueError: the line is not JSON (``msgspec.DecodeError`` is a ``ValueError``).
    """
    return _decoder.decode(line)


def loads_lenient(line: bytes) -> Any:
    """Parse a line from outside that may hold what strict JSON forbids: NaN, Infinity, half a surrogate pair.

    :raises ValueError: the line is not JSON even so, or not UTF-8.
    """
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return json.loads(line.decode("utf-8"))


def dumps(value: Any) -> bytes:
    """Encode as strict JSON in UTF-8, without an end of line.

    Non-finite numbers become null: JSON has none.

    :raises ValueError: the value holds half a surrogate pair or a type JSON does not have.
    """
    return _encode(_encoder, value)


def dumps_canonical(value: Any) -> bytes:
    """Encode with sorted keys and no white space: equal values give equal bytes.

    :raises ValueError: as :func:`dumps`.
    """
    return _encode(_sorted_encoder, value)


def _encode(encoder: msgspec.json.Encoder, value: Any) -> bytes:
    try:
        return encoder.encode(value)
    except UnicodeEncodeError as e:
        raise ValueError("holds half a surrogate pair, which UTF-8 cannot encode") from e
    except (TypeError, msgspec.MsgspecError) as e:
        raise ValueError(str(e)) from e


def has_nonfinite(value: Any) -> bool:
    """Say whether a NaN or an infinity is anywhere in ``value``."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(has_nonfinite(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(has_nonfinite(v) for v in value)
    return False
