"""``batch-llm events JOB``: what happened to a job, in order, and who did it."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from airflow_batch_llm.cli.exits import AMBIGUOUS, NOT_FOUND, epilog, exit_status
from airflow_batch_llm.cli.printing import add_json, print_json, print_table, when
from airflow_batch_llm.cli.target import add_job, add_target, find_job, open_target


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``events`` to the command line."""
    what = "list what happened to a job, in order"
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "events", help=what, description=what, epilog=epilog(NOT_FOUND, AMBIGUOUS)
    )
    add_job(parser)
    add_json(parser)
    add_target(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the events and return the exit status."""
    return exit_status(_list, args)


def _list(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    events = ledger.events(find_job(ledger, args.job).job_id)
    if args.json:
        print_json(msgspec.to_builtins(events))
        return
    rows = [(when(e.time), e.actor, e.action, e.batch_id, e.reason) for e in events]
    print_table(("TIME", "ACTOR", "ACTION", "BATCH", "REASON"), rows)
