"""``batch-llm show JOB``: one job with its batches, its dead letters counted, and what it waits for."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_batch_llm.cli.exits import exit_status
from airflow_batch_llm.cli.holds import hold_facts
from airflow_batch_llm.cli.jobs import job_facts
from airflow_batch_llm.cli.parsers import add_command
from airflow_batch_llm.cli.printing import code_only, print_facts, print_json, print_table, when
from airflow_batch_llm.cli.refused import nothing_accepted, refused_for
from airflow_batch_llm.cli.steps import clear, task_name
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.by_hand import acceptance_of, accepted_halt, not_to_be_had
from airflow_batch_llm.core.model import Batch, BatchState, Job, JobState, LetterState
from airflow_batch_llm.core.retention import NEEDED, done_parts
from airflow_batch_llm.exceptions import Refused
from airflow_batch_llm.storage.ledger import SqlLedger


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``show`` to the command line."""
    return add_command(subparsers, "show", "show a job with its batches and counts")


def run(args: argparse.Namespace) -> int:
    """Print the job and return the exit status."""
    return exit_status(_show, args)


def _show(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    batches = ledger.batches(job.job_id)
    letters = [
        {"state": state.value, "code": code_only(code), "letters": number}
        for (state, code), number in sorted(ledger.count_dead_letters(job.job_id).items())
    ]
    held = {conn_id: hold for conn_id in _connections(job, batches) if (hold := ledger.get_hold(conn_id))}
    if args.json:
        facts = {
            "batches": [batch_facts(batch) for batch in batches],
            "dead_letters": letters,
            "purged": sorted(done_parts(job)),
            "accepted": job.seen.get("accepted") if acceptance_of(job) is not None else None,
            "held": [hold_facts(hold) for hold in held.values()],
        }
        print_json({**job_facts(job), **facts})
        return
    _print_job(job)
    for hold in held.values():
        print_facts([("held", f"{hold.conn_id} ({hold.code or hold.origin}) by {hold.actor}: {hold.reason}")])
    _print_next(ledger, job, batches, _open(letters))
    if batches:
        print()
        _print_batches(batches)
    if letters:
        print()
        print_table(("DEAD LETTERS", "CODE", "NUMBER"), [list(line.values()) for line in letters])


def _print_job(job: Job) -> None:
    key = job.key
    print_facts(
        [
            ("job", job.job_id),
            ("DAG", key.dag_id),
            ("run", key.run_id),
            ("task", key.task_id),
            ("map index", key.map_index if key.map_index >= 0 else None),
            ("state", job.state if job.halt_code is None else f"{job.state} ({job.halt_code})"),
            ("revision", f"{job.revision}, round {job.round}"),
            ("connection", f"{job.conn_id} ({job.provider}, {job.endpoint})"),
            ("model", job.model),
            ("counts", ", ".join(f"{name} {number}" for name, number in job.counts.items())),
            ("created", when(job.created_at)),
            ("changed", when(job.updated_at)),
            ("time ends", when(job.deadline_at)),
            ("settled", when(job.settled_at)),
            ("purged", ", ".join(sorted(done_parts(job)))),
        ]
    )
    accepted = acceptance_of(job)
    if accepted is not None:
        told = f"by {accepted.actor}: {accepted.reason}"
        print_facts([("accepted", told if accepted.halted else f"{accepted.letters} dead letters, {told}")])


def _connections(job: Job, batches: list[Batch]) -> list[str]:
    """Return the connections that the job is sent with, its own first."""
    return list(dict.fromkeys([job.conn_id, *(batch.conn_id for batch in batches)]))


def _open(letters: list[dict[str, Any]]) -> int:
    return sum(line["letters"] for line in letters if line["state"] == LetterState.OPEN.value)


def _print_next(ledger: SqlLedger, job: Job, batches: list[Batch], letters: int) -> None:
    """Say what a person does about a job that is halted, was refused or has dead letters, or about create
    calls in doubt."""
    step: str | None
    doubtful = [batch for batch in batches if batch.state is BatchState.SUBMITTING or batch.provisional]
    if job.state is JobState.HALTED:
        step = _of_halted(ledger, job)
    elif doubtful:
        _print_doubts(job, doubtful)
        return
    elif job.state is JobState.SETTLED:
        step = _of_settled(job, letters)
    else:
        step = _of_unsent(ledger, job, batches)
    print_facts([("next", step)])


def _of_halted(ledger: SqlLedger, job: Job) -> str:
    lacking = ", ".join(batch.batch_id for batch in not_to_be_had(ledger, job))
    if accepted_halt(job) is not None:
        return clear(job, "dead_letter")
    if lacking:
        return f"batch-llm hand-in, adopt or abandon, of {lacking}; then batch-llm resume"
    if job.halt_code == Refused.code:
        mended = f"mend the model or the parameters, then {clear(job, 'submit', downstream=True)}"
        return f"{mended}; a resume sends the same once more ({job.halt_code} in docs/runbook.md)"
    return f"see {job.halt_code} in docs/runbook.md; then batch-llm resume or accept, or clear the group"


def _of_settled(job: Job, letters: int) -> str | None:
    accepted = acceptance_of(job)
    if not letters or (accepted is not None and accepted.letters >= letters) or NEEDED & done_parts(job):
        return None
    short = job.job_id[:12]
    return (
        f"batch-llm dead-letters list {short}, and show, say why rows failed. Cause outside of the requests: "
        f'batch-llm dead-letters redrive {short} --all --reason "mended", then '
        f"{clear(job, 'retry', downstream=True)}. Prompt, model or schema mended: clear "
        f"{task_name(job, 'submit')} with downstream"
    )


def _of_unsent(ledger: SqlLedger, job: Job, batches: list[Batch]) -> str | None:
    refused = refused_for(ledger, job, batches)
    mend = f"mend the connection, the model or the parameters, then {clear(job, 'submit', downstream=True)}"
    if refused is not None:
        return f"nothing was accepted ({refused}): {mend}"
    if nothing_accepted(job, batches):
        return f"nothing was accepted yet; if the task that sends has failed, {mend}"
    return None


def _print_doubts(job: Job, doubtful: list[Batch]) -> None:
    named = ", ".join(batch.batch_id for batch in doubtful)
    step = clear(job, "retry", downstream=True)
    print_facts(
        [
            ("in doubt", f"{named}: being created now, or the reply to the create call was lost"),
            ("next", f"tasks that run look for it; if they have ended, {step}; BLLM-025 in docs/runbook.md"),
        ]
    )


def _print_batches(batches: list[Batch]) -> None:
    titles = (
        "BATCH", "KIND", "STATE", "REQUESTS", "PROVIDER BATCH", "PROVIDER STATUS", "CODE", "TOKENS",
        "SUBMITTED", "ENDED",
    )  # fmt: skip
    rows = [
        (
            batch.batch_id,
            batch.kind,
            f"{batch.state}, provisional" if batch.provisional else batch.state,
            batch.requests,
            batch.provider_batch_id,
            batch.provider_status,
            code_only(batch.error_code),
            batch.usage.input + batch.usage.output,
            when(batch.submitted_at),
            when(batch.ended_at),
        )
        for batch in batches
    ]
    print_table(titles, rows)


def batch_facts(batch: Batch) -> dict[str, Any]:
    """Describe a batch for ``--json``."""
    return {
        "batch_id": batch.batch_id,
        "kind": batch.kind.value,
        "state": batch.state.value,
        "revision": batch.revision,
        "round": batch.round,
        "seq": batch.seq,
        "conn_id": batch.conn_id,
        "model": batch.model,
        "requests": batch.requests,
        "attempt": batch.attempt,
        "provider_batch_id": batch.provider_batch_id,
        "provider_status": batch.provider_status,
        "provisional": batch.provisional,
        "error_code": code_only(batch.error_code),
        "cancel_asked_by": batch.cancel_asked_by,
        "counts": dict(batch.counts),
        "tokens": {"input": batch.usage.input, "output": batch.usage.output},
        "submitted_at": batch.submitted_at,
        "ended_at": batch.ended_at,
        "updated_at": batch.updated_at,
    }
