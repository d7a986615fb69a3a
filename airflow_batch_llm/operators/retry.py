"""The retrying task: failed rows are sent again, as the policy says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_batch_llm.core.engine import redrive_under_way
from airflow_batch_llm.core.spec import Progress, Until
from airflow_batch_llm.operators.base import BatchLLMJobOperator, JobSession

if TYPE_CHECKING:
    from airflow.sdk import Context


class BatchLLMRetryOperator(BatchLLMJobOperator):
    """Send the rows without an answer again, round by round, until none is left that may be.

    Cleared alone after the job was settled, it gives rows that had run out of attempts a new
    allowance, and settles the job again.
    """

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Plan rounds, send, look, judge."""
        engine = session.engine
        mark = self._mark_when_cleared_alone(session, context)
        if mark is None:
            return await engine.advance(Until.RETRIED)
        reopened = engine.redrive(
            actor="clear",
            reason=f"{self.task_id} was cleared",
            mark=mark,
            only_exhausted=True,
            job_timeout=self.job_timeout.total_seconds(),
        )
        if reopened:
            self.log.info("%d dead letters are tried again", reopened)
        return await engine.advance(Until.SETTLED)

    def _mark_when_cleared_alone(self, session: JobSession, context: Context) -> str | None:
        """Note this task's clears; returns the mark of a clear that did not clear the submit task too."""
        max_tries = context["ti"].max_tries
        job = session.ledger.get_job(session.tools.spec.key.job_id)
        if job is None:
            return None
        mark = f"retry:{job.revision}:{max_tries}"
        if job.seen.get(f"redrive:{mark}") is not None:
            return mark  # this very clear has planned its round already: see it through
        before = job.seen.get("retry")
        now = [job.revision, max_tries]
        if before is not None and before[0] == job.revision and before[1] != max_tries:
            # A re-drive that an earlier clear of this task began, and that was cut off, is gone on with.
            return mark if job.settled_at is not None or redrive_under_way(job) else None
        if before != now:
            session.ledger.mark_seen(job, {"retry": now})
        return None
