"""The submitting task: rows in, batches out, wait for them to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_batch_llm.core.model import Job, RequestTemplate
from airflow_batch_llm.core.opening import refuse_second_owner
from airflow_batch_llm.core.spec import OnEmpty, Progress, Rerun, StageOrder, Until
from airflow_batch_llm.exceptions import ClearedAlone, ConfigurationError
from airflow_batch_llm.operators.base import BatchLLMJobOperator, JobSession, check_types, summary
from airflow_batch_llm.operators.tries import Try, mark_of, mark_until_seen, note_try, tries_with
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.schemas import answer_schema, schema_path
from airflow_batch_llm.sources.rows import as_source

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_batch_llm.core.drafts import AnswerSchema
    from airflow_batch_llm.core.model import JobKey
    from airflow_batch_llm.core.ports import Ledger, Workspace
    from airflow_batch_llm.sources.base import ResolvedSource

_SHOWN_BATCHES = 20
_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed"})


class BatchLLMSubmitOperator(BatchLLMJobOperator):
    """Read the source once, send it in batches, and wait until they have ended.

    A retry goes on with what was staged and sent; a clear reads the source again and sends only what
    is new, changed or unanswered. Once a batch was accepted this task does not fail: it records a halt
    or a passed deadline and succeeds, so that what was paid is read.

    :param source: ``SqlSource``, ``FileSource``, ``OpenAIBatchFile``, ``RowsSource``, the output of an
        upstream task, or a list of rows (at most 48 KB).
    :param prompt: how a row becomes a request; not for ready-made requests.
    :param model: model to ask; None for the connection's default.
    :param max_tokens: bound of each answer, tokens.
    :param params: further request parameters, as the protocol names them (``temperature`` …).
    :param key: key columns of rows given as a list or by an upstream task.
    :param rerun: what a clear sends again: ``missing``, ``failed`` or ``fresh``.
    :param on_empty: what a source without rows means: ``skip``, ``fail`` or ``success``.
    """

    template_fields: Sequence[str] = ("llm_conn_id", "job_key", "model")

    def __init__(
        self,
        *,
        source: Any,
        prompt: RowPrompt | None = None,
        model: str | None = None,
        max_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
        key: str | Sequence[str] | None = None,
        rerun: str = Rerun.MISSING,
        on_empty: str = OnEmpty.SKIP,
        **kwargs: Any,
    ) -> None:
        kwargs["submit_task_id"] = ""
        super().__init__(**kwargs)
        check_types(
            self.task_id,
            prompt=(prompt, (RowPrompt, type(None))),
            model=(model, (str, type(None))),
            max_tokens=(max_tokens, (int, type(None))),
            params=(params, (Mapping, type(None))),
        )
        if max_tokens is not None and max_tokens < 1:
            raise ConfigurationError(f"{self.task_id}: max_tokens is {max_tokens}; it must be 1 or more")
        # The task id is complete only now: a task group has put its prefix before it.
        self.submit_task_id = self.task_id
        self.source = as_source(source, key)
        self.source.bind(self)
        self.prompt = prompt
        if prompt is not None:
            prompt.bind(self)
        self.model = model
        self.max_tokens = max_tokens
        self.params = dict(params or {})
        self.rerun = rerun
        self.on_empty = on_empty
        if rerun not in set(Rerun):
            raise ConfigurationError(f"rerun is {rerun!r}; it can be {', '.join(Rerun)}")
        if on_empty not in set(OnEmpty):
            raise ConfigurationError(f"on_empty is {on_empty!r}; it can be {', '.join(OnEmpty)}")

    def answer_schema(self, ledger: Ledger, workspace: Workspace, key: JobKey) -> AnswerSchema | None:
        """Return the schema given; None means free text here."""
        return answer_schema(self.output_schema)

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Stage if this revision has no plan yet, send, look."""
        job = session.ledger.get_job(session.tools.spec.key.job_id)
        if job is not None:
            refuse_second_owner(job, self.task_id, self._known_tasks())
        ti = Try.of(context["ti"])
        mark = mark_of(job, ti)
        if job is not None and job.seen.get("submit") == mark and job.plan_id is not None:
            note_try(session.ledger, job, ti)
            # Staged: neither source nor prompt is looked at again, they may have changed or gone.
            return await self._send_and_wait(session, None)
        self._refuse_when_cleared_alone(job, mark, context)
        order = self._order(session, context, mark, tries_with(job, ti))
        # Asks for what all rows share; later each row would be refused by itself.
        session.backend.line_encoder(order.template)
        if self.sink is not None:
            self.sink.resolve(context, session.tools.spec.judge.schema, self.source.key).check()
        return await self._send_and_wait(session, order)

    async def _send_and_wait(self, session: JobSession, order: StageOrder | None) -> Progress:
        progress = await session.engine.advance(Until.ENDED, order)
        if progress.done and not progress.job.counts.get("rows"):
            # What follows is skipped: what earlier revisions left open is settled here.
            return await session.engine.advance(Until.SETTLED)
        return progress

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Skip what follows where there was nothing to do."""
        if job.counts.get("rows", 0) == 0 and self.on_empty == OnEmpty.SKIP:
            raise AirflowSkipException("the source returned no row")
        if job.halt_code:
            self.log.warning(
                "job %s is halted (%s); what was paid is read by the next task", job.job_id, job.halt_code
            )
        self._note_done(session, job, context)
        self._log_what_was_sent(session, job)
        return summary(job)

    def _note_done(self, session: JobSession, job: Job, context: Context) -> None:
        """Note that this series of tries has succeeded: a later try can only come from a clear."""
        done = [job.seen.get("submit"), context["ti"].try_number]
        mark_until_seen(session.ledger, job, lambda current: {"submit_done": done})

    def _log_what_was_sent(self, session: JobSession, job: Job) -> None:
        counts = job.counts
        batches = session.ledger.batches(job.job_id, revision=job.revision)
        self.log.info(
            "job %s, revision %d: %d rows read, %d sent, %d kept, %d refused, %d withdrawn; batches: %s",
            job.job_id,
            job.revision,
            counts.get("rows", 0),
            counts.get("sent", 0),
            sum(counts.get(name, 0) for name in ("kept_answered", "kept_in_flight", "kept_dead")),
            counts.get("refused", 0),
            counts.get("withdrawn", 0),
            ", ".join(b.provider_batch_id or b.state for b in batches[:_SHOWN_BATCHES]) or "none",
        )

    def _known_tasks(self) -> list[str]:
        dag = self.get_dag()
        return list(dag.task_ids) if dag is not None else [self.task_id]

    def _order(
        self, session: JobSession, context: Context, mark: int | str, tries: list[list[Any]]
    ) -> StageOrder:
        ti = context["ti"]
        source: ResolvedSource = self.source.resolve(context)
        prompt = self.prompt.resolve(context) if self.prompt is not None else None
        if source.native and prompt is not None:
            raise ConfigurationError("ready-made requests take no prompt")
        if not source.native and prompt is None:
            raise ConfigurationError("a prompt is missing: prompt=RowPrompt(...)")
        return StageOrder(
            template=self._template(session, source),
            drafts=lambda: source.drafts(prompt),
            mark=mark,
            # Once a try has waited, its job must be in the ledger: one that is not was lost, not new.
            first_try=ti.try_number <= 1 and self._woken_by is None,
            id_origin=source.id_origin,
            owner=self.task_id,
            known_tasks=self._known_tasks(),
            rerun=Rerun(self.rerun),
            on_empty=OnEmpty(self.on_empty),
            job_timeout=self.job_timeout.total_seconds(),
            describe={
                "task": {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id},
                "output_schema": schema_path(self.output_schema),
                "sink": self.sink.serialize() if self.sink is not None else None,
            },
            remember={"tries": tries},
        )

    def _template(self, session: JobSession, source: ResolvedSource) -> RequestTemplate:
        schema = session.tools.spec.judge.schema
        if source.native:
            return RequestTemplate(
                endpoint=source.endpoint or "/v1/chat/completions",
                model=self.model or "",
                output_schema=schema.json_schema if schema is not None else None,
                schema_name=schema.name if schema is not None else "answer",
                native=True,
            )
        model = self.model or session.hook.account().model
        if not model:
            raise ConfigurationError(
                f"no model: give model=… or set the default model of connection {session.hook.llm_conn_id!r}"
            )
        params = dict(self.params)
        if self.max_tokens is not None:
            params["max_tokens"] = self.max_tokens
        return RequestTemplate(
            endpoint="/v1/chat/completions",
            model=model,
            params=params,
            output_schema=schema.json_schema if schema is not None else None,
            schema_name=schema.name if schema is not None else "answer",
        )

    def _refuse_when_cleared_alone(self, job: Job | None, mark: int | str, context: Context) -> None:
        """Refuse before anything is paid that no later task would read."""
        if job is None or job.seen.get("submit") == mark:
            return
        later = [
            task.task_id
            for task in self.get_flat_relatives(upstream=False)
            if isinstance(task, BatchLLMJobOperator)
            and (task.submit_task_id == self.task_id or (self.job_key and task.job_key == self.job_key))
        ]
        if not later:
            return
        ti = context["ti"]
        states = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=later, run_ids=[ti.run_id], map_index=ti.map_index
        ).get(ti.run_id, {})
        finished = sorted(name for name, state in states.items() if str(state) in _FINISHED)
        if finished:
            raise ClearedAlone(
                f"{self.task_id} was cleared, but {', '.join(finished)} still count as finished and "
                "would not read what this task pays for: clear with downstream. Nothing was sent"
            )
