"""What ``nightly_summaries`` takes out of a transcript before it leaves the house."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")


def without_addresses(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with every e-mail address in its transcript replaced."""
    return {**row, "transcript": _ADDRESS.sub("[address]", row["transcript"])}
