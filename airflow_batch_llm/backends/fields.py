"""Values as providers send them, read with patience: the types of fields of their objects.

Met in the wild: absent, null, "" and ``{}`` ids; ISO and unix times, in seconds and milliseconds; numbers as
strings; null counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

_MILLISECONDS_FROM = 1e11  # as seconds that is the year 5138


def _text(value: Any) -> str | None:
    """A non-empty string, else None: an absent file id may be null, "" or ``{}``."""
    return value if isinstance(value, str) and value.strip() else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None else None


def _time(value: Any) -> float | None:
    """Seconds since the epoch from a unix time (number or digits, s or ms) or an ISO 8601 text."""
    number = _number(value)
    if number is not None:
        return number / 1000 if number > _MILLISECONDS_FROM else number
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _strings(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): text if isinstance(text, str) else str(text) for name, text in value.items()}


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): max(_whole(count) or 0, 0) for name, count in value.items()}


#: A non-empty string, else None.
Text = Annotated[str | None, BeforeValidator(_text)]
#: Seconds since the epoch.
Time = Annotated[float | None, BeforeValidator(_time)]
Whole = Annotated[int | None, BeforeValidator(_whole)]
#: Names -> counts, never negative.
Counts = Annotated[dict[str, int], BeforeValidator(_counts)]
Strings = Annotated[dict[str, str], BeforeValidator(_strings)]
