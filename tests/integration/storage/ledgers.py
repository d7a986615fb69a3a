"""Jobs, batches and letters for the ledger's tests, brought to any state by the ledger's own methods."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import (
    Attempt,
    Batch,
    BatchPlan,
    BatchState,
    DeadLetter,
    Job,
    JobKey,
    JobState,
    Plan,
    RemoteBatch,
    RemoteStatus,
    Usage,
)
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.storage.ledger import SqlLedger

T = TypeVar("T")

FACTS: dict[str, Any] = {
    "conn_id": "llm",
    "provider": "openai",
    "endpoint": "/v1/chat/completions",
    "model": "m-1",
    "deadline_at": None,
}


def some(value: T | None) -> T:
    assert value is not None
    return value


def batch_plan(seq: int = 0, **other: Any) -> BatchPlan:
    facts: dict[str, Any] = {
        "path": f"plan-x/batch-{seq:04}/requests.jsonl",
        "requests": 10,
        "bytes": 5_000_000_000,
        "sha256": "0" * 64,
        "upload_bytes": 6_000_000_000,
        "model": "m-1",
        "est_input_tokens": 7_000_000_000,
        "max_output_tokens": 8_000_000_000,
    }
    return BatchPlan(seq=seq, **{**facts, **other})


def plan(name: str = "p1", batches: int = 1, **counts: int) -> Plan:
    return Plan(name, "d" * 64, tuple(batch_plan(seq) for seq in range(batches)), counts)


def remote(id_: str = "batch_1", status: RemoteStatus = RemoteStatus.RUNNING, **other: Any) -> RemoteBatch:
    return RemoteBatch(id=id_, status=status, raw_status=str(status), **other)


def reconciled(judge: str = "j1", **counts: int) -> Reconciled:
    return Reconciled(
        outcomes_sha256="1" * 64,
        judge=judge,
        counts=counts or {"ok": 10},
        usage=Usage(1, 2, 3, 4, 5),
        files=[{"kind": "output", "file_id": "f-out", "path": "x", "bytes": 1, "sha256": "2" * 64}],
    )


def new_job(ledger: SqlLedger, task: str = "submit", **other: Any) -> Job:
    key = JobKey(ledger.namespace(), "nightly", "run-1", task)
    job, new = ledger.create_job(key, **{**FACTS, "seen": {}, **other})
    assert new
    return job


def running_job(ledger: SqlLedger, task: str = "submit", batches: int = 1, **counts: int) -> Job:
    return some(ledger.pin_plan(new_job(ledger, task), plan(batches=batches, **counts)))


def job_in(ledger: SqlLedger, state: JobState) -> Job:
    if state is JobState.STAGING:
        return new_job(ledger)
    job = running_job(ledger)
    if state is JobState.HALTED:
        return some(ledger.halt_job(job, "BLLM-021", "no credit"))
    if state is JobState.SETTLED:
        return some(ledger.settle_job(job, {"answered": 10}))
    return job


def batch_in(ledger: SqlLedger, state: BatchState, *, lease_seconds: float = 60.0) -> Batch:
    """Make a job with one batch and walk the batch to ``state``."""
    job = running_job(ledger)
    (batch,) = ledger.batches(job.job_id)
    if state is BatchState.SUPERSEDED:
        later = some(ledger.begin_revision(job, **FACTS, seen={}, fresh=False))
        some(ledger.pin_plan(later, plan("p2", 0)))
        return some(ledger.get_batch(batch.batch_id))
    path = [
        (BatchState.UPLOADED, lambda b: ledger.mark_uploaded(b, "file-1")),
        (
            BatchState.SUBMITTING,
            lambda b: ledger.enter_submitting(b, revision=1, lease_seconds=lease_seconds),
        ),
        (BatchState.SUBMITTED, lambda b: ledger.mark_submitted(b, remote())),
    ]
    if state is BatchState.LOST:
        path.append((BatchState.LOST, lambda b: ledger.mark_lost(b, "404")))
    else:
        path.append((BatchState.ENDED, lambda b: ledger.mark_ended(b, remote(status=RemoteStatus.DONE))))
        path.append((BatchState.RECONCILED, lambda b: ledger.mark_reconciled(b, reconciled())))
    for reached, step in path:
        if batch.state is state:
            break
        batch = some(step(batch))
        assert batch.state is reached
    assert batch.state is state
    return batch


def letter(
    job: Job, wire_id: str, custom_id: str | None = None, attempts: int = 1, **other: Any
) -> DeadLetter:
    facts: dict[str, Any] = {
        "revision": 1,
        "provider": "openai",
        "model": "m-1",
        "verdict": Verdict.SERVER_ERROR,
        "code": "server_error",
        "message": "boom",
        "exhausted": True,
        "request_path": "plan-x/batch-0000/requests.jsonl",
        "usage": Usage(10 * attempts, attempts),
    }
    return DeadLetter(
        job_id=job.job_id,
        wire_id=wire_id,
        custom_id=wire_id if custom_id is None else custom_id,
        key=job.key,
        attempts=tuple(
            Attempt(n, f"batch_{n}", Verdict.SERVER_ERROR, "server_error", 1.5 + n) for n in range(attempts)
        ),
        **{**facts, **other},
    )


def actions(ledger: SqlLedger, job_id: str) -> list[str]:
    return [event.action for event in ledger.events(job_id)]


def main_ledger() -> SqlLedger:
    """Open the ledger that a child process was given on its command line: URL and schema."""
    return SqlLedger(sys.argv[1], schema=sys.argv[2] or None)
