"""Embedding vectors as they come: lists of numbers, or base64 of 32-bit floats, little endian."""

from __future__ import annotations

import binascii
import math
import sys
from array import array
from typing import Any

_WIDTH = 4  # bytes of a float


def vector_of(value: Any) -> list[float] | None:
    """Return a vector as a list of floats, empty where there is none.

    None: it is neither form, or holds what is no finite number.
    """
    if isinstance(value, str):
        return _unpacked(value)
    if not isinstance(value, list):
        return None
    if all(type(number) is float for number in value):
        numbers = value
    elif any(isinstance(number, bool) or not isinstance(number, (int, float)) for number in value):
        return None
    else:
        numbers = [float(number) for number in value]
    return numbers if all(map(math.isfinite, numbers)) else None


def _unpacked(text: str) -> list[float] | None:
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except (ValueError, binascii.Error):
        return None
    if len(data) % _WIDTH:
        return None
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    found = numbers.tolist()
    return found if all(map(math.isfinite, found)) else None
