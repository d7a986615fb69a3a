"""``batch-llm dead-letters redrive``: send rows that failed for good again, as a further round of the job."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from typing import Any

from airflow_batch_llm.cli.exits import UNFINISHED, WRONG_STATE, Stopped
from airflow_batch_llm.cli.jobs import job_facts
from airflow_batch_llm.cli.letters_decide import add_choice
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import plain, positive, print_json
from airflow_batch_llm.cli.session import Session, open_workspace
from airflow_batch_llm.cli.steps import clear
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.engine import Engine, redrive_under_way
from airflow_batch_llm.core.model import Job, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Progress, Until
from airflow_batch_llm.core.tools import read_description
from airflow_batch_llm.exceptions import RateLimited, Unreachable
from airflow_batch_llm.storage.ledger import SqlLedger

#: Pauses between two looks while waiting, seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0


def add_redrive(actions: Any) -> None:
    """Add ``dead-letters redrive``."""
    parser = add_command(
        actions,
        "redrive",
        "send rows that failed for good again",
        UNFINISHED,
        decides=True,
        description="Plan a further round of a settled job with its open dead letters: they are sent, and "
        "paid for, again. The job's tasks do it when they are cleared; with --wait this process does, up to "
        "the published results. It lands nothing in a table: that is the dead_letter task's.",
    )
    add_choice(parser, ids=False)
    parser.add_argument("--wait", action="store_true", help="send them from here and wait for the answers")
    parser.add_argument(
        "--job-timeout",
        type=positive,
        default=168,
        metavar="HOURS",
        help="new bound of the job, in hours from now (default: %(default)s)",
    )


def redrive(args: argparse.Namespace) -> None:
    """Plan the round, see it through where asked to, and say what to clear."""
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    if job.state is not JobState.SETTLED:
        under_way = "a re-drive is under way" if redrive_under_way(job) else "it must have settled first"
        raise Stopped(WRONG_STATE, f"job {job.job_id} is {job.state}: {under_way}")
    planned = _session(ledger, job).run(lambda session: _work(session, job, args))
    now = find_job(ledger, job.job_id)
    task = "dead_letter" if now.state is JobState.SETTLED else "retry"
    then = f"Now {clear(now, task, downstream=task == 'retry')}."
    if args.json:
        print_json({**job_facts(now), "redriven": planned, "next": then})
    else:
        print(f"{planned} dead letters of job {job.job_id} are sent again: it is {now.state}. {plain(then)}")
    if now.state is JobState.HALTED:
        raise Stopped(UNFINISHED, f"job {job.job_id} is halted ({now.halt_code}); see docs/runbook.md")


def _session(ledger: SqlLedger, job: Job) -> Session:
    """Open the job with the policy and the judge that were submitted."""
    from airflow_batch_llm.judges import described_judge

    workspace = open_workspace()
    described = read_description(workspace, workspace.job_root(job.key), job.plan_id or "")
    return Session(ledger, job, policy=RowRetry(**described["policy"]), judge=described_judge(described))


async def _work(session: Session, job: Job, args: argparse.Namespace) -> int:
    engine = Engine(session.tools(job.conn_id))
    planned = engine.redrive(
        actor=actor_of(args),
        reason=args.reason,
        mark=f"command/{secrets.token_hex(8)}",
        codes=tuple(args.code or ()),
        job_timeout=args.job_timeout * 3600.0,
    )
    if not planned:
        raise Stopped(
            WRONG_STATE,
            f"job {job.job_id} has no such open letter that can be sent; rows that never were a request are "
            "mended in the source or the prompt, and sent by a clear of the job",
        )
    if args.wait:
        await _see_through(engine)
    return planned


async def _see_through(engine: Engine) -> None:
    """Do what the tasks would, and wait in between. An outage is waited out."""
    pause = _FIRST_PAUSE
    while True:
        progress: Progress | None = None
        try:
            progress = await engine.advance(Until.SETTLED)
            if progress.done:
                return
        except (Unreachable, RateLimited) as error:
            print(f"batch-llm: {error.code}; trying again", file=sys.stderr)
        until = progress.not_before if progress is not None else None
        wait = pause if until is None else min(pause, max(until - engine.tools.ledger.now(), 0.05))
        await asyncio.sleep(wait)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
