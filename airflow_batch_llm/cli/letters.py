"""``batch-llm dead-letters``: look at the rows of jobs that failed for good, and decide about them."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli import letters_decide, letters_export, letters_list, letters_redrive
from airflow_batch_llm.cli.exits import exit_status

#: Action -> what runs it.
_ACTIONS = {
    "list": letters_list.list_letters,
    "show": letters_list.show_letter,
    "export": letters_export.export,
    "discard": letters_decide.discard,
    "redrive": letters_redrive.redrive,
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``dead-letters`` with its actions to the command line."""
    what = "look at rows that failed for good, and decide about them"
    parser: argparse.ArgumentParser = subparsers.add_parser("dead-letters", help=what, description=what)
    actions = parser.add_subparsers(dest="letters_action", required=True, metavar=f"{{{','.join(_ACTIONS)}}}")
    letters_list.add_list(actions)
    letters_list.add_show(actions)
    letters_export.add_export(actions)
    letters_decide.add_discard(actions)
    letters_redrive.add_redrive(actions)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the action and return the exit status."""
    return exit_status(_ACTIONS[args.letters_action], args)
