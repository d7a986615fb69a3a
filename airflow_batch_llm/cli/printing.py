"""How commands print: columns for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from typing import Any

#: A code is a short token; whatever else a provider puts there may quote what it was asked.
_CODE = re.compile(r"[A-Za-z0-9_.\-]{0,64}")


@contextmanager
def logs_apart() -> Iterator[None]:
    """Let what Airflow logs outside of its own processes go to standard error: it writes to the other."""
    with redirect_stdout(sys.stderr):
        yield


def positive(text: str) -> int:
    """Read a whole number above 0, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON; times are seconds since the epoch")


def add_limit(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--limit``."""
    parser.add_argument(
        "--limit", type=positive, default=50, metavar="N", help=f"at most N {what} (default: %(default)s)"
    )


def print_json(value: Any) -> None:
    """Print a value as JSON, in ASCII."""
    print(json.dumps(value, indent=2))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print columns, each as wide as its widest cell."""
    lines = [list(titles), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_found(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print what was looked for as columns; that there is nothing is told on standard error."""
    if rows:
        print_table(titles, rows)
    else:
        print("none", file=sys.stderr)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one a line; what is not known is left out."""
    for name, value in facts:
        if value is not None and value != "":
            print(f"{name + ':':<13}{plain(value)}")


def plain(value: Any) -> str:
    """Write a cell: one line, without characters that a terminal would act on."""
    if value is None or value == "":
        return "-"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(value))


def code_only(code: str | None) -> str | None:
    """Return a code, or ``(not a code)`` where it is a text."""
    return code if code is None or _CODE.fullmatch(code) else "(not a code)"


def when(seconds: float | None) -> str | None:
    """Write a time of the ledger in UTC, to the second."""
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def first(found: Sequence[Any], limit: int) -> Sequence[Any]:
    """Return at most ``limit`` of what was found; that there are more is told on standard error."""
    if len(found) > limit:
        print(f"batch-llm: there are more than {limit}; see --limit", file=sys.stderr)
    return found[:limit]
