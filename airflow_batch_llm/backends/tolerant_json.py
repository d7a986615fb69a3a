"""JSON as providers write it, which is not always JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")


def loads_tolerant(line: bytes) -> Any:
    """Parse what strict JSON forbids as well: NaN, raw control characters, broken UTF-8, half surrogates.

    Broken text is mended with U+FFFD: the answer was paid for, and the raw line is kept beside it. A byte
    order mark or white space around the line is ignored.

    :raises ValueError: it is no JSON even so.
    :raises RecursionError: it nests too deep.
    """
    line = line.strip().removeprefix(_BOM)
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return mended(json.loads(line.decode("utf-8", "replace"), strict=False))


def mended(value: Any) -> Any:
    """Return the value with U+FFFD for each half of a surrogate pair."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", name): mended(member) for name, member in value.items()}
    if isinstance(value, list):
        return [mended(member) for member in value]
    return value
