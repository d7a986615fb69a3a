"""``batch-llm hold --conn`` and ``batch-llm release --conn``: whether anything is sent with a connection."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import NOT_FOUND, Stopped, exit_status
from airflow_batch_llm.cli.holds import hold_facts
from airflow_batch_llm.cli.parsers import actor_of, add_command, text
from airflow_batch_llm.cli.printing import plain, print_json
from airflow_batch_llm.cli.target import open_target
from airflow_batch_llm.core.model import HoldOrigin


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``hold`` to the command line."""
    parser = add_command(
        subparsers,
        "hold",
        "send nothing with a connection until it is released",
        job=False,
        decides=True,
        ledger_conn="--ledger-conn",
        description="Send nothing with a connection until it is released. Jobs that would send wait, "
        "deferred; batches in flight go on and are read.",
    )
    add_llm_conn(parser)
    return parser


def add_llm_conn(parser: argparse.ArgumentParser) -> None:
    """Add ``--conn``."""
    parser.add_argument(
        "--conn", dest="llm_conn_id", required=True, type=text, metavar="CONN_ID", help="of the provider"
    )


def run(args: argparse.Namespace) -> int:
    """Hold the connection and return the exit status."""
    return exit_status(_hold, args)


def _hold(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    hold, made = ledger.hold_connection(
        args.llm_conn_id,
        code="",
        origin=HoldOrigin.PERSON,
        actor=actor_of(args),
        reason=args.reason,
        probe_at=None,
    )
    if args.json:
        print_json({**hold_facts(hold), "made": made})
    elif made:
        print(plain(f"Nothing is sent with connection {hold.conn_id} until batch-llm release."))
    else:
        print(plain(f"Connection {hold.conn_id} was held already, by {hold.actor}: {hold.reason}"))


def release(args: argparse.Namespace) -> None:
    """Release the connection. :raises Stopped: it is not held."""
    ledger = open_target(args)
    released = ledger.release_connection(args.llm_conn_id, actor=actor_of(args), reason=args.reason)
    if released is None:
        raise Stopped(NOT_FOUND, f"connection {args.llm_conn_id!r} is not held")
    if args.json:
        print_json(hold_facts(released))
        return
    told = (
        f" Job {released.job_id} met the fault: batch-llm show says what it needs." if released.job_id else ""
    )
    print(
        plain(f"Connection {released.conn_id} is released. Jobs that wait for it go on by themselves.{told}")
    )
