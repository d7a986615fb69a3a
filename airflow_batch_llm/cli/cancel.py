"""``batch-llm cancel JOB``: halt a job and ask the provider to cancel what is in flight."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import UNFINISHED, Stopped, exit_status
from airflow_batch_llm.cli.jobs import job_facts
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import plain, print_json
from airflow_batch_llm.cli.session import Session
from airflow_batch_llm.cli.steps import clear
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.by_hand import Cancelled, cancel
from airflow_batch_llm.core.model import Job
from airflow_batch_llm.storage.ledger import SqlLedger


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``cancel`` to the command line."""
    return add_command(
        subparsers,
        "cancel",
        "halt a job and ask the provider to cancel its batches",
        UNFINISHED,
        decides=True,
        description="Halt a job (BLLM-032), then ask the provider to cancel every batch in flight. What is "
        "paid is read when the tasks run; the rest stays pending until a resume, a clear or an accept.",
    )


def run(args: argparse.Namespace) -> int:
    """Cancel the job and return the exit status."""
    return exit_status(_cancel, args)


def _cancel(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    result = cancel_job(ledger, job, actor_of(args), args.reason)
    halted = find_job(ledger, job.job_id)
    then = (
        f"What was answered is paid: {clear(halted, 'dead_letter')} to have it read and published, if no "
        "task of the job runs. Then batch-llm accept takes the job as it is, batch-llm resume sends the rest."
    )
    if args.json:
        asked = {
            "asked": result.asked,
            "in_doubt": sorted(result.in_doubt),
            "failed": result.failed,
            "unsure": result.unsure,
        }
        print_json({**job_facts(halted), **asked, "next": then})
    else:
        print(
            f"Job {job.job_id} is {halted.state} ({halted.halt_code}); {len(result.asked)} batches are asked "
            f"to cancel. {plain(then)}"
        )
    refuse_unfinished(ledger, result)


def cancel_job(ledger: SqlLedger, job: Job, actor: str, reason: str) -> Cancelled:
    """Halt the job and ask for its batches to be cancelled."""
    return Session(ledger, job).run(
        lambda session: cancel(session.tools, ledger, job, actor=actor, reason=reason)
    )


def refuse_unfinished(ledger: SqlLedger, result: Cancelled) -> None:
    """See that every batch was asked. :raises Stopped: some were not."""
    if result.whole:
        return
    told = [f"{batch_id} could not be asked ({code})" for batch_id, code in result.failed.items()]
    now = ledger.now()
    told += [
        f"{batch_id} is perhaps being created now, look again in {max(until - now, 0):.0f} s"
        for batch_id, until in result.in_doubt.items()
    ]
    told += [
        f"{batch_id} may be {provider_id} at the provider, or that is somebody else's: it goes on, and its "
        "rows tell when it has ended"
        for batch_id, provider_id in result.unsure.items()
    ]
    raise Stopped(UNFINISHED, f"run this again: {'; '.join(told)}")
