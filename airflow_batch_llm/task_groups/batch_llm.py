"""``batch_llm_group``: submit -> reconcile -> retry -> dead_letter in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_batch_llm.core.spec import OnDeadline, OnEmpty, Rerun
from airflow_batch_llm.operators.dead_letter import BatchLLMDeadLetterOperator
from airflow_batch_llm.operators.reconcile import BatchLLMReconcileOperator
from airflow_batch_llm.operators.retry import BatchLLMRetryOperator
from airflow_batch_llm.operators.submit import BatchLLMSubmitOperator

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from airflow_batch_llm.core.policy import RowRetry
    from airflow_batch_llm.core.retention import Retention
    from airflow_batch_llm.core.reuse import Reuse
    from airflow_batch_llm.prompts import RowPrompt
    from airflow_batch_llm.sinks.sql import SqlSink


class BatchLLMGroup(TaskGroup):
    """The tasks of a job."""

    @property
    def results(self) -> XComArg:
        """What the last task returns: which job it was and where its results are, no rows.

        ``ResultsSource(group.results)`` and ``read_results`` take it. Outside of a mapped group that holds
        this one, it stands for the list of all of them.
        """
        last = self.get_child_by_label("dead_letter")
        assert isinstance(last, BatchLLMDeadLetterOperator)
        return last.output


def batch_llm_group(
    *,
    group_id: str,
    source: Any,
    prompt: RowPrompt | None = None,
    endpoint: str = "chat",
    llm_conn_id: str = "batch_llm_default",
    model: str | None = None,
    output_schema: Any = None,
    validate: Callable[..., Any] | str | None = None,
    echo: Mapping[str, str] | None = None,
    max_tokens: int | None = None,
    params: Mapping[str, Any] | None = None,
    cache_prefix: bool = False,
    key: str | Sequence[str] | None = None,
    carry: str | Sequence[str] = (),
    samples: int = 1,
    redact: Callable[..., Any] | str | None = None,
    reuse: Reuse | None = None,
    row_retry: RowRetry | None = None,
    sink: SqlSink | None = None,
    results_formats: Sequence[str] = ("jsonl",),
    retention: Retention | None = None,
    max_dead_letter_ratio: float = 0.0,
    on_empty: str = OnEmpty.SKIP,
    min_rows: int = 0,
    rerun: str = Rerun.MISSING,
    job_timeout: timedelta = timedelta(days=7),
    on_deadline: str = OnDeadline.COLLECT,
    job_key: str | None = None,
    deferrable: bool = True,
    cancel_on_kill: bool = False,
    poll_interval: float | None = None,
    outlets: Any = None,
    task_args: Mapping[str, Any] | None = None,
) -> BatchLLMGroup:
    """Return a task group that sends rows in batches and accounts for every one of them.

    The group always has the same four tasks, whatever its arguments; the last one decides the state of
    the run. Parameters are those of :class:`BatchLLMSubmitOperator`,
    :class:`BatchLLMDeadLetterOperator` and their base.

    :param outlets: assets that the last task updates, when it succeeds.
    :param task_args: further arguments of all four tasks (``retries``, ``pool``, ``queue`` …).
    """
    shared: dict[str, Any] = {
        "llm_conn_id": llm_conn_id,
        "output_schema": output_schema,
        "validate": validate,
        "echo": echo,
        "row_retry": row_retry,
        "sink": sink,
        "results_formats": results_formats,
        "job_key": job_key,
        "job_timeout": job_timeout,
        "on_deadline": on_deadline,
        "deferrable": deferrable,
        "cancel_on_kill": cancel_on_kill,
        "poll_interval": poll_interval,
        **(task_args or {}),
    }
    group = BatchLLMGroup(group_id=group_id)
    with group:
        submit = BatchLLMSubmitOperator(
            task_id="submit",
            source=source,
            prompt=prompt,
            endpoint=endpoint,
            model=model,
            max_tokens=max_tokens,
            cache_prefix=cache_prefix,
            key=key,
            carry=carry,
            samples=samples,
            redact=redact,
            reuse=reuse,
            retention=retention,
            rerun=rerun,
            on_empty=on_empty,
            min_rows=min_rows,
            **shared,
        )
        submit.ask_with(params)
        shared["submit_task_id"] = submit.task_id
        reconcile = BatchLLMReconcileOperator(task_id="reconcile", **shared)
        retry = BatchLLMRetryOperator(task_id="retry", **shared)
        dead_letter = BatchLLMDeadLetterOperator(
            task_id="dead_letter",
            max_dead_letter_ratio=max_dead_letter_ratio,
            **shared,
            **({"outlets": outlets} if outlets is not None else {}),
        )
        submit >> reconcile >> retry >> dead_letter
    return group
