"""The live part of ``batch-llm doctor``: three rows through the whole engine, and a batch that is cancelled.

Both are jobs of their own under the DAG id ``doctor``, in the ledger and the workspace that tasks use, and
are closed whatever comes of them: letters that they leave are discarded.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_batch_llm.cli.doctor_checks import Finding, State, fault_of
from airflow_batch_llm.core.by_hand import accepted_halt, cancel, settle_accepted, what_runs
from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import BatchState, Job, JobKey, JobState, LetterState, RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.publish import read_answers
from airflow_batch_llm.core.spec import JobSpec, OnEmpty, Progress, StageOrder, Until
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import BatchLLMError, RateLimited, Unreachable

if TYPE_CHECKING:
    from airflow_batch_llm.core.ports import Backend
    from airflow_batch_llm.storage.ledger import SqlLedger
    from airflow_batch_llm.storage.workspace import ObjectWorkspace

DAG_ID = "doctor"
ACTOR = "doctor"
REASON = "a trial of batch-llm doctor"
#: What is asked, and the most that an answer may be long (tokens).
QUESTIONS = ("Answer with the word red.", "Answer with the word green.", "Answer with the word blue.")
MAX_TOKENS = 16
#: Tokens that one question may take with its message around it, generously.
_ASKED_TOKENS = 24
#: A model that thinks first may use up 16 tokens: the row came back all the same.
_CUT = frozenset({Verdict.TRUNCATED, Verdict.EMPTY})
#: What a provider may take to cancel a batch (OpenAI: up to ten minutes), on top of the bound of a job.
_CANCEL_SECONDS = 900.0
#: Pauses between two looks, seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


def check_live(ledger: SqlLedger, workspace: ObjectWorkspace, args: argparse.Namespace) -> Iterator[Finding]:
    """Send three rows and wait for them; send two more and cancel them."""
    from airflow_batch_llm.hooks.batch_llm import connection_defaults
    from airflow_batch_llm.hooks.connections import find_connection

    model = args.model or connection_defaults(find_connection(args.llm_conn)).model
    price = _price(model, args.max_usd)
    yield price
    if price.state is State.FAULT or model is None:
        return
    trial = _Trial(ledger, workspace, args.llm_conn, model, args.wait * 60.0)
    for check, work in (("rows", trial.rows), ("cancel", trial.cancelled)):
        try:
            yield trial.run(check, work)
        except BatchLLMError as error:
            yield fault_of(check, error)


def _price(model: str | None, max_usd: float | None) -> Finding:
    """Say what the trial may cost: a bound in tokens, as no price list is at hand."""
    if model is None:
        return Finding("price", State.FAULT, "no model is named", "give --model, or one in the connection")
    requests = len(QUESTIONS) + 2
    tokens = requests * (_ASKED_TOKENS + MAX_TOKENS)
    found = f"{model}: price unknown; {requests} requests, {tokens} tokens at most"
    if max_usd is None:
        do = "give --max-usd: what the trial may cost"
        return Finding("price", State.FAULT, f"{found}: nothing is sent", do)
    found += (
        f": below {max_usd:g} USD where a million tokens cost less than {max_usd / tokens * 1e6:,.0f} USD"
    )
    return Finding("price", State.OK, found, numbers={"max_tokens": tokens, "max_usd": max_usd})


@dataclass(frozen=True, slots=True)
class _Trial:
    """What both jobs have in common.

    :param bound: seconds for one job; past it, it collects what there is.
    """

    ledger: SqlLedger
    workspace: ObjectWorkspace
    conn_id: str
    model: str
    bound: float

    def run(self, task_id: str, work: Callable[[Engine, StageOrder], Awaitable[Finding]]) -> Finding:
        """Run one job to its end and close it."""
        from airflow_batch_llm.operators.base import OtherBackends

        key = JobKey(self.ledger.namespace(), DAG_ID, _run_id(), task_id)
        backends = OtherBackends()

        async def whole() -> Finding:
            try:
                async with asyncio.timeout(self.bound + _CANCEL_SECONDS):
                    return await work(Engine(self._tools(key, backends)), self._order(task_id))
            except TimeoutError:
                found = f"job {key.job_id} has not ended; what it sent is left at the provider"
                do = f"batch-llm show {key.job_id} in a while; batch-llm cancel or accept it"
                return Finding(task_id, State.FAULT, found, do)
            finally:
                await backends.aclose()

        try:
            return asyncio.run(whole())
        finally:
            self._discard_letters(key.job_id)

    async def rows(self, engine: Engine, order: StageOrder) -> Finding:
        """Submit, wait, reconcile, publish; every row must be answered, or cut at the limit."""
        job = await _see_through(engine, order)
        settled = job.state is JobState.SETTLED
        answers = list(read_answers(engine.tools, job)) if settled else []
        letters = list(self.ledger.dead_letters(job.job_id))
        cut = [letter for letter in letters if letter.attempts and letter.attempts[-1].verdict in _CUT]
        tokens = sum(answer.usage.get("input", 0) + answer.usage.get("output", 0) for answer in answers)
        found = f"{len(answers)} of {len(QUESTIONS)} rows answered"
        found += f", {len(cut)} cut at {MAX_TOKENS} tokens" if cut else ""
        found += f"; job {job.job_id}, model {answers[0].model if answers else self.model}, {tokens} tokens"
        if settled and len(answers) + len(cut) == len(QUESTIONS):
            return Finding("rows", State.OK, found, numbers={"job_id": job.job_id, "tokens": tokens})
        codes = sorted({letter.code for letter in letters} - {letter.code for letter in cut})
        told = f"{found}; {job.halt_code or ', '.join(codes)}"
        return Finding(
            "rows", State.FAULT, told, f"batch-llm show {job.job_id}; docs/verdicts.md has the codes"
        )

    async def cancelled(self, engine: Engine, order: StageOrder) -> Finding:
        """Submit a batch, ask for its cancellation, and take what comes of it."""
        job = await _until_sent(engine, order)
        asked = "was done before it could be cancelled"
        if job.state is not JobState.HALTED and self._runs(job):
            done = await cancel(lambda _: engine.tools, self.ledger, job, actor=ACTOR, reason=REASON)
            if not done.whole:
                told = ", ".join([*done.in_doubt, *done.failed.values()])
                do = f"batch-llm accept {job.job_id} --cancel --reason …"
                return Finding("cancel", State.FAULT, f"not every batch could be asked: {told}", do)
            asked = "asked to cancel"
            halted = engine.tools.reload(job)
            self.ledger.accept_job(halted, letters=0, actor=ACTOR, reason=REASON)
        job = await _see_through(engine)
        if job.state is not JobState.SETTLED:
            found = f"job {job.job_id} is {job.state.value} ({job.halt_code})"
            return Finding("cancel", State.FAULT, found, f"batch-llm show {job.job_id}")
        statuses = {b.provider_status for b in self.ledger.batches(job.job_id)}
        found = f"a batch was sent and {asked}; it ended as {', '.join(sorted(filter(None, statuses)))}"
        return Finding("cancel", State.OK, f"{found}; job {job.job_id}", numbers={"job_id": job.job_id})

    def _runs(self, job: Job) -> bool:
        return bool(self.ledger.batches(job.job_id, states=[BatchState.SUBMITTING, BatchState.SUBMITTED]))

    def _tools(self, key: JobKey, backends: Callable[[str], Backend]) -> Tools:
        from airflow_batch_llm.backends import find_decoder
        from airflow_batch_llm.hooks.settings import engine_settings, read_settings
        from airflow_batch_llm.storage.row_index import DiskRowIndex

        return Tools(
            ledger=self.ledger,
            workspace=self.workspace,
            backend=backends(self.conn_id),
            spec=JobSpec(key, self.conn_id, RowRetry(max_rounds=0), Judge()),
            new_index=DiskRowIndex,
            settings=engine_settings(read_settings()),
            other_backend=backends,
            other_decoder=find_decoder,
        )

    def _order(self, task_id: str) -> StageOrder:
        rows = order_rows(len(QUESTIONS) if task_id == "rows" else 2)
        return StageOrder(
            template=RequestTemplate(CHAT, self.model, {"max_tokens": MAX_TOKENS}),
            drafts=lambda: rows,
            mark=0,
            on_empty=OnEmpty.FAIL,
            job_timeout=self.bound,
        )

    def _discard_letters(self, job_id: str) -> None:
        """Nobody is to decide about rows of a trial."""
        wire_ids = [x.wire_id for x in self.ledger.dead_letters(job_id, states=[LetterState.OPEN])]
        if wire_ids:
            self.ledger.move_dead_letters(
                job_id,
                wire_ids,
                to=LetterState.DISCARDED,
                expect=[LetterState.OPEN],
                actor=ACTOR,
                reason=REASON,
            )


def order_rows(count: int) -> list[Draft]:
    """Return the first questions as rows."""
    return [
        Draft(
            line=line,
            custom_id=f"row-{line}",
            body={"messages": [{"role": "user", "content": question}]},
            row={"id": f"row-{line}"},
            key={"id": f"row-{line}"},
        )
        for line, question in enumerate(QUESTIONS[:count], start=1)
    ]


async def _until_sent(engine: Engine, order: StageOrder) -> Job:
    """Stage the job and send its batch; what could not be sent now is tried again until it was."""
    pause = _FIRST_PAUSE
    while True:
        progress = await _step(engine, Until.ENDED, order)
        if progress is not None and (progress.done or progress.provider_batches):
            return progress.job
        await _wait(engine, progress, pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def _see_through(engine: Engine, order: StageOrder | None = None) -> Job:
    """Do what the tasks of a job would, and wait in between. An outage is waited out."""
    pause = _FIRST_PAUSE
    while True:
        progress = await _step(engine, Until.SETTLED, order)
        if progress is not None and progress.done:
            accepted = accepted_halt(progress.job)
            if accepted is None:
                return progress.job
            if (settled := settle_accepted(engine.tools, progress.job, accepted)) is not None:
                return settled
            progress = what_runs(engine.tools, progress.job)
        await _wait(engine, progress, pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def _step(engine: Engine, until: Until, order: StageOrder | None) -> Progress | None:
    try:
        return await engine.advance(until, order)
    except (Unreachable, RateLimited):
        return None


async def _wait(engine: Engine, progress: Progress | None, pause: float) -> None:
    later = progress.not_before if progress is not None and not progress.provider_batches else None
    await asyncio.sleep(pause if later is None else max(min(later - engine.tools.ledger.now(), pause), 0.05))


def _run_id() -> str:
    return f"doctor__{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}__{secrets.token_hex(3)}"
