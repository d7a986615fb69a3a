"""How the commands on jobs declare what they take."""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from airflow_batch_llm.cli.exits import AMBIGUOUS, NOT_FOUND, WRONG_STATE, epilog
from airflow_batch_llm.cli.printing import add_json
from airflow_batch_llm.cli.target import add_job, add_target
from airflow_batch_llm.core.model import MACHINE


def add_command(
    subparsers: Any,
    name: str,
    what: str,
    *statuses: int,
    job: bool = True,
    decides: bool = False,
    ledger_conn: str = "--conn",
    description: str = "",
) -> argparse.ArgumentParser:
    """Add a command with what all have in common: ``JOB``, ``--json``, the ledger, the exit statuses.

    :param what: what it does, one line of the help.
    :param statuses: exit statuses beside those of every command.
    :param job: it takes ``JOB``.
    :param decides: it changes something: takes ``--reason`` and ``--actor``.
    :param ledger_conn: the option that names the ledger's connection.
    :param description: more than ``what``, for its own help.
    """
    known = {*statuses}
    if job:
        known |= {NOT_FOUND, AMBIGUOUS}
    if decides:
        known |= {WRONG_STATE}
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=what, description=description or what, epilog=epilog(*known)
    )
    if job:
        add_job(parser)
    if decides:
        parser.add_argument(
            "--reason", required=True, type=text, metavar="TEXT", help="kept with the decision, as an event"
        )
        parser.add_argument(
            "--actor", type=_actor, metavar="NAME", help="who decides (default: the login name)"
        )
    add_json(parser)
    add_target(parser, ledger_conn)
    return parser


def actor_of(args: argparse.Namespace) -> str:
    """Return who decides."""
    if args.actor:
        return str(args.actor)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "command line"


def text(value: str) -> str:
    """Read a text that says something, for argparse."""
    if not value.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return value.strip()


def _actor(value: str) -> str:
    if text(value) == MACHINE:
        raise argparse.ArgumentTypeError(f"{MACHINE!r} stands for decisions that nobody took")
    return value.strip()
