"""What the way a batch ended means for requests without a result row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_batch_llm.core.model import MACHINE, Batch, BatchError, RemoteBatch, RemoteStatus
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import LinesRefused

#: Codes (lower case) of a queue that is full: a later try of the same batch can pass. Not ``too_many_tasks``:
#: Azure says so of a file with more requests than it takes, which halves of it mend and no wait does.
QUEUE_CODES = frozenset({"token_limit_exceeded", "queue_full", "request_limit_exceeded"})
#: Codes (lower case) that mean that the account cannot pay or may not use what it asks for.
ACCOUNT_CODES = frozenset(
    {
        "insufficient_quota",
        "insufficient_balance",
        "insufficient_credits",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_limit_reached",
        "spend_limit_reached",
        "spend_limit_exceeded",
        "monthly_spend_limit_reached",
        "payment_required",
        "account_deactivated",
        "account_suspended",
        "not_available_for_plan",
        # Anthropic
        "billing_error",
        "organization_on_hold",
        "organization_type_not_supported",
        "workspace_human_review_disabled",
        "cmek_key_disabled",
        "claude_code_key_creator_not_member",
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
    }
)
#: Code of rows whose batch was refused without naming a line.
FAILED_WHOLE = "batch_failed_whole"
#: Code of the other rows of a batch that was refused for the lines it named.
FAILED_NAMED = "batch_failed"
#: Faults that every line shares although the provider names only the first.
SHARED_CODES = frozenset(
    {
        "model_not_found",
        "mismatched_model",
        "model_mismatch",
        "invalid_url",
        "url_mismatch",
        "unknown_model",
        "input_no_permissions",
        "input_modified",
    }
)


@dataclass(frozen=True, slots=True)
class Ending:
    """What the way a batch ended means for requests without a result row.

    :param lines: 1-based input lines that the provider named, with its codes.
    :param halt: error code to stop the job with, None to go on.
    :param failed: the batch was refused as a whole.
    """

    verdict: Verdict
    code: str
    lines: Mapping[int, BatchError]
    disposition: Disposition | None = None
    halt: str | None = None
    failed: bool = False


#: Paid for and not to be had: whether the rows are paid for again is a person's decision.
RESULTS_GONE = Ending(Verdict.MISSING, "results_gone", {}, Disposition.HALT, "BLLM-031")


def ending_of(batch: Batch, remote: RemoteBatch) -> Ending:
    """Decide what a request without a row means, from how the batch ended."""
    if remote.status is RemoteStatus.EXPIRED:
        return Ending(Verdict.EXPIRED, "batch_expired", {})
    if remote.status is RemoteStatus.CANCELLED:
        if batch.cancel_asked_by == MACHINE:
            return Ending(Verdict.CANCELLED, "batch_cancelled", {})
        code = "cancelled_elsewhere" if batch.cancel_asked_by is None else "cancelled_by_hand"
        return Ending(Verdict.CANCELLED, code, {}, Disposition.HALT, "BLLM-032")
    if remote.status is RemoteStatus.FAILED:
        return _failed(batch, remote.errors)
    return Ending(Verdict.MISSING, "missing", {})


def ending_as_noted(batch: Batch) -> Ending:
    """Decide the same from what the ledger knows, where the provider does not show the batch any more."""
    noted = batch.provider_status or ""
    status = RemoteStatus(noted) if noted in set(RemoteStatus) else RemoteStatus.UNKNOWN
    errors = (BatchError(batch.error_code),) if batch.error_code else ()
    return ending_of(batch, RemoteBatch(batch.provider_batch_id or "", status, noted, errors=errors))


def refusal_of(batch: Batch, error: LinesRefused) -> Ending:
    """Decide what it means that the provider refused all requests of a batch before it made one."""
    named = [BatchError(line.code or error.reason, line.line, message=line.message) for line in error.lines]
    return _failed(batch, named or [BatchError(error.reason)])


def _failed(batch: Batch, errors: Sequence[BatchError]) -> Ending:
    first = errors[0] if errors else BatchError("batch_failed")
    codes = {error.code.lower() for error in errors}
    if codes & QUEUE_CODES:
        return Ending(Verdict.CANCELLED, first.code, {}, failed=True)
    if codes & ACCOUNT_CODES:
        return Ending(Verdict.ACCOUNT, first.code, {}, Disposition.HALT, "BLLM-021", failed=True)
    if codes & SHARED_CODES or first.param in ("file_id", "input_file_id"):
        return Ending(Verdict.CANCELLED, first.code, {}, Disposition.HALT, "BLLM-023", failed=True)
    # A line that the batch does not have names no row: to send all of them again would be blind.
    named = [(error.line, error) for error in errors if error.line is not None]
    lines = {line: error for line, error in reversed(named) if 1 <= line <= batch.requests}
    if not lines and batch.requests == 1:
        lines = {1: first}
    return Ending(Verdict.CANCELLED, FAILED_NAMED if lines else FAILED_WHOLE, lines, failed=True)
