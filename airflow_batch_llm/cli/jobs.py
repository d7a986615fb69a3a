"""``batch-llm jobs``: the jobs of the ledger, newest first."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from airflow_batch_llm.cli.exits import exit_status
from airflow_batch_llm.cli.parsers import add_command
from airflow_batch_llm.cli.printing import add_limit, first, print_found, print_json, when
from airflow_batch_llm.cli.target import open_target
from airflow_batch_llm.core.model import Job, JobState


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``jobs`` to the command line."""
    parser = add_command(subparsers, "jobs", "list the jobs of the ledger, the newest first", job=False)
    states = [state.value for state in JobState]
    parser.add_argument("--state", choices=states, help="only jobs in this state")
    parser.add_argument("--dag", metavar="DAG_ID", help="only jobs of this DAG")
    add_limit(parser, "jobs")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the jobs and return the exit status."""
    return exit_status(_list, args)


def _list(args: argparse.Namespace) -> None:
    states = [JobState(args.state)] if args.state else None
    ledger = open_target(args)
    found = first(ledger.jobs(states=states, dag_id=args.dag, limit=args.limit + 1), args.limit)
    held = {hold.conn_id for hold in ledger.holds()}
    if args.json:
        print_json([{**job_facts(job), "held": job.conn_id in held} for job in found])
        return
    titles = ("JOB", "STATE", "CODE", "ROWS", "ANSWERED", "DEAD", "DAG", "RUN", "TASK", "MAP", "CREATED")
    print_found(titles, [_cells(job) for job in found])
    for conn_id in sorted(held & {job.conn_id for job in found}):
        print(f"batch-llm: connection {conn_id} is held; see batch-llm holds", file=sys.stderr)


def _cells(job: Job) -> tuple[Any, ...]:
    key, counts = job.key, job.counts
    numbers = [counts.get(name) for name in ("rows", "answered", "dead")]
    return (
        job.job_id,
        job.state,
        job.halt_code,
        *numbers,
        key.dag_id,
        key.run_id,
        key.task_id,
        key.map_index if key.map_index >= 0 else None,
        when(job.created_at),
    )


def job_facts(job: Job) -> dict[str, Any]:
    """Describe a job for ``--json``."""
    return {
        "job_id": job.job_id,
        "dag_id": job.key.dag_id,
        "run_id": job.key.run_id,
        "task_id": job.key.task_id,
        "map_index": job.key.map_index,
        "state": job.state.value,
        "halt_code": job.halt_code,
        "revision": job.revision,
        "round": job.round,
        "conn_id": job.conn_id,
        "provider": job.provider,
        "endpoint": job.endpoint,
        "model": job.model,
        "counts": dict(job.counts),
        "deadline_at": job.deadline_at,
        "settled_at": job.settled_at,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
    }
