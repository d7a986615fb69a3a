"""``batch-llm release --conn``: let a held connection send again."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import NOT_FOUND, exit_status
from airflow_batch_llm.cli.hold import add_llm_conn, release
from airflow_batch_llm.cli.parsers import add_command


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``release`` to the command line."""
    parser = add_command(
        subparsers,
        "release",
        "let a held connection send again",
        NOT_FOUND,
        job=False,
        decides=True,
        ledger_conn="--ledger-conn",
        description="Let a held connection send again, whoever held it. Jobs that wait for it go on by "
        "themselves; a job that is halted needs a resume.",
    )
    add_llm_conn(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Release the connection and return the exit status."""
    return exit_status(release, args)
