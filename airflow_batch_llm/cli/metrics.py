"""``batch-llm metrics``: the gauges that tasks send, for other monitoring."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import exit_status
from airflow_batch_llm.cli.parsers import add_command
from airflow_batch_llm.cli.printing import print_json, print_table
from airflow_batch_llm.cli.target import open_target
from airflow_batch_llm.metrics import gauges
from airflow_batch_llm.storage.ledger_facts import read_facts


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``metrics`` to the command line."""
    return add_command(subparsers, "metrics", "print the ledger's gauges, as tasks send them", job=False)


def run(args: argparse.Namespace) -> int:
    """Print the gauges and return the exit status."""
    return exit_status(_print, args)


def _print(args: argparse.Namespace) -> None:
    samples = list(gauges(read_facts(open_target(args))))
    if args.json:
        print_json([{"name": s.name, "value": round(s.value, 3), "tags": dict(s.tags)} for s in samples])
        return
    rows = [(s.name, f"{s.value:g}", ", ".join(f"{k}={v}" for k, v in s.tags.items())) for s in samples]
    print_table(("NAME", "VALUE", "TAGS"), rows)
