"""What the tasks of a job share: the job's key, the tools, waiting, errors, XCom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.exceptions import AirflowException
from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralTimeout

from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.holds import refused_reading
from airflow_batch_llm.core.model import BatchState, Job, JobKey
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import JobSpec, OnDeadline, Progress
from airflow_batch_llm.core.tools import Tools, read_description
from airflow_batch_llm.declared import Declared
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    BatchLLMError,
    ConfigurationError,
    ProviderError,
    RateLimited,
    Unreachable,
)
from airflow_batch_llm.import_paths import callable_path
from airflow_batch_llm.operators.arguments import check_schema, check_text, check_types, chosen, is_pending
from airflow_batch_llm.operators.asking import RESULTS_FORMATS, Asking, further_formats
from airflow_batch_llm.operators.mapped import BatchLLMPartial
from airflow_batch_llm.operators.session import JobSession, OtherBackends, hook_of
from airflow_batch_llm.triggers.waiting import WaitOrder, wait

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_batch_llm.core.ledger_port import Ledger
    from airflow_batch_llm.core.ports import Workspace
    from airflow_batch_llm.sinks.sql import SqlSink

#: Airflow's ``retries`` of our tasks, where neither they nor ``default_args`` say otherwise.
RETRIES = 3
#: Airflow's own time-out of a defer lies this far behind the job's, seconds.
_DEFER_MARGIN = 3600.0


class BatchLLMJobOperator(BaseOperator):
    """Base of the tasks of one job. Each of them can defer and derives the job's key by itself.

    :param submit_task_id: task id of the submitting task (with its group's prefix).
    :param llm_conn_id: connection of type ``batch_llm``, ``openai``, ``anthropic`` or ``pydanticai``.
        Templated.
    :param job_key: names the job in place of ``submit_task_id``, where names of tasks or groups may change.
        Of a mapped task: a fixed one leaves the map index part of the key; one that is given for each map
        index (mapped, templated, or the result of a task) names the job alone, so that the order may change.
        No two submitting tasks of a run may share a job. Templated.
    :param row_retry: which rows are sent again. Give all tasks of a job the same: each decides about the
        rows that it judges.
    :param output_schema: pydantic class, ``"module:Class"`` or JSON schema that answers must fit. None:
        as it was when the job was submitted (a class where it can be imported, else its JSON schema).
    :param validate: function ``(output, row)``, or ``"module:function"``, that looks at every answer that
        fits its schema; ``row`` holds the key and the carried columns. It returns None, or the reason why it
        rejects the answer, or raises ValueError with it. None: as it was when the job was submitted.
    :param echo: ``{field of the answer: column}``: the answer must repeat the column's value (one of the key,
        a carried one, or ``"custom_id"``), or it belongs to another row. None: as it was when the job was
        submitted.
    :param sink: where answers are landed.
    :param results_formats: forms in which the answers are published: ``"jsonl"``, always there, and
        ``"parquet"``.
    :param job_timeout: bound of the whole job, from its start, its last clear or its last re-drive.
    :param on_deadline: what is done once that time is over. ``"collect"``: batches that run are cancelled,
        what they answered lands, and every row without an answer becomes a dead letter. ``"fail"``: nothing
        is cancelled and nothing more is sent; the job halts until it is cleared or resumed with more time.
        Templated.
    :param deferrable: wait in the triggerer (default); False waits in the worker, with the same verdicts.
    :param cancel_on_kill: cancel the batches when a person ends the waiting task by hand.
    :param poll_interval: first pause between two looks, seconds; None for ``[batch_llm] poll_interval_min``.
    :param retries: Airflow's, with another default; ``default_args`` go before it.
    :raises AirflowFailException: what cannot get better by trying again (see ``exceptions.py``).
    """

    template_fields: Sequence[str] = ("llm_conn_id", "job_key", "on_deadline")
    ui_color = "#e8f0fb"

    def __init__(
        self,
        *,
        submit_task_id: str,
        llm_conn_id: str | None = "batch_llm_default",
        job_key: str | None = None,
        row_retry: RowRetry | None = None,
        output_schema: Any = None,
        validate: Callable[..., Any] | str | None = None,
        echo: Mapping[str, str] | None = None,
        sink: SqlSink | None = None,
        results_formats: Sequence[str] = ("jsonl",),
        job_timeout: timedelta = timedelta(days=7),
        on_deadline: str = OnDeadline.COLLECT,
        deferrable: bool = True,
        cancel_on_kill: bool = False,
        poll_interval: float | None = None,
        retries: int | None = RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.submit_task_id = submit_task_id
        self.llm_conn_id = llm_conn_id
        self.job_key = job_key
        self.row_retry = row_retry or RowRetry()
        self.output_schema = output_schema
        self.validate = validate
        self.echo = echo
        self.sink = sink
        self.results_formats = results_formats
        self.job_timeout = job_timeout
        self.on_deadline = on_deadline
        self.deferrable = deferrable
        self.cancel_on_kill = cancel_on_kill
        self.poll_interval = poll_interval
        self._job_key_varies = is_pending(job_key)
        #: What this process was woken by, None in the first of a try.
        self._woken_by: str | None = None
        self._check_shared()
        if isinstance(sink, Declared):
            sink.bind(self)

    @classmethod
    def partial(cls, **kwargs: Any) -> BatchLLMPartial:
        """Fix arguments of a mapped task. See Airflow's ``partial``.

        :raises ConfigurationError: rows are given that cannot be a source.
        """
        return BatchLLMPartial.of(super().partial(**kwargs))

    # -- what Airflow calls ------------------------------------------------------------------------
    def execute(self, context: Context) -> Any:
        """Do what can be done now; defer or wait for the rest."""
        return self._run(context)

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Go on after the trigger fired. The event is a hint: the engine looks for itself."""
        self._woken_by = str(event.get("status")) if event else "unknown"
        if event:
            self.log.info("woken: %s, %s batches ended", event.get("status"), event.get("ended"))
        return self._run(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after Airflow's own time-out of the defer, too: the engine knows the job's deadline."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self.log.warning("the defer timed out in Airflow; looking at the job itself")
            self._woken_by = "timeout"
            return self._run(context)

    # -- what a task of its own kind does ------------------------------------------------------------
    async def work(self, session: JobSession, context: Context) -> Progress:
        """Do what can be done now."""
        raise NotImplementedError

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Return the task's XCom (under 4 KB) when its part of the job is done."""
        return summary(job)

    def check_rendered(self, context: Context) -> None:
        """See that arguments which are known only now are what they may be.

        :raises ConfigurationError: one is not.
        """
        self._check_shared()

    # -- shared --------------------------------------------------------------------------------------
    def _check_shared(self) -> None:
        check_text(self.task_id, llm_conn_id=self.llm_conn_id, job_key=self.job_key)
        check_types(
            self.task_id,
            row_retry=(self.row_retry, (RowRetry, type(None))),
            echo=(self.echo, (Mapping, type(None))),
            sink=(self.sink, (Declared, type(None))),
            results_formats=(self.results_formats, (list, tuple)),
            job_timeout=(self.job_timeout, timedelta),
            deferrable=(self.deferrable, bool),
            cancel_on_kill=(self.cancel_on_kill, bool),
            poll_interval=(self.poll_interval, (int, float, type(None))),
        )
        check_schema(self.task_id, self.output_schema)
        if self.validate is not None:
            callable_path(self.validate, f"{self.task_id}: validate")
        for name in self.results_formats:
            chosen(self.task_id, "results_formats", name, RESULTS_FORMATS)
        chosen(self.task_id, "on_deadline", self.on_deadline, list(OnDeadline))

    def job_of(self, context: Context, namespace: str) -> JobKey:
        """Return the key of the job this task works on."""
        ti = context["ti"]
        map_index = ti.map_index if ti.map_index is not None else -1
        if self.names_job_alone():
            map_index = -1
        return JobKey(namespace, ti.dag_id, ti.run_id, self.job_key or self.submit_task_id, map_index)

    def names_job_alone(self) -> bool:
        """Say whether ``job_key`` may be another for each map index, so that it names the job by itself."""
        return bool(self.job_key) and (self._job_key_varies or self._is_mapped_over("job_key"))

    def _is_mapped_over(self, name: str) -> bool:
        """Say whether an argument of this task comes from ``expand`` or ``expand_kwargs``."""
        dag = self.get_dag()
        declared = dag.task_dict.get(self.task_id) if dag is not None else None
        return isinstance(declared, MappedOperator) and name not in declared.partial_kwargs

    def _run(self, context: Context) -> Any:
        try:
            self.check_rendered(context)
            session = self.open_session(context)
            progress = asyncio.run(self._work_until_wait(session, context))
            if progress.done:
                return self.finish(session, progress.job, context)
        except BatchLLMError as error:
            raise_for_airflow(error)
        self._defer(session, progress)

    async def _work_until_wait(self, session: JobSession, context: Context) -> Progress:
        try:
            while True:
                progress = await self._work_or_wait_out(session, context)
                if progress.done or self.deferrable:
                    return progress
                hook = hook_of(progress)
                event = await wait(self._wait_order(session, progress), hook.llm_conn_id, hook.amake_backend)
                self._woken_by = event["status"]
                self.log.info("looked: %s, %s batches ended", event["status"], event["ended"])
        finally:
            await session.backend.aclose()
            await session.others.aclose()

    async def _work_or_wait_out(self, session: JobSession, context: Context) -> Progress:
        """Work. What keeps us from looking at batches that are paid for is waited out, up to the job's
        deadline: an outage; and a key that is refused, until the wait has met that several times in a row.
        Then the connection is held: the job that met it first raises, the others go on waiting.
        """
        from airflow_batch_llm.operators.metrics import measured

        try:
            with measured(session.ledger, session.tools.spec.key, session.tools.spec.conn_id):
                return await self.work(session, context)
        except (Unreachable, RateLimited, AuthError, AccountError) as error:
            waiting = self._wait_out(session, error)
            if waiting is None:
                raise
            self.log.warning("%s while batches are out; trying again later", error.code)
            return waiting

    def _wait_out(self, session: JobSession, error: ProviderError) -> Progress | None:
        """Return what to wait for after an error, None where it must be raised.

        :raises AuthError, AccountError: the error, where this job is the one that tells it.
        """
        from airflow_batch_llm.hooks.settings import read_settings

        ledger = session.ledger
        job = ledger.get_job(session.tools.spec.key.job_id)
        now = ledger.now()
        if job is None or (job.deadline_at is not None and now > job.deadline_at):
            return None
        out = ledger.batches(job.job_id, states=[BatchState.SUBMITTED, BatchState.ENDED])
        if not out:
            return None
        # The fault is of one connection, and a job may have batches with several.
        conn_id = next((batch.conn_id for batch in out if batch.conn_id == error.conn_id), out[0].conn_id)
        if isinstance(error, (AuthError, AccountError)):
            running = [b for b in out if b.state is BatchState.SUBMITTED and b.conn_id == conn_id]
            if self._woken_by in ("auth", "account") or not running:
                later = refused_reading(session.tools, job, conn_id, error)
                return Progress(job, False, conn_id=conn_id, not_before=later.not_before, reason=later.reason)
            ids = tuple(batch.provider_batch_id or "" for batch in running)
            unsure = tuple(batch.provider_batch_id or "" for batch in running if batch.provisional)
            return Progress(job, False, ids, conn_id, reason=error.code, provisional=unsure)
        asked = error.retry_after or 0.0 if isinstance(error, RateLimited) else 0.0
        pause = max(asked, read_settings().poll_interval_max)
        return Progress(job, False, conn_id=conn_id, not_before=now + pause, reason=error.code)

    def empty_is_content(self) -> bool:
        """Say whether a source without rows may empty what a sink replaces."""
        return False

    def open_session(self, context: Context) -> JobSession:
        """Open ledger, workspace and backend for the job."""
        from airflow_batch_llm.backends import find_decoder
        from airflow_batch_llm.hooks.batch_llm import BatchLLMHook
        from airflow_batch_llm.hooks.settings import engine_settings, read_settings
        from airflow_batch_llm.hooks.state import open_ledger, open_workspace
        from airflow_batch_llm.storage.row_index import DiskRowIndex

        settings = read_settings()
        ledger = open_ledger()
        workspace = open_workspace()
        key = self.job_of(context, ledger.namespace())
        conn_id = self.llm_conn_id or self._conn_of_job(ledger, key)
        hook = BatchLLMHook(conn_id)
        backend = hook.make_backend()
        asked = self.asked(ledger, workspace, key)
        judge = asked.judge(self.output_schema, self.validate, self.echo, self.known_columns())
        spec = JobSpec(
            key=key,
            conn_id=conn_id,
            policy=self.row_retry,
            judge=judge,
            sink=asked.sink(self.sink, context, judge.schema),
            on_deadline=OnDeadline(self.on_deadline),
            results_formats=further_formats(self.results_formats, judge.schema),
            empty_is_content=self.empty_is_content(),
        )
        tools = Tools(
            ledger=ledger,
            workspace=workspace,
            backend=backend,
            spec=spec,
            new_index=DiskRowIndex,
            settings=engine_settings(settings),
            other_backend=(others := OtherBackends()),
            other_decoder=find_decoder,
        )
        return JobSession(Engine(tools), ledger, hook, backend, others)

    def asked(self, ledger: Ledger, workspace: Workspace, key: JobKey) -> Asking:
        """Return how the job was submitted, for what this task is not told."""
        job = ledger.get_job(key.job_id)
        if job is None or job.plan_id is None:
            return Asking()
        return Asking.described(read_description(workspace, workspace.job_root(key), job.plan_id))

    def known_columns(self) -> Collection[str] | None:
        """Return the key and carried columns, None where this task cannot know them."""
        return None

    def _conn_of_job(self, ledger: Ledger, key: JobKey) -> str:
        job = ledger.get_job(key.job_id)
        if job is None:
            raise ConfigurationError(
                f"llm_conn_id is None, and job {key.job_id} ({'/'.join(map(str, key.parts[1:]))}) is not in "
                "the ledger to take it from"
            )
        return job.conn_id

    def _wait_order(self, session: JobSession, progress: Progress) -> WaitOrder:
        from airflow_batch_llm.hooks.settings import read_settings

        settings = read_settings()
        now = time.time()
        # The engine's times are by the ledger's clock; waiting goes by this machine's.
        shift = now - session.ledger.now()
        deadline = progress.job.deadline_at
        interval_min = self.poll_interval if self.poll_interval is not None else settings.poll_interval_min
        return WaitOrder(
            batches=progress.provider_batches,
            more_planned=progress.more_planned,
            not_before=progress.not_before + shift if progress.not_before is not None else None,
            deadline=deadline + shift if deadline is not None and deadline + shift > now else None,
            first_look_at=now + (settings.first_poll_delay if self.deferrable else interval_min),
            interval_min=interval_min,
            interval_max=max(settings.poll_interval_max, interval_min),
        )

    def _defer(self, session: JobSession, progress: Progress) -> NoReturn:
        from airflow_batch_llm.triggers.batches import BatchLLMTrigger

        order = self._wait_order(session, progress)
        timeout = None
        if order.deadline is not None:
            timeout = timedelta(seconds=max(order.deadline - time.time(), 0.0) + _DEFER_MARGIN)
        self.log.info(
            "job %s: waiting for %d batches (%s)",
            progress.job.job_id,
            len(order.batches),
            progress.reason or "running",
        )
        self.defer(
            trigger=BatchLLMTrigger(
                conn_id=progress.conn_id or session.hook.llm_conn_id,
                batches=list(order.batches),
                more_planned=order.more_planned,
                not_before=order.not_before,
                deadline=order.deadline,
                first_look_at=order.first_look_at,
                interval_min=order.interval_min,
                interval_max=order.interval_max,
                cancel_on_kill=self.cancel_on_kill,
                provisional=list(progress.provisional),
            ),
            method_name="execute_complete",
            timeout=timeout,
        )
        raise AssertionError("defer raises")


def raise_for_airflow(error: BatchLLMError) -> NoReturn:
    """Raise as Airflow's own: what cannot get better fails at once, the rest follows ``retries``."""
    if error.deterministic:
        raise AirflowFailException(str(error)) from error
    raise AirflowException(str(error)) from error


def summary(job: Job) -> dict[str, Any]:
    """Describe a job in ids and counts, for XCom."""
    return {
        "job_id": job.job_id,
        "revision": job.revision,
        "round": job.round,
        "state": str(job.state),
        "halt_code": job.halt_code,
        "counts": dict(job.counts),
    }
