"""The submitting task: rows in, batches out, wait for them to end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowSkipException

from airflow_batch_llm.core.endpoints import ENDPOINTS, endpoint_path
from airflow_batch_llm.core.model import Job, RequestTemplate
from airflow_batch_llm.core.opening import refuse_second_owner
from airflow_batch_llm.core.retention import Retention
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import OnEmpty, Progress, Rerun, StageOrder, Until
from airflow_batch_llm.declared import names
from airflow_batch_llm.exceptions import ClearedAlone, ConfigurationError
from airflow_batch_llm.import_paths import callable_path, load_callable
from airflow_batch_llm.operators.arguments import (
    check_text,
    check_types,
    chosen,
    is_pending,
    number,
    own_params,
    request_params,
    resolved,
)
from airflow_batch_llm.operators.asking import Asking
from airflow_batch_llm.operators.base import BatchLLMJobOperator, JobSession, summary
from airflow_batch_llm.operators.tries import Try, mark_of, mark_until_seen, note_try, tries_with
from airflow_batch_llm.prompts import CompiledPrompt, RowPrompt
from airflow_batch_llm.schemas import schema_path
from airflow_batch_llm.sources.base import RowOptions
from airflow_batch_llm.sources.rows import as_source
from airflow_batch_llm.sources.shaping import SAMPLE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_batch_llm.core.ledger_port import Ledger
    from airflow_batch_llm.core.model import JobKey
    from airflow_batch_llm.core.ports import Workspace
    from airflow_batch_llm.sources.base import ResolvedSource

_SHOWN_BATCHES = 20
_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed"})


class BatchLLMSubmitOperator(BatchLLMJobOperator):
    """Read the source once, send it in batches, and wait until they have ended.

    A retry goes on with what was staged and sent; a clear reads the source again and sends only what
    is new, changed or unanswered. Once a batch was accepted this task does not fail: it records a halt
    or a passed deadline and succeeds, so that what was paid is read.

    :param source: ``SqlSource``, ``FileSource``, ``ResultsSource``, ``OpenAIBatchFile``, ``RowsSource``, the
        output of an upstream task, or a list of rows (at most 48 KB).
    :param prompt: how a row becomes a request; not for ready-made requests.
    :param endpoint: what the requests are for: ``chat``, ``completions``, ``responses``, ``embeddings``,
        ``moderations``, or its path. Ready-made requests name their own. Templated.
    :param model: model to ask; None for the connection's default. Templated.
    :param max_tokens: bound of each answer, tokens. Templated.
    :param params: further request parameters, as the protocol names them (``temperature`` …). The DAG's own
        params are no part of it.
    :param cache_prefix: mark what all requests begin with for the provider's prompt cache, where it wants
        that marked; the answers are the same, and so are the requests for ``rerun`` and ``reuse``.
    :param key: key columns of rows given as a list or by an upstream task.
    :param carry: source columns that stand beside each answer in results and sink.
    :param samples: answers wanted to each row; above 1, ``sample`` (from 1) is a further key column.
        Templated.
    :param redact: function ``(row)``, or ``"module:function"``, that returns the row as it may be staged and
        sent; the row as it was goes nowhere.
    :param reuse: which answers that were bought before are taken in place of asking again, ``Reuse(...)``.
    :param retention: how long the job's files are kept, ``Retention(...)``.
    :param rerun: what a clear sends again: ``missing``, ``failed`` or ``fresh``. Templated.
    :param on_empty: what a source without rows means: ``skip``, ``fail`` or ``success``. Templated.
    :param min_rows: fewer rows than this, but more than none, are an error before anything is sent.
        Templated.
    """

    template_fields: Sequence[str] = (
        *BatchLLMJobOperator.template_fields,
        "endpoint",
        "model",
        "max_tokens",
        "samples",
        "rerun",
        "on_empty",
        "min_rows",
    )

    def __init__(
        self,
        *,
        source: Any,
        prompt: RowPrompt | None = None,
        endpoint: str = "chat",
        model: str | None = None,
        max_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
        cache_prefix: bool = False,
        key: str | Sequence[str] | None = None,
        carry: str | Sequence[str] = (),
        samples: int = 1,
        redact: Callable[..., Any] | str | None = None,
        reuse: Reuse | None = None,
        retention: Retention | None = None,
        rerun: str = Rerun.MISSING,
        on_empty: str = OnEmpty.SKIP,
        min_rows: int = 0,
        **kwargs: Any,
    ) -> None:
        kwargs["submit_task_id"] = ""
        super().__init__(**kwargs)
        # The task id is complete only now: a task group has put its prefix before it.
        self.submit_task_id = self.task_id
        self.source = as_source(source, key)
        self.source.bind(self)
        self.prompt = prompt
        if isinstance(prompt, RowPrompt):
            prompt.bind(self)
        self.endpoint = endpoint
        self.model = model
        self.max_tokens = max_tokens
        self.request_params = request_params(self.task_id, own_params(params))
        self.cache_prefix = cache_prefix
        self.carry = names(carry, "carry") if carry else ()
        self.samples = samples
        self.redact = redact
        self.reuse = reuse
        self.retention = retention
        self.rerun = rerun
        self.on_empty = on_empty
        self.min_rows = min_rows
        self._check_sending(rendered=False)

    def ask_with(self, params: Mapping[str, Any] | None) -> None:
        """Set the request parameters; they may refer to results of other tasks.

        As an argument, Airflow would take ``params`` for its own, and allows no references in them.

        :raises ConfigurationError: it is no mapping of names.
        """
        self.request_params = request_params(self.task_id, params)
        XComArg.apply_upstream_relationship(self, self.request_params)

    def check_rendered(self, context: Context) -> None:
        """See that arguments which are known only now are what they may be."""
        super().check_rendered(context)
        self._check_sending(rendered=True)

    def _check_sending(self, *, rendered: bool) -> None:
        task_id = self.task_id
        check_text(task_id, endpoint=self.endpoint, model=self.model)
        if self.endpoint is None:
            raise ConfigurationError(f"{task_id}: endpoint is missing; it can be {', '.join(ENDPOINTS)}")
        if not is_pending(self.endpoint):
            try:
                endpoint_path(self.endpoint)
            except ValueError as e:
                raise ConfigurationError(f"{task_id}: {e}") from None
        self.max_tokens = number(task_id, "max_tokens", self.max_tokens, least=1, rendered=rendered)
        self.samples = number(task_id, "samples", self.samples, least=1, rendered=rendered)
        self.min_rows = number(task_id, "min_rows", self.min_rows, least=0, rendered=rendered)
        check_types(
            task_id,
            prompt=(self.prompt, (RowPrompt, type(None))),
            cache_prefix=(self.cache_prefix, bool),
            reuse=(self.reuse, (Reuse, type(None))),
            retention=(self.retention, (Retention, type(None))),
        )
        if self.redact is not None:
            callable_path(self.redact, f"{task_id}: redact")
        chosen(task_id, "rerun", self.rerun, list(Rerun))
        chosen(task_id, "on_empty", self.on_empty, list(OnEmpty))

    def asked(self, ledger: Ledger, workspace: Workspace, key: JobKey) -> Asking:
        """Return what this task asks; what it is not told is not asked."""
        endpoint = endpoint_path(self.endpoint)
        return Asking(endpoint=endpoint, carry=self.carry)

    def known_columns(self) -> Collection[str] | None:
        """Return the key and carried columns; ready-made requests have none."""
        return (*self._key(), *self.carry)

    def _key(self) -> tuple[str, ...]:
        return (*self.source.key, SAMPLE) if self.samples > 1 else tuple(self.source.key)

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Stage if this revision has no plan yet, send, look."""
        job = session.ledger.get_job(session.tools.spec.key.job_id)
        ti = Try.of(context["ti"])
        mark = mark_of(job, ti)
        if job is not None:
            owner, number = self._owner(context), clear_number(context)
            refuse_second_owner(session.ledger, job, owner, number, self._known_tasks())
        if job is not None and job.seen.get("submit") == mark and job.plan_id is not None:
            note_try(session.ledger, job, ti)
            # Staged: neither source nor prompt is looked at again, they may have changed or gone.
            return await self._send_and_wait(session, None)
        self._refuse_when_cleared_alone(job, mark, context)
        order = self._order(session, context, mark, self._remembered(session, job, ti))
        # Asks for what all rows share; later each row would be refused by itself.
        session.backend.line_encoder(order.template)
        if self.sink is not None:
            asked = Asking(endpoint=order.template.endpoint, carry=self.carry)
            asked.sink(self.sink, context, session.tools.spec.judge.schema, self._key()).check()
        return await self._send_and_wait(session, order)

    async def _send_and_wait(self, session: JobSession, order: StageOrder | None) -> Progress:
        progress = await session.engine.advance(Until.ENDED, order)
        if progress.done and not progress.job.counts.get("rows"):
            # What follows is skipped: what earlier revisions left open is settled here.
            return await session.engine.advance(Until.SETTLED)
        return progress

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Skip what follows where there was nothing to do."""
        if self.on_empty == OnEmpty.SKIP:
            skip_empty(job)
        if job.halt_code:
            self.log.warning(
                "job %s is halted (%s); what was paid is read by the next task", job.job_id, job.halt_code
            )
        self._note_done(session, job, context)
        self._log_what_was_sent(session, job)
        return summary(job)

    def _remembered(self, session: JobSession, job: Job | None, this: Try) -> dict[str, Any]:
        """Return what the job remembers of the series of tries that begins."""
        return {"tries": tries_with(job, this)}

    def _note_done(self, session: JobSession, job: Job, context: Context, **also: Any) -> None:
        """Note that this series of tries is over: a later try can only come from a clear."""
        done = {"submit_done": [job.seen.get("submit"), context["ti"].try_number], **also}
        mark_until_seen(session.ledger, job, lambda current: done)

    def empty_is_content(self) -> bool:
        """Say whether no rows is what the source means to say: with ``on_empty="success"``."""
        return self.on_empty == OnEmpty.SUCCESS

    def _log_what_was_sent(self, session: JobSession, job: Job) -> None:
        counts = job.counts
        batches = session.ledger.batches(job.job_id, revision=job.revision)
        self.log.info(
            "job %s, revision %d: %d rows read, %d sent, %d kept, %d reused, %d as another row, %d refused, "
            "%d withdrawn; batches: %s",
            job.job_id,
            job.revision,
            counts.get("rows", 0),
            counts.get("sent", 0),
            sum(count for name, count in counts.items() if name.startswith("kept_")),
            counts.get("reused", 0),
            counts.get("duplicates", 0),
            counts.get("refused", 0),
            counts.get("withdrawn", 0),
            ", ".join(b.provider_batch_id or b.state for b in batches[:_SHOWN_BATCHES]) or "none",
        )

    def _owner(self, context: Context) -> str:
        """Return who submits: the task, with its map index where that is not part of the job's key."""
        index = context["ti"].map_index
        alone = self.names_job_alone() and index is not None and index >= 0
        return f"{self.task_id}[{index}]" if alone else self.task_id

    def _known_tasks(self) -> list[str]:
        dag = self.get_dag()
        return list(dag.task_ids) if dag is not None else [self.task_id]

    def _order(
        self, session: JobSession, context: Context, mark: int | str, remember: Mapping[str, Any]
    ) -> StageOrder:
        ti = context["ti"]
        source: ResolvedSource = self.source.resolve(context)
        endpoint = source.endpoint or endpoint_path(self.endpoint)
        prompt = self.prompt.resolve(context, endpoint) if self.prompt is not None else None
        if source.native and prompt is not None:
            raise ConfigurationError("ready-made requests take no prompt")
        if source.native and self.cache_prefix:
            raise ConfigurationError("ready-made requests are sent as they are: mark their prefix in them")
        if not source.native and prompt is None:
            raise ConfigurationError("a prompt is missing: prompt=RowPrompt(...)")
        options = self._row_options()
        return StageOrder(
            template=self._template(session, source, endpoint, prompt, context),
            drafts=lambda: source.drafts(prompt, options),
            mark=mark,
            # Once a try has waited, its job must be in the ledger: one that is not was lost, not new.
            first_try=ti.try_number <= 1 and self._woken_by is None,
            id_origin=source.id_origin,
            place_name=source.place_name,
            owner=self._owner(context),
            clear_number=clear_number(context),
            known_tasks=self._known_tasks(),
            rerun=Rerun(self.rerun),
            on_empty=OnEmpty(self.on_empty),
            job_timeout=self.job_timeout.total_seconds(),
            min_rows=self.min_rows,
            reuse=self.reuse,
            describe=self._description(ti),
            remember=remember,
        )

    def _row_options(self) -> RowOptions:
        redact = load_callable(self.redact, "redact", arguments=1) if self.redact is not None else None
        return RowOptions(carry=self.carry, samples=self.samples, redact=redact)

    def _description(self, ti: Any) -> dict[str, Any]:
        """Return what later tasks and the command line take from the job where they are not told."""
        return {
            "task": {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id},
            "output_schema": schema_path(self.output_schema),
            "validate": callable_path(self.validate, "validate") if self.validate is not None else None,
            "echo": dict(self.echo) if self.echo is not None else None,
            "carry": list(self.carry),
            "sink": self.sink.serialize() if self.sink is not None else None,
            "retention": self.retention.serialize() if self.retention is not None else None,
        }

    def _template(
        self,
        session: JobSession,
        source: ResolvedSource,
        endpoint: str,
        prompt: CompiledPrompt | None,
        context: Context,
    ) -> RequestTemplate:
        schema = session.tools.spec.judge.schema
        asked: dict[str, Any] = {
            "endpoint": endpoint,
            "output_schema": schema.json_schema if schema is not None else None,
            "schema_name": schema.name if schema is not None else "answer",
        }
        if source.native:
            return RequestTemplate(model=self.model or "", native=True, **asked)
        model = self.model or session.hook.account().model
        if not model:
            raise ConfigurationError(
                f"no model: give model=… or set the default model of connection {session.hook.llm_conn_id!r}"
            )
        params = resolved(self.request_params, context)
        if self.max_tokens is not None:
            params["max_tokens"] = self.max_tokens
        return RequestTemplate(
            model=model,
            params=params,
            cache_prefix=self.cache_prefix,
            shared_messages=prompt.shared_messages if prompt is not None else 0,
            **asked,
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


def clear_number(context: Context) -> int:
    """Return how often tasks of the DAG run were cleared."""
    return int(getattr(context["dag_run"], "clear_number", 0) or 0)


def skip_empty(job: Job) -> None:
    """:raises AirflowSkipException: the source had no row."""
    if job.counts.get("rows", 0) == 0:
        raise AirflowSkipException("the source returned no row")
