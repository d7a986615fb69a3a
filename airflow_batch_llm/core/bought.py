"""What a job paid for, noted for later jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_batch_llm.core.files import is_erased, iter_outcomes, iter_requests
from airflow_batch_llm.core.model import Batch, BatchState, BoughtAnswer, Job
from airflow_batch_llm.core.reuse import connection_digest, task_digest
from airflow_batch_llm.core.tools import Tools, read_description
from airflow_batch_llm.core.verdicts import Disposition


def record_bought(tools: Tools, job: Job, batches: Sequence[Batch]) -> None:
    """Note in the ledger every answer that the job has paid for, where it was given ``reuse``.

    Whatever its scope, and also for rows that have left the source since.
    """
    if job.plan_id is None:
        return
    described = read_description(tools.workspace, tools.root, job.plan_id)
    if not described.get("reuse"):
        return
    tools.fault("reuse.before_recorded")
    # Whose server answered is a part of what makes requests the same. It was noted when the job was staged;
    # where the connection was given another provider since, the answers of that one are noted for nobody.
    of_provider = [batch for batch in batches if batch.provider == described["provider"]]
    tools.ledger.record_answers(_bought(tools, job, of_provider))


def _bought(tools: Tools, job: Job, batches: Sequence[Batch]) -> Iterator[BoughtAnswer]:
    task = task_digest(job.key)
    for batch in batches:
        if batch.state is not BatchState.RECONCILED or batch.revision < job.floor_revision:
            continue
        connection = connection_digest(batch.conn_id)
        requests = iter_requests(tools.workspace, tools.root, batch)
        outcomes = iter_outcomes(tools.workspace, tools.root, batch)
        for request, outcome in zip(requests, outcomes, strict=True):
            landed = outcome.disposition is Disposition.LAND
            if landed and request.hash and not is_erased(request.custom_id):
                yield BoughtAnswer(
                    request_hash=request.hash,
                    task=task,
                    connection="" if request.changed else connection,
                    job_id=job.job_id,
                    batch_id=batch.batch_id,
                    wire_id=request.wire_id,
                    answered_at=batch.ended_at or batch.updated_at,
                )
