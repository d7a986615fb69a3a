"""``batch-llm abandon JOB BATCH``: give a batch up, so that its rows are sent again."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.adopt import next_step
from airflow_batch_llm.cli.exits import WRONG_STATE, Stopped, exit_status
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import print_json
from airflow_batch_llm.cli.session import Session, open_workspace
from airflow_batch_llm.cli.show import batch_facts
from airflow_batch_llm.cli.target import add_batch, find_batch, find_job, open_target
from airflow_batch_llm.core.by_hand import (
    Declined,
    abandon_doubt,
    abandon_results,
    abandon_running,
    not_to_be_had,
)
from airflow_batch_llm.core.model import Batch, BatchState, Job
from airflow_batch_llm.storage.ledger import SqlLedger


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``abandon`` to the command line."""
    parser = add_command(
        subparsers,
        "abandon",
        "give a batch up: its rows are sent again, and may be paid for twice",
        decides=True,
        description="Give up a batch whose create call is in doubt (submitting), that its provider never "
        "ends (submitted), that the provider denies (lost), or whose results are gone; also one that cannot "
        "be had since its connection names another server or account. Its rows are pending again and are "
        "sent by the job's tasks, after a resume where the job is halted. What was paid for the batch is "
        "paid again. Of one that was adopted provisionally: say that the provider's batch is somebody "
        "else's, which goes on.",
    )
    add_batch(parser)
    parser.add_argument(
        "--yes-pay-again",
        action="store_true",
        help="needed for a batch that runs, a lost one and lost results, and for one in doubt unless the "
        "provider has proved not to have it",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Abandon the batch and return the exit status."""
    return exit_status(_abandon, args)


def _abandon(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    batch = find_batch(ledger, job, args.batch)
    given_up = _give_up(args, ledger, job, batch)
    then = next_step(find_job(ledger, job.job_id))
    if args.json:
        print_json({**batch_facts(given_up), "next": then})
        return
    print(f"Batch {batch.batch_id} is given up: its {batch.requests} rows are sent again. {then}")


def _give_up(args: argparse.Namespace, ledger: SqlLedger, job: Job, batch: Batch) -> Batch:
    actor, reason = actor_of(args), args.reason
    if batch.state in (BatchState.SUBMITTING, BatchState.SUBMITTED, BatchState.ENDED):
        give_up = abandon_doubt if batch.state is BatchState.SUBMITTING else abandon_running
        return Session(ledger, job).run(
            lambda session: give_up(
                session.tools(batch.conn_id),
                job,
                batch,
                actor=actor,
                reason=reason,
                pay_again=args.yes_pay_again,
            )
        )
    if batch.batch_id not in {lacking.batch_id for lacking in not_to_be_had(ledger, job)}:
        raise Declined(f"batch {batch.batch_id} is {batch.state}, and nothing it was paid for is missing")
    if not args.yes_pay_again:
        raise Stopped(
            WRONG_STATE,
            f"the {batch.requests} rows of batch {batch.batch_id} were paid for and would be paid for again: "
            "--yes-pay-again. If the provider has the batch, batch-llm adopt costs nothing; if you have its "
            "results, batch-llm hand-in",
        )
    return abandon_results(ledger, open_workspace(), job, batch, actor=actor, reason=reason)
