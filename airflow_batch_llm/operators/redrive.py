"""Re-drive: a person's decision to send the dead letters of a job again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.model import Job, JobKey
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.settle import tally
from airflow_batch_llm.core.spec import Progress, Until
from airflow_batch_llm.operators.base import BatchLLMJobOperator, JobSession, summary
from airflow_batch_llm.operators.halted import refuse_halted

if TYPE_CHECKING:
    from airflow.sdk import Context


class BatchLLMRedriveOperator(BatchLLMJobOperator):
    """Send the open dead letters of a settled job again, as a further round of that job.

    What is answered is published and landed with the job's other answers and its letter becomes
    ``resolved``; what fails again is ``open`` again, with one more attempt in its history. A retry of
    this task plans nothing new; a clear does.

    :param target_dag_id: DAG of the job.
    :param target_run_id: its DAG run.
    :param target_task_id: its submitting task (``label_tickets.submit``), or its ``job_key``.
    :param target_map_index: -1 for an unmapped task.
    :param codes: only letters with one of these codes; None for all.
    :param reason: why, for the record.
    :param llm_conn_id: None for the connection the job was sent with.
    :param row_retry: further rounds within the re-drive; one by default.
    """

    template_fields: Sequence[str] = (
        "llm_conn_id",
        "target_dag_id",
        "target_run_id",
        "target_task_id",
        "target_map_index",
        "codes",
        "reason",
    )

    def __init__(
        self,
        *,
        target_dag_id: str,
        target_run_id: str,
        target_task_id: str,
        target_map_index: int | str = -1,
        codes: Sequence[str] | None = None,
        reason: str = "",
        llm_conn_id: str | None = None,
        row_retry: RowRetry | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs["submit_task_id"] = ""
        super().__init__(llm_conn_id=llm_conn_id, row_retry=row_retry or RowRetry(max_rounds=1), **kwargs)
        self.target_dag_id = target_dag_id
        self.target_run_id = target_run_id
        self.target_task_id = target_task_id
        self.target_map_index = target_map_index
        self.codes = codes
        self.reason = reason

    def job_of(self, context: Context, namespace: str) -> JobKey:
        """Return the key of the job that is re-driven."""
        return JobKey(
            namespace, self.target_dag_id, self.target_run_id, self.target_task_id, int(self.target_map_index)
        )

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Plan the round once, then see it through."""
        ti = context["ti"]
        mark = "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.max_tries)))
        planned = session.engine.redrive(
            actor=f"redrive {ti.dag_id}/{ti.run_id}",
            reason=self.reason,
            mark=mark,
            codes=tuple(self.codes or ()),
            job_timeout=self.job_timeout.total_seconds(),
        )
        if planned:
            self.log.info("%d dead letters are sent again", planned)
        return await session.engine.advance(Until.SETTLED)

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Return the counts; letters that stay open are no failure of this task, a halted job is."""
        refuse_halted(session.ledger, job)
        codes = tally(session.tools, job)
        self.log.info(
            "job %s: %d answered, %d dead letters open%s",
            job.job_id,
            job.counts.get("answered", 0),
            sum(codes.values()),
            f" ({', '.join(f'{code}: {number}' for code, number in codes.most_common(5))})" if codes else "",
        )
        return {**summary(job), "dead_letters": dict(codes.most_common(5))}
