"""Batches that the provider never made: it refused their lines, or their create call took no effect."""

from __future__ import annotations

from airflow_batch_llm.core.endings import refusal_of
from airflow_batch_llm.core.files import encode_line, iter_requests
from airflow_batch_llm.core.judging import judge_batch, outcomes_file
from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import Batch, Job, Outcome, RemoteStatus, RequestTemplate, Usage
from airflow_batch_llm.core.places import moved
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import LinesRefused, ProviderError

#: Code of rows that nobody sends as they were planned, as their batch was not made and their job was cleared.
NOT_CREATED = "not_created"


async def close_refused(
    tools: Tools, job: Job, batch: Batch, template: RequestTemplate, error: LinesRefused
) -> bool:
    """Close a batch that the provider refused for some of its lines; nothing was created or paid.

    Rows whose lines it names die as ``bad_request``. The others are sent again free of charge: in a batch
    without those lines, or, where no line is named, in two halves. Returns False, and does nothing, where
    all lines share the fault.

    :param batch: as the ledger shows it, in the state in which it was refused.
    """
    ending = refusal_of(batch, error)
    if ending.halt is not None:
        return False
    tools.fault("refused.before_outcomes")
    result, halts = judge_batch(tools, job, batch, template, [], ending)
    if halts:
        tools.halt(job, "BLLM-021", f"batch {batch.batch_id}: rows that halt the job")
    tools.fault("refused.before_closed")
    told = f"{error.reason}: {len(ending.lines)} lines named, {batch.requests} requests"
    closed = tools.ledger.mark_refused(batch, result, error_code=error.reason, reason=told)
    if closed is None:
        return True  # closed, withdrawn or sent by somebody else at this moment
    log.error("batch %s: the provider refused it before it made one (%s)", batch.batch_id, error.reason)
    tools.fault("refused.after_closed")
    await delete_upload(tools, closed)
    return True


def was_refused(batch: Batch) -> bool:
    """Say whether the provider refused all of the batch and made none."""
    return batch.provider_batch_id is None and batch.provider_status == RemoteStatus.FAILED


async def delete_upload(tools: Tools, batch: Batch) -> None:
    """Delete the upload of a batch that nobody sends; where that fails it is litter, not a fault."""
    if not batch.input_file_id:
        return
    if moved(tools, batch):
        log.warning("batch %s: its upload stays where its connection sent it before", batch.batch_id)
        return
    try:
        await tools.backend_of(batch).delete_file(batch.input_file_id)
    except ProviderError as error:
        log.warning("batch %s: its upload could not be deleted (%s)", batch.batch_id, error.code)


def give_back(tools: Tools, batch: Batch) -> Batch | None:
    """Close a batch of an earlier revision whose create call took no effect: its rows go into the present
    revision's next round."""
    result = same_outcome(tools, batch, Verdict.CANCELLED, NOT_CREATED)
    return tools.ledger.mark_not_created(batch, result, reason="its rows go into the next round")


def same_outcome(tools: Tools, batch: Batch, verdict: Verdict, code: str) -> Reconciled:
    """Write an outcome for each request of a batch that was not sent, which charges none an attempt."""
    with outcomes_file(tools.workspace, tools.root, batch) as out:
        for request in iter_requests(tools.workspace, tools.root, batch):
            free = Disposition.RETRY_FREE
            out.write(encode_line(Outcome(request.custom_id, request.wire_id, verdict, free, code)))
    counts = {verdict.value: batch.requests}
    return Reconciled(out.sha256, tools.spec.judge.fingerprint, counts, Usage(), ())
