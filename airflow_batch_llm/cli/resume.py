"""``batch-llm resume JOB``: let a halted job go on. It notes the decision; the job's tasks do the work."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import WRONG_STATE, Stopped, exit_status
from airflow_batch_llm.cli.holds import hold_facts
from airflow_batch_llm.cli.jobs import job_facts
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import plain, positive, print_json
from airflow_batch_llm.cli.steps import clear, goes_on
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.by_hand import not_to_be_had
from airflow_batch_llm.core.holds import release_command
from airflow_batch_llm.core.model import Hold, HoldOrigin, Job, JobState
from airflow_batch_llm.storage.ledger import SqlLedger


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``resume`` to the command line."""
    parser = add_command(
        subparsers,
        "resume",
        "let a halted job go on",
        decides=True,
        description="Let a halted job go on, once its cause is mended. Sends nothing itself: the tasks of "
        "the job do, when they run next.",
    )
    parser.add_argument(
        "--job-timeout",
        type=positive,
        metavar="HOURS",
        help="new bound of the job, in hours from now (default: the bound it has)",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Resume the job and return the exit status."""
    return exit_status(_resume, args)


def _resume(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    deadline = ledger.now() + args.job_timeout * 3600.0 if args.job_timeout else None
    actor = actor_of(args)
    resumed: Job | None = None
    while resumed is None:
        _refuse(ledger, job, deadline)
        resumed = ledger.resume_job(job, actor=actor, reason=args.reason, deadline_at=deadline)
        # None: somebody changed the job since it was read.
        job = find_job(ledger, job.job_id)
    hold = _hurry(ledger, resumed, actor)
    if args.json:
        facts = {"held": hold_facts(hold) if hold is not None else None, "next": _next(resumed)}
        print_json({**job_facts(resumed), **facts})
        return
    print(f"Job {resumed.job_id} is {resumed.state} again. {plain(_next(resumed))}")
    if hold is not None:
        print(plain(_what_holds(hold)))


def _hurry(ledger: SqlLedger, job: Job, actor: str) -> Hold | None:
    """Let the job's connection, where it is held, be tried at once; returns the hold."""
    reason = f"job {job.job_id} was resumed"
    return ledger.hurry_probe(job.conn_id, actor=actor, reason=reason) or ledger.get_hold(job.conn_id)


def _what_holds(hold: Hold) -> str:
    if hold.origin is HoldOrigin.PERSON:
        return (
            f"But {hold.actor} holds connection {hold.conn_id}: nothing is sent until "
            f"{release_command(hold.conn_id, 'send again')}"
        )
    return f"Connection {hold.conn_id} is held ({hold.code}): a task that runs tries it with one batch."


def _refuse(ledger: SqlLedger, job: Job, deadline: float | None) -> None:
    """See that resuming the job leads anywhere. :raises Stopped: it does not."""
    if job.state is not JobState.HALTED:
        raise Stopped(WRONG_STATE, f"job {job.job_id} is {job.state}, not halted")
    bound = job.deadline_at if deadline is None else deadline
    if bound is not None and bound <= ledger.now():
        raise Stopped(
            WRONG_STATE, f"the time of job {job.job_id} is over; give it a new one with --job-timeout HOURS"
        )
    if lacking := not_to_be_had(ledger, job):
        first = lacking[0]
        raise Stopped(
            WRONG_STATE,
            f"{len(lacking)} batches of job {job.job_id} were paid for, and their results are not to be had "
            f"(BLLM-031), the first: {first.batch_id}, {first.state}. If you have them, batch-llm hand-in; "
            "if the provider has it, batch-llm adopt; if its rows are to be paid for again, batch-llm "
            "abandon",
        )


def _next(job: Job) -> str:
    if job.state is JobState.STAGING:
        return f"Nothing was sent yet: {clear(job, 'submit', downstream=True)}."
    return goes_on(job)
