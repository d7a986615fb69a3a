"""``batch-llm adopt JOB BATCH PROVIDER_ID``: say which batch at the provider one of ours is."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import exit_status
from airflow_batch_llm.cli.parsers import actor_of, add_command, text
from airflow_batch_llm.cli.printing import print_json
from airflow_batch_llm.cli.session import Session
from airflow_batch_llm.cli.show import batch_facts
from airflow_batch_llm.cli.steps import goes_on
from airflow_batch_llm.cli.target import add_batch, find_batch, find_job, open_target
from airflow_batch_llm.core.by_hand import adopt
from airflow_batch_llm.core.model import Job, JobState


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``adopt`` to the command line."""
    parser = add_command(
        subparsers,
        "adopt",
        "say which batch at the provider one of ours is",
        decides=True,
        description="For a batch in doubt (submitting) or lost, or one that is not shown since its "
        "connection was changed: look at the provider's batch with the connection of ours, and take it for "
        "ours. Refused where its metadata or its number of requests says otherwise, or, where there is no "
        "metadata and it has ended, its rows do. Sends nothing, pays nothing.",
    )
    add_batch(parser)
    parser.add_argument(
        "provider_id", metavar="PROVIDER_ID", type=text, help="the provider's id of the batch"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Adopt the batch and return the exit status."""
    return exit_status(_adopt, args)


def _adopt(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    batch = find_batch(ledger, job, args.batch)
    adopted, named = Session(ledger, job).run(
        lambda session: adopt(
            session.tools(batch.conn_id),
            job,
            batch,
            args.provider_id,
            actor=actor_of(args),
            reason=args.reason,
        )
    )
    then = next_step(find_job(ledger, job.job_id))
    if args.json:
        print_json({**batch_facts(adopted), "named_by_metadata": named, "next": then})
        return
    sure = "" if named else " It carries no metadata of ours: that it is this batch is your word."
    if adopted.provisional:
        sure = " Whether it is this batch, its rows tell once it has ended; until then it is never cancelled."
    print(f"Batch {adopted.batch_id} is {adopted.provider_batch_id} at the provider.{sure} {then}")


def next_step(job: Job) -> str:
    """Say how a batch that was decided about gets read or sent."""
    if job.state is JobState.HALTED:
        return f"Now batch-llm resume {job.job_id[:12]} --reason …, which says what to clear."
    return goes_on(job)
