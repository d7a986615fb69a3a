"""What the way a batch ended means for requests without a result row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_batch_llm.core.model import Batch, BatchError, RemoteBatch, RemoteStatus
from airflow_batch_llm.core.verdicts import Disposition, Verdict

QUEUE_CODES = frozenset({"token_limit_exceeded", "too_many_tasks", "queue_full", "request_limit_exceeded"})
ACCOUNT_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "spend_limit_reached"}
)
#: Code of rows whose batch was refused without naming a line.
FAILED_WHOLE = "batch_failed_whole"
#: Faults that every line shares although the provider names only the first.
SHARED_CODES = frozenset(
    {"model_not_found", "mismatched_model", "model_mismatch", "invalid_url", "url_mismatch", "unknown_model"}
)


@dataclass(frozen=True, slots=True)
class Ending:
    """What the way a batch ended means for requests without a result row.

    :param lines: 1-based input lines that the provider named, with its codes.
    :param halt: error code to stop the job with, None to go on.
    """

    verdict: Verdict
    code: str
    lines: Mapping[int, BatchError]
    disposition: Disposition | None = None
    halt: str | None = None


#: Paid for and not to be had: whether the rows are paid for again is a person's decision.
RESULTS_GONE = Ending(Verdict.MISSING, "results_gone", {}, Disposition.HALT, "BLLM-031")


def ending_of(batch: Batch, remote: RemoteBatch) -> Ending:
    """Decide what a request without a row means, from how the batch ended."""
    if remote.status is RemoteStatus.EXPIRED:
        return Ending(Verdict.EXPIRED, "batch_expired", {})
    if remote.status is RemoteStatus.CANCELLED:
        if batch.cancel_asked_by is not None:
            return Ending(Verdict.CANCELLED, "batch_cancelled", {})
        return Ending(Verdict.CANCELLED, "cancelled_elsewhere", {}, Disposition.HALT, "BLLM-032")
    if remote.status is RemoteStatus.FAILED:
        return _failed(batch, remote)
    return Ending(Verdict.MISSING, "missing", {})


def _failed(batch: Batch, remote: RemoteBatch) -> Ending:
    first = remote.errors[0] if remote.errors else BatchError("batch_failed")
    codes = {error.code for error in remote.errors}
    if codes & QUEUE_CODES:
        return Ending(Verdict.CANCELLED, first.code, {})
    if codes & ACCOUNT_CODES:
        return Ending(Verdict.ACCOUNT, first.code, {}, Disposition.HALT, "BLLM-021")
    if codes & SHARED_CODES or first.param in ("file_id", "input_file_id"):
        return Ending(Verdict.CANCELLED, first.code, {}, Disposition.HALT, "BLLM-023")
    lines = {error.line: error for error in remote.errors if error.line is not None}
    if not lines and batch.requests == 1:
        lines = {1: first}
    return Ending(Verdict.CANCELLED, "batch_failed" if lines else FAILED_WHOLE, lines)
