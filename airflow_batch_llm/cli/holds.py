"""``batch-llm holds``: the connections with which nothing is sent."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import exit_status
from airflow_batch_llm.cli.parsers import add_command
from airflow_batch_llm.cli.printing import code_only, print_found, print_json, when
from airflow_batch_llm.cli.target import open_target
from airflow_batch_llm.core.model import Hold


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``holds`` to the command line."""
    return add_command(subparsers, "holds", "list the connections that are held", job=False)


def run(args: argparse.Namespace) -> int:
    """Print the holds and return the exit status."""
    return exit_status(_list, args)


def _list(args: argparse.Namespace) -> None:
    holds = open_target(args).holds()
    if args.json:
        print_json([hold_facts(hold) for hold in holds])
        return
    titles = ("CONNECTION", "CODE", "BY", "JOB", "SINCE", "TRIED", "NEXT TRY", "REASON")
    rows = [
        (
            hold.conn_id,
            code_only(hold.code),
            hold.actor,
            hold.job_id,
            when(hold.held_at),
            hold.probes,
            when(hold.probe_at),
            hold.reason,
        )
        for hold in holds
    ]
    print_found(titles, rows)


def hold_facts(hold: Hold) -> dict[str, Any]:
    """Describe a hold for ``--json``."""
    return {
        "conn_id": hold.conn_id,
        "code": code_only(hold.code),
        "origin": hold.origin.value,
        "job_id": hold.job_id,
        "batch_id": hold.batch_id,
        "actor": hold.actor,
        "reason": hold.reason,
        "held_at": hold.held_at,
        "probe_at": hold.probe_at,
        "probes": hold.probes,
    }
