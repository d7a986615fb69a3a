"""A whole job in one task: submit, wait, reconcile, retry, dead letters, results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.by_hand import ONE_TASK
from airflow_batch_llm.core.spec import OnEmpty, Progress, Until
from airflow_batch_llm.exceptions import BatchLLMError
from airflow_batch_llm.operators.base import JobSession
from airflow_batch_llm.operators.dead_letter import BatchLLMDeadLetterOperator
from airflow_batch_llm.operators.decided import DECISIONS, GREEN, decisions, take_up_decision
from airflow_batch_llm.operators.submit import BatchLLMSubmitOperator, skip_empty
from airflow_batch_llm.operators.tries import Try

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_batch_llm.core.model import Job
    from airflow_batch_llm.core.spec import StageOrder


class BatchLLMOperator(BatchLLMSubmitOperator, BatchLLMDeadLetterOperator):
    """Send rows in batches and account for every one of them, in one task.

    The same engine as in the group, with the same parameters and the same verdicts: while batches run the
    task is deferred, and at the end it is red if too many rows are dead, after everything else has been
    published. The job goes by the task's id, or by ``job_key``.

    A retry goes on with what was staged and sent. A clear reads the source again, and sends only what is
    new, changed or unanswered; but a clear after a person's decision about the job (``batch-llm accept``,
    ``resume``, ``cancel``, ``dead-letters redrive`` or ``discard``) carries that decision out, without
    reading the source.

    Parameters are those of :class:`BatchLLMSubmitOperator`, :class:`BatchLLMDeadLetterOperator` and their
    base.

    :raises AirflowFailException: what cannot get better by trying again, too many dead letters, no row
        answered at all, or a halted job.
    """

    template_fields: Sequence[str] = tuple(
        dict.fromkeys((*BatchLLMSubmitOperator.template_fields, *BatchLLMDeadLetterOperator.template_fields))
    )

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Go as far as can be gone now: send, read, send again, settle."""
        if take_up_decision(session, self._owner(context), Try.of(context["ti"])):
            self.log.info(
                "this clear carries out what was decided by hand about job %s; a further clear reads the "
                "source again",
                session.tools.spec.key.job_id,
            )
        progress = await BatchLLMSubmitOperator.work(self, session, context)
        if not progress.done or not progress.job.counts.get("rows"):
            return progress
        progress = await session.engine.advance(Until.RECONCILED)
        if not progress.done:
            return progress
        judged = await session.engine.rejudge()
        if judged:
            self.log.info("%d batches were judged again with the present schema", judged)
        return await BatchLLMDeadLetterOperator.work(self, session, context)

    async def _send_and_wait(self, session: JobSession, order: StageOrder | None) -> Progress:
        progress = await super()._send_and_wait(session, order)
        if order is not None and progress.job.counts.get("rows"):  # not again after each wait
            self._log_what_was_sent(session, progress.job)
        return progress

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Return the counts, skip where there was nothing to do, or fail with the commonest codes."""
        if self.on_empty == OnEmpty.SKIP:
            skip_empty(job)
        # What was decided by hand while this task ran, it has carried out.
        done: dict[str, Any] = {DECISIONS: decisions(session.ledger.events(job.job_id))}
        try:
            told = BatchLLMDeadLetterOperator.finish(self, session, job, context)
        except BatchLLMError as error:
            if error.deterministic:  # not tried again by Airflow: a later try can only come from a clear
                self._note_done(session, job, context, **done)
            raise
        self._note_done(session, job, context, **done, **{GREEN: job.seen.get("submit")})
        return told

    def _remembered(self, session: JobSession, job: Job | None, this: Try) -> dict[str, Any]:
        made = decisions(session.ledger.events(job.job_id)) if job is not None else 0
        return {**super()._remembered(session, job, this), ONE_TASK: True, DECISIONS: made}
