"""The reconciling task: every request of the batches that ended gets one verdict."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.model import BatchState, Job
from airflow_batch_llm.core.spec import Progress, Until
from airflow_batch_llm.operators.base import BatchLLMJobOperator, JobSession, summary

if TYPE_CHECKING:
    from airflow.sdk import Context


class BatchLLMReconcileOperator(BatchLLMJobOperator):
    """Read what the batches brought and account for every row by ``custom_id``.

    Waits for batches that still run. Cleared alone it judges the stored results again, which sends
    nothing and pays nothing: with a changed schema a row may be promoted, an answered one is never
    demoted.
    """

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Judge what has ended; judge again what another judge has decided."""
        progress = await session.engine.advance(Until.RECONCILED)
        if progress.done:
            judged = await session.engine.rejudge()
            if judged:
                self.log.info("%d batches were judged again with the present schema", judged)
        return progress

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Return the counts, and the verdicts of this revision's batches (a row sent twice has two)."""
        read = session.ledger.batches(job.job_id, states=[BatchState.RECONCILED], revision=job.revision)
        verdicts: Counter[str] = Counter()
        for batch in read:
            verdicts.update(batch.counts)
        told = ", ".join(f"{verdict} {number}" for verdict, number in verdicts.most_common())
        self.log.info(
            "job %s revision %d: %d batches read; rows by verdict: %s",
            job.job_id,
            job.revision,
            len(read),
            told or "none",
        )
        return {**summary(job), "verdicts": dict(verdicts)}
