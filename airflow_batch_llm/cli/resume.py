"""``batch-llm resume JOB``: let a halted job go on. It notes the decision; the job's tasks do the work."""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from airflow_batch_llm.cli.exits import AMBIGUOUS, NOT_FOUND, WRONG_STATE, Stopped, epilog, exit_status
from airflow_batch_llm.cli.jobs import job_facts
from airflow_batch_llm.cli.printing import add_json, plain, positive, print_json
from airflow_batch_llm.cli.target import add_job, add_target, find_job, open_target
from airflow_batch_llm.core.model import BatchKind, BatchState, Job, JobState
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.storage.ledger import SqlLedger

#: What the ledger calls itself where nobody asked.
_MACHINE = "machine"
#: The code of a job whose provider does not give what was paid.
_NOT_TO_BE_HAD = "BLLM-031"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``resume`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "resume",
        help="let a halted job go on",
        description="Let a halted job go on, once its cause is mended. Sends nothing itself: the tasks of "
        "the job do, when they run next.",
        epilog=epilog(NOT_FOUND, AMBIGUOUS, WRONG_STATE),
    )
    add_job(parser)
    parser.add_argument("--reason", required=True, type=_text, metavar="TEXT", help="kept as an event")
    parser.add_argument("--actor", type=_actor, metavar="NAME", help="who decides (default: the login name)")
    parser.add_argument(
        "--job-timeout",
        type=positive,
        metavar="HOURS",
        help="new bound of the job, in hours from now (default: the bound it has)",
    )
    add_json(parser)
    add_target(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Resume the job and return the exit status."""
    return exit_status(_resume, args)


def _resume(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    deadline = ledger.now() + args.job_timeout * 3600.0 if args.job_timeout else None
    actor = args.actor or _login()
    resumed: Job | None = None
    while resumed is None:
        _refuse(ledger, job, deadline)
        resumed = ledger.resume_job(job, actor=actor, reason=args.reason, deadline_at=deadline)
        # None: somebody changed the job since it was read.
        job = find_job(ledger, job.job_id)
    if args.json:
        print_json({**job_facts(resumed), "next": _next(resumed)})
        return
    print(f"Job {resumed.job_id} is {resumed.state} again. {plain(_next(resumed))}")


def _refuse(ledger: SqlLedger, job: Job, deadline: float | None) -> None:
    """See that resuming the job leads anywhere. :raises Stopped: it does not."""
    if job.state is not JobState.HALTED:
        raise Stopped(WRONG_STATE, f"job {job.job_id} is {job.state}, not halted")
    bound = job.deadline_at if deadline is None else deadline
    if bound is not None and bound <= ledger.now():
        raise Stopped(
            WRONG_STATE, f"the time of job {job.job_id} is over; give it a new one with --job-timeout HOURS"
        )
    if job.halt_code == _NOT_TO_BE_HAD or _without_results(ledger, job):
        raise Stopped(
            WRONG_STATE,
            f"job {job.job_id} paid for a batch whose results are not to be had ({_NOT_TO_BE_HAD}). Its rows "
            "would be paid for again: if that is wanted, clear the submit task with downstream",
        )


def _without_results(ledger: SqlLedger, job: Job) -> bool:
    """Say whether the revision counts on a batch that is lost, or ended with none of its rows in a file.

    A job that was halted already keeps its first code when it meets such a batch.
    """
    if _lost_since_the_revision_began(ledger, job):
        return True
    newest = ledger.batches(
        job.job_id, states=[BatchState.RECONCILED], revision=job.revision, round=job.round
    )
    return any(
        batch.kind is BatchKind.PRIMARY and not batch.files and set(batch.counts) == {Verdict.MISSING.value}
        for batch in newest
    )


def _lost_since_the_revision_began(ledger: SqlLedger, job: Job) -> bool:
    """Say whether the revision counts on a lost batch; what was lost before it, it sends by itself."""
    primary = {
        batch.batch_id
        for batch in ledger.batches(job.job_id, states=[BatchState.LOST])
        if batch.kind is BatchKind.PRIMARY and batch.revision >= job.floor_revision
    }
    lost = False
    for event in ledger.events(job.job_id) if primary else ():
        if event.action == "revision_begun":
            lost = False
        elif event.action == "lost" and event.batch_id in primary:
            lost = True
    return lost


def _next(job: Job) -> str:
    key = job.key
    where = f"DAG {key.dag_id}, run {key.run_id}"
    if key.map_index >= 0:
        where += f", map index {key.map_index}"
    if job.state is JobState.STAGING:
        return f"Nothing was sent yet: clear the submit task of {where} with downstream."
    return (
        f"Tasks of the job that still run go on by themselves. If they have ended, clear the retry task of "
        f"{where} with downstream, not submit: what is pending is sent, nothing that is answered."
    )


def _text(value: str) -> str:
    if not value.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return value.strip()


def _actor(value: str) -> str:
    if _text(value) == _MACHINE:
        raise argparse.ArgumentTypeError(f"{_MACHINE!r} stands for decisions that nobody took")
    return value.strip()


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "command line"
