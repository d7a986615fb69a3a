"""``batch-llm dead-letters list`` and ``show``. Ids and codes; the provider's words only where asked for."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from airflow_batch_llm.cli.exits import AMBIGUOUS, NOT_FOUND, Stopped
from airflow_batch_llm.cli.parsers import add_command
from airflow_batch_llm.cli.printing import (
    add_limit,
    code_only,
    first,
    print_facts,
    print_found,
    print_json,
    print_table,
    when,
)
from airflow_batch_llm.cli.session import open_workspace
from airflow_batch_llm.cli.target import add_job, find_job, open_target
from airflow_batch_llm.core.files import iter_outcomes
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Attempt, BatchState, DeadLetter, Job, LetterState
from airflow_batch_llm.exceptions import WorkspaceError

_ALL = "all"
#: A row that changed from revision to revision has a letter for each; more are not shown.
_MOST_OF_ONE_ROW = 100


def add_list(actions: Any) -> None:
    """Add ``dead-letters list``."""
    listing = add_command(
        actions,
        "list",
        "list dead letters of a job or a DAG",
        NOT_FOUND,
        AMBIGUOUS,
        job=False,
        description="List dead letters, the newest first: ids, verdicts and codes. What the provider said "
        "stays in the ledger.",
    )
    which = listing.add_mutually_exclusive_group(required=True)
    add_job(which, nargs="?")
    which.add_argument("--dag", metavar="DAG_ID", help="letters of all jobs of this DAG")
    listing.add_argument("--run", metavar="RUN_ID", help="only of this DAG run")
    add_state(listing)
    listing.add_argument("--code", help="only letters with this code")
    add_limit(listing, "letters")


def add_show(actions: Any) -> None:
    """Add ``dead-letters show``."""
    parser = add_command(
        actions,
        "show",
        "show one row's dead letter: attempts, changes, where its request is",
        NOT_FOUND,
    )
    parser.add_argument(
        "custom_id", metavar="CUSTOM_ID", help="the row's id; after -- where it begins with -"
    )
    parser.add_argument(
        "--message",
        action="store_true",
        help="also print what the provider or the validator said, which may quote prompt and answer, and the "
        "beginning of an answer that was filtered, refused or rejected",
    )


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add ``--state``."""
    parser.add_argument(
        "--state",
        choices=[*(state.value for state in LetterState), _ALL],
        default=LetterState.OPEN.value,
        help="(default: %(default)s)",
    )


def states_of(args: argparse.Namespace) -> list[LetterState] | None:
    """Return the states asked for, None for all."""
    return None if args.state == _ALL else [LetterState(args.state)]


def list_letters(args: argparse.Namespace) -> None:
    """Print letters."""
    ledger = open_target(args)
    letters = ledger.find_dead_letters(
        job_id=find_job(ledger, args.job).job_id if args.job is not None else None,
        dag_id=args.dag,
        run_id=args.run,
        states=states_of(args),
        code=args.code,
        limit=args.limit + 1,
    )
    found = [letter_facts(letter) for letter in first(letters, args.limit)]
    if args.json:
        print_json(found)
        return
    titles = ("JOB", "CUSTOM ID", "STATE", "VERDICT", "CODE", "ATTEMPTS", "RUN", "TASK", "MAP")
    print_found(titles, [_cells(facts) for facts in found])


def show_letter(args: argparse.Namespace) -> None:
    """Print the letters of one row, the newest first."""
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    letters = ledger.find_dead_letters(job_id=job.job_id, custom_id=args.custom_id, limit=_MOST_OF_ONE_ROW)
    if not letters:
        raise Stopped(NOT_FOUND, f"job {job.job_id} has no dead letter of custom id {args.custom_id!r}")
    shown = []
    for letter in letters:
        facts = letter_facts(letter) | {
            "revision": letter.revision,
            "provider": letter.provider,
            "model": letter.model,
            "actor": letter.actor,
            "reason": letter.reason,
            # Relative to the job's folder in the workspace; "" where it was never sent.
            "request_path": letter.request_path,
            "tokens": {"input": letter.usage.input, "output": letter.usage.output},
            "history": [_attempt(attempt) for attempt in letter.attempts],
            "changes": ledger.letter_changes(job.job_id, letter.wire_id),
        }
        if args.message:
            facts |= {"message": letter.message, "text": _words_of(ledger, job, letter)}
        shown.append(facts)
    if args.json:
        print_json(shown)
        return
    for number, facts in enumerate(shown):
        if number:
            print()
        _print_letter(facts)


def _words_of(ledger: Ledger, job: Job, letter: DeadLetter) -> str | None:
    """Return what stands beside the last outcome of a letter's row, None where it is there no more."""
    last = letter.attempts[-1].batch if letter.attempts else ""
    for batch in ledger.batches(job.job_id, states=[BatchState.RECONCILED]):
        if last and batch.provider_batch_id == last:
            workspace = open_workspace()
            try:
                for outcome in iter_outcomes(workspace, workspace.job_root(job.key), batch):
                    if outcome.wire_id == letter.wire_id:
                        return outcome.text
            except WorkspaceError:
                return None
    return None


def _print_letter(facts: dict[str, Any]) -> None:
    print_facts(
        [
            ("custom id", facts["custom_id"]),
            ("state", facts["state"]),
            ("by", facts["actor"]),
            ("reason", facts["reason"]),
            ("verdict", f"{facts['verdict']} ({facts['code']})"),
            ("model", f"{facts['model']} ({facts['provider']})"),
            ("revision", facts["revision"]),
            (
                "request",
                f"{facts['request_path']}, wire id {facts['wire_id']}" if facts["request_path"] else None,
            ),
            ("created", when(facts["created_at"])),
            ("changed", when(facts["updated_at"])),
            ("message", facts.get("message")),
            ("answer", facts.get("text")),
        ]
    )
    if facts["history"]:
        print()
        names = ("revision", "round", "batch", "verdict", "code", "charged")
        rows = [(*(attempt[name] for name in names), when(attempt["time"])) for attempt in facts["history"]]
        print_table(("REVISION", "ROUND", "PROVIDER BATCH", "VERDICT", "CODE", "CHARGED", "TIME"), rows)
    if facts["changes"]:
        print()
        changes = [
            (when(change["time"]), change["from"], change["to"], change["actor"], change["reason"])
            for change in facts["changes"]
        ]
        print_table(("CHANGED", "FROM", "TO", "ACTOR", "REASON"), changes)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.structs.asdict(attempt)
    return facts | {"verdict": attempt.verdict.value, "code": code_only(attempt.code)}


def letter_facts(letter: DeadLetter) -> dict[str, Any]:
    """Describe a letter for ``--json``."""
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
