"""``batch-llm providers``: what each provider takes, keeps and was tested against."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from airflow_batch_llm.backends.capabilities import Capabilities, capabilities_of
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.backends.registry import provider, providers
from airflow_batch_llm.cli.exits import OK
from airflow_batch_llm.cli.printing import add_json, print_facts, print_json, print_table
from airflow_batch_llm.core.endpoints import short_names

_TITLES = (
    "NAME", "PROTOCOL", "ENDPOINTS", "REQUESTS", "BATCH", "REQUEST", "WINDOW", "FOUND AGAIN BY", "PARTIAL",
    "SCHEMA", "TOOLS", "IMAGES", "CACHE PREFIX", "OPTIONS", "LIVE",
)  # fmt: skip
_MB = 1_000_000


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``providers`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "providers",
        help="list the providers: limits, capabilities, what was tested",
        description="List the providers that a connection's dialect can name. None of them is called.",
        epilog="exit status: 0 done; 2 there is no such provider",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="tell everything about this one")
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the table, or all facts of one provider.

    :raises ConfigurationError: there is none of the name.
    """
    rows = list(providers().values()) if args.name is None else [provider(args.name)]
    if args.json:
        facts = [described(row) for row in rows]
        print_json(facts if args.name is None else facts[0])
    elif args.name is None:
        print_table(_TITLES, [_cells(row, capabilities_of(row)) for row in rows])
    else:
        print_facts(_facts(rows[0], capabilities_of(rows[0])))
        for note in rows[0].notes:
            print(f"  {note}")
    return OK


def described(row: Provider) -> dict[str, Any]:
    """Describe a provider as JSON types. Sizes are bytes, times are seconds."""
    return {
        "name": row.name,
        "title": row.title,
        "protocol": row.protocol,
        "base_url": row.base_url,
        "example_url": row.example_url,
        "key_required": row.key_required,
        "endpoints": endpoint_names(row),
        "limits": asdict(row.limits),
        "found_by": row.found_by,
        "marks_batches": row.marks_batches,
        "keeps_partial": row.keeps_partial,
        "capabilities": capabilities_of(row).facts(),
        "options": {name: form.says if form else None for name, form in row.fields.items()},
        "wire_tested": list(row.wire_tested),
        "live_tested": row.live_tested or None,
        "tested": row.tested,
        "notes": list(row.notes),
    }


def endpoint_names(row: Provider) -> list[str]:
    """Return the short names of a provider's endpoints, in the order of the documentation."""
    return short_names(row.endpoints)


def size(count: int) -> str:
    """Write a number of bytes in MB."""
    return f"{count / _MB:,.0f} MB" if count >= _MB else f"{count:,} B"


def window(row: Provider) -> str:
    """Write how long a batch may take."""
    return f"{row.limits.window_seconds / 3600:g} h"


def written_options(row: Provider) -> list[str]:
    """Write the options of its own that a connection can set, with the form of their values."""
    return [f"{name} ({form.says})" if form else name for name, form in row.fields.items()]


def _cells(row: Provider, can: Capabilities) -> tuple[str, ...]:
    return (
        row.name,
        row.protocol,
        ",".join(endpoint_names(row)),
        f"{row.limits.max_requests:,}",
        size(row.limits.max_bytes),
        size(row.limits.max_line_bytes),
        window(row),
        row.found_by,
        _yes(row.keeps_partial),
        can.schema or "no",
        _yes(can.tools),
        ",".join(can.images) or "no",
        can.prefix or "nothing to mark",
        ",".join(row.fields) or "none",
        row.live_tested or "not yet",
    )


def _facts(row: Provider, can: Capabilities) -> Iterator[tuple[str, Any]]:
    limits = row.limits
    yield "name", f"{row.name} ({row.title})" if row.title else row.name
    yield "protocol", row.protocol
    yield "base URL", row.base_url or f"yours, e.g. {row.example_url}"
    yield "key", "required" if row.key_required else "may be empty"
    yield "endpoints", ", ".join(endpoint_names(row))
    yield (
        "a batch",
        f"{limits.max_requests:,} requests, {limits.max_bytes:,} bytes, "
        f"{'one model' if limits.one_model_per_batch else 'any models'}, window {window(row)}",
    )
    yield "a request", f"{limits.max_line_bytes:,} bytes"
    yield "texts", f"{limits.max_inputs:,} in an embeddings batch" if limits.max_inputs else None
    yield "creates", f"{limits.creates_per_hour:,} batches an hour" if limits.creates_per_hour else None
    yield "found by", f"{row.found_by}, where a create call had no reply"
    yield "partial", "kept of batches that expired or were cancelled" if row.keeps_partial else "not kept"
    yield "schema", f"sent in {can.schema}" if can.schema else "refused"
    yield "tools", "taken" if can.tools else "refused"
    yield (
        "images",
        " and ".join(f"by {how}" if how == "address" else f"as {how}" for how in can.images) or ("refused"),
    )
    yield "prefix", f"cache_prefix adds {can.prefix}" if can.prefix else "cache_prefix adds nothing"
    yield "options", ", ".join(written_options(row)) or "none of its own"
    yield "tested", row.tested


def _yes(value: bool) -> str:
    return "yes" if value else "no"
