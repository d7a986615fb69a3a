"""``batch-llm hand-in JOB BATCH --output FILE``: bring results that the job's tasks cannot fetch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from airflow_batch_llm.cli.exits import exit_status
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import print_json
from airflow_batch_llm.cli.session import Session
from airflow_batch_llm.cli.show import batch_facts
from airflow_batch_llm.cli.steps import clear
from airflow_batch_llm.cli.target import add_batch, find_batch, find_job, open_target
from airflow_batch_llm.core.by_hand import ONE_TASK, Declined, HandedIn, hand_in
from airflow_batch_llm.core.handed_files import HandedFile
from airflow_batch_llm.core.model import Batch, Job, JobState


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``hand-in`` to the command line."""
    parser = add_command(
        subparsers,
        "hand-in",
        "bring results of a batch that cannot be fetched",
        decides=True,
        description="Take files that you downloaded, from the provider's console or with curl, for the "
        "results of a batch that has ended, is lost, or whose results are gone at the provider. Every line "
        "is read before anything is changed; the job's tasks then read the files and fetch nothing. JSON "
        "lines, as the provider writes them; each option can be given several times. Files of a kind that "
        "you do not give are fetched where rows are lacking without them.",
    )
    add_batch(parser)
    parser.add_argument(
        "--output", type=Path, action="append", default=[], metavar="FILE", help="file with the answers"
    )
    parser.add_argument(
        "--errors",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="file with the rows that failed, where the provider writes them apart",
    )
    parser.add_argument(
        "--as-is",
        action="store_true",
        help="take the whole rows of files that have lines which cannot be read",
    )
    parser.add_argument(
        "--yes-pay-again",
        action="store_true",
        help="needed where rows that the batch has are in no file: they are sent again",
    )
    parser.set_defaults(fail=parser.error)
    return parser


def run(args: argparse.Namespace) -> int:
    """Hand the files in and return the exit status."""
    if not args.output and not args.errors:
        args.fail("at least one of --output and --errors is needed")
    for path in (*args.output, *args.errors):
        if not path.is_file():
            args.fail(f"{path} is no file")
    return exit_status(_hand_in, args)


def _hand_in(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    batch = find_batch(ledger, job, args.batch)
    files = [HandedFile("output", path) for path in args.output]
    files += [HandedFile("error", path) for path in args.errors]
    try:
        result = Session(ledger, job).run(
            lambda session: hand_in(
                session.tools(batch.conn_id),
                job,
                batch,
                files,
                actor=actor_of(args),
                reason=args.reason,
                as_is=args.as_is,
                pay_again=args.yes_pay_again,
            )
        )
    except OSError as error:
        raise Declined(f"{error.filename}: {error.strerror}") from None
    then = _next_step(find_job(ledger, job.job_id), result.batch)
    if args.json:
        print_json({**batch_facts(result.batch), **_facts(result), "next": then})
        return
    print(f"{_told(result)} {then}")


def _facts(result: HandedIn) -> dict[str, Any]:
    return {
        "changed": result.changed,
        "rows": {
            "taken": result.taken,
            "missing": result.missing,
            "paid_again": result.paid_again,
            "foreign": result.foreign,
            "repeated": result.repeated,
            "unreadable": result.unreadable,
        },
        "fetched": result.fetched,
        "not_fetched": result.not_fetched,
    }


def _told(result: HandedIn) -> str:
    batch = result.batch
    rows = f"{result.taken} of its {batch.requests} rows"
    if not result.changed:
        return f"Batch {batch.batch_id}: all of it was handed in before, {rows}."
    told = [f"Batch {batch.batch_id}: {rows} are in."]
    if result.fetched:
        told.append(f"Fetched besides: {', '.join(result.fetched)}.")
    if result.missing:
        again = f", {result.paid_again} of them to be paid for again" if result.paid_again else ""
        told.append(f"{result.missing} are missing{again}.")
    if result.foreign:
        told.append(f"{result.foreign} rows of other batches are not read.")
    if result.repeated:
        told.append(f"{result.repeated} rows are there more than once.")
    if result.unreadable:
        told.append(f"{result.unreadable} lines cannot be read.")
    return " ".join(told)


def _next_step(job: Job, batch: Batch) -> str:
    """Say what has the files read."""
    if job.state is JobState.HALTED:
        return f"Now batch-llm resume {job.job_id[:12]} --reason …, which says what to clear."
    if job.state is JobState.SETTLED:
        return f"Now {clear(job, 'dead_letter')}, which reads them."
    task = "reconcile" if batch.round == 0 else "retry"
    which = clear(job, task, downstream=True) + ("" if job.seen.get(ONE_TASK) else ", not submit")
    return f"Tasks of the job that still run read them by themselves. If they have ended, {which}."
