"""``batch-llm accept JOB``: take a job as it is."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.cancel import cancel_job, refuse_unfinished
from airflow_batch_llm.cli.exits import UNFINISHED, WRONG_STATE, Stopped, exit_status
from airflow_batch_llm.cli.jobs import job_facts
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import plain, print_json
from airflow_batch_llm.cli.steps import clear
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.by_hand import accepted_halt
from airflow_batch_llm.core.model import BatchState, Job, JobState, LetterState
from airflow_batch_llm.storage.ledger import SqlLedger


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``accept`` to the command line."""
    parser = add_command(
        subparsers,
        "accept",
        "take a job as it is, with its dead letters and without what is pending",
        UNFINISHED,
        decides=True,
        description="A halted job: nothing more is sent; the dead_letter task, when it is cleared, reads "
        "what is paid, makes dead letters of the rows without an answer and settles the job. A settled job: "
        "its open dead letters are accepted, and the task is green as long as there are no more of them.",
    )
    parser.add_argument(
        "--cancel", action="store_true", help="ask the provider to cancel batches of the job that still run"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Accept the job and return the exit status."""
    return exit_status(_accept, args)


def _accept(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    _refuse(job)
    actor = actor_of(args)
    if job.state is JobState.HALTED:
        _end_what_runs(args, ledger, job, actor)
    accepted: Job | None = None
    while accepted is None:
        job = find_job(ledger, job.job_id)
        _refuse(job)
        letters = _open_letters(ledger, job)
        accepted = ledger.accept_job(job, letters=letters, actor=actor, reason=args.reason)
    then = f"Now {clear(accepted, 'dead_letter')}."
    if args.json:
        print_json({**job_facts(accepted), "accepted_dead_letters": letters, "next": then})
        return
    print(f"Job {accepted.job_id} is accepted {_what(accepted, letters)}. {plain(then)}")


def _what(job: Job, letters: int) -> str:
    if job.state is JobState.SETTLED:
        return f"with {letters} dead letters"
    return "as it is: no more is sent, rows without an answer become dead letters"


def _refuse(job: Job) -> None:
    """See that there is something to accept. :raises Stopped: there is not."""
    if job.state not in (JobState.HALTED, JobState.SETTLED):
        raise Stopped(
            WRONG_STATE, f"job {job.job_id} is {job.state}: cancel it first, or wait until it has settled"
        )
    if job.plan_id is None:
        raise Stopped(WRONG_STATE, f"job {job.job_id} has no rows yet: clear its submit task")
    before = accepted_halt(job)
    if before is not None:
        raise Stopped(
            WRONG_STATE, f"job {job.job_id} was accepted by {before.actor}: {clear(job, 'dead_letter')}"
        )


def _open_letters(ledger: SqlLedger, job: Job) -> int:
    counted = ledger.count_dead_letters(job.job_id)
    return sum(n for (state, _), n in counted.items() if state in (LetterState.OPEN, LetterState.REDRIVING))


def _end_what_runs(args: argparse.Namespace, ledger: SqlLedger, job: Job, actor: str) -> None:
    """See that the provider works on nothing of the job. :raises Stopped: it does."""
    running = ledger.batches(job.job_id, states=[BatchState.SUBMITTING, BatchState.SUBMITTED])
    if not running:
        return
    if not args.cancel:
        raise Stopped(
            WRONG_STATE,
            f"{len(running)} batches of job {job.job_id} run, or may be running: wait until they have ended "
            "and were read, or --cancel them (what they have answered is paid, and is read)",
        )
    refuse_unfinished(ledger, cancel_job(ledger, job, actor, args.reason))
