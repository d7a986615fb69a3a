"""``batch-llm dead-letters list``: rows that failed for good, by job or by DAG. Ids and codes, no texts."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import AMBIGUOUS, NOT_FOUND, epilog, exit_status
from airflow_batch_llm.cli.printing import add_json, add_limit, code_only, first, print_json, print_table
from airflow_batch_llm.cli.target import add_job, add_target, find_job, open_target
from airflow_batch_llm.core.model import DeadLetter, LetterState

_ALL = "all"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``dead-letters list`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "dead-letters", help="list the rows that failed for good"
    )
    actions = parser.add_subparsers(dest="letters_action", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="list dead letters of a job or a DAG",
        description="List dead letters, the newest first: ids, verdicts and codes. What the provider said "
        "stays in the ledger.",
        epilog=epilog(NOT_FOUND, AMBIGUOUS),
    )
    which = listing.add_mutually_exclusive_group(required=True)
    add_job(which, nargs="?")
    which.add_argument("--dag", metavar="DAG_ID", help="letters of all jobs of this DAG")
    listing.add_argument("--run", metavar="RUN_ID", help="only of this DAG run")
    listing.add_argument(
        "--state",
        choices=[*(state.value for state in LetterState), _ALL],
        default=LetterState.OPEN.value,
        help="(default: %(default)s)",
    )
    listing.add_argument("--code", help="only letters with this code")
    add_limit(listing, "letters")
    add_json(listing)
    add_target(listing)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the letters and return the exit status."""
    return exit_status(_list, args)


def _list(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    letters = ledger.find_dead_letters(
        job_id=find_job(ledger, args.job).job_id if args.job is not None else None,
        dag_id=args.dag,
        run_id=args.run,
        states=None if args.state == _ALL else [LetterState(args.state)],
        code=args.code,
        limit=args.limit + 1,
    )
    found = [_facts(letter) for letter in first(letters, args.limit)]
    if args.json:
        print_json(found)
        return
    titles = ("JOB", "CUSTOM ID", "STATE", "VERDICT", "CODE", "ATTEMPTS", "RUN", "TASK", "MAP")
    print_table(titles, [_cells(facts) for facts in found])


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {
        "job_id": letter.job_id,
        "custom_id": letter.custom_id,
        "wire_id": letter.wire_id,
        "dag_id": letter.key.dag_id,
        "run_id": letter.key.run_id,
        "task_id": letter.key.task_id,
        "map_index": letter.key.map_index,
        "state": letter.state.value,
        "verdict": letter.verdict.value,
        "code": code_only(letter.code),
        "attempts": len(letter.attempts),
        "exhausted": letter.exhausted,
        "created_at": letter.created_at,
        "updated_at": letter.updated_at,
    }


def _cells(facts: dict[str, Any]) -> tuple[Any, ...]:
    names = ("job_id", "custom_id", "state", "verdict", "code", "attempts", "run_id", "task_id")
    map_index = facts["map_index"]
    return (*(facts[name] for name in names), map_index if map_index >= 0 else None)
