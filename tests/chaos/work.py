"""What happens inside of a task process, as the operators do it, and where the process is disturbed."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_batch_llm.core.engine import Engine, redrive_under_way
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import OnDeadline, Progress, Settings, Until
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.exceptions import BatchLLMError, ProviderError
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.workspace import ObjectWorkspace
from airflow_batch_llm.triggers.waiting import WaitOrder, wait
from tests.chaos.breakage import BreakableWorkspace, ChaosSink, WatchedBackend, WatchedLedger, disk_fault
from tests.chaos.jobs import JobRun, Reading, Task
from tests.chaos.mutants import apply_mutant
from tests.chaos.plans import DISK_BROKEN, DISK_FULL, KILL, RESET_UPLOAD, At, Plan
from tests.chaos.processes import Teller
from tests.job_bench import Bench, drafts_of
from tests.local_server import LocalServer

CREATE_TIMEOUT, LEASE_MARGIN = 0.8, 0.6
LEASE = CREATE_TIMEOUT + LEASE_MARGIN


@dataclass(frozen=True)
class Stage:
    """Where all processes of a schedule work.

    :param folder: holds the workspace and the table of answers.
    :param reuse: rows with the same request are sent once, and what is paid for is noted for later jobs.
    :param protocol: what the connection speaks.
    """

    server: LocalServer
    ledger: SqlLedger
    folder: Path
    mutant: str | None = None
    reuse: bool = False
    protocol: str = "openai"

    @property
    def landing(self) -> Path:
        return self.folder / "landing.db"


def settings_of(plan: Plan) -> Settings:
    """Return the engine's settings: everything in fractions of a second."""
    return Settings(
        create_timeout=CREATE_TIMEOUT,
        lease_margin=LEASE_MARGIN,
        look_apart=0.2,
        queue_wait=0.1,
        queue_wait_max=0.3,
        gone_after=plan.gone_after,
        probe_first=0.2,
        probe_max=0.5,
    )


def bench_of(stage: Stage, job: JobRun, reading: Reading, fault: Callable[[str], None]) -> Bench:
    """Return the job on the bench that the engine's own tests use."""
    plan = job.plan
    return Bench(
        server=stage.server,
        ledger=stage.ledger,
        folder=stage.folder / "workspace",
        drafts=lambda: drafts_of(reading.texts),
        run_id=job.run_id,
        mark=job.mark,
        first_try=job.first_try,
        policy=job.policy(),
        judge=job.judge(),
        template=reading.template,
        rerun=job.rerun,
        job_timeout=job.job_timeout,
        settings=settings_of(plan),
        options={
            "max_requests": plan.per_batch,
            "max_retries": plan.call_retries,
            "timeout_seconds": 0.8,
            "transfer_timeout_seconds": 1.0,
            "inline": plan.inline == "always" or (plan.inline == "changes" and bool(job.read % 2)),
        },
        provider=stage.protocol,
        fault=fault,
        sink=ChaosSink(stage.landing, fault),
        reuse=Reuse("job") if stage.reuse else None,
    )


class Disturbance:
    """The fault callback of one process.

    :param at: what is to happen; None for nothing.
    :param met: how often its point was met by earlier processes, since it was armed.
    """

    def __init__(self, teller: Teller, at: At | None, met: int) -> None:
        self._teller, self._at, self._met = teller, at, met
        self.backend: WatchedBackend | None = None

    def __call__(self, point: str) -> None:
        at = self._at
        if at is None or point != at.point:
            return
        self._met += 1
        self._teller.tell("met")
        if self._met < at.nth:
            return
        self._at = None
        if at.what == KILL:
            self._teller.die(point)
        elif at.what in (DISK_FULL, DISK_BROKEN):
            self._teller.tell("disturbed", what=at.what, point=point)
            raise disk_fault(at.what.partition(" ")[2])
        elif at.what == RESET_UPLOAD:
            assert self.backend is not None
            self._teller.tell("disturbed", what="upload reset", point=point)
            self.backend.reset_next_upload = True
        else:
            self._teller.stand_still(point, at.what)
            if at.dies_at is not None:
                self._at, self._met = At(at.dies_at, 1, KILL), 0


def task_process(
    stage: Stage, job: JobRun, task: Task, reading: Reading, at: At | None, met: int
) -> Callable[[Teller], None]:
    """Return what a process of a task does."""

    def action(teller: Teller) -> None:
        apply_mutant(stage.mutant)
        disturbance = Disturbance(teller, at, met)
        bench = bench_of(stage, job, reading, disturbance)
        try:
            progress = asyncio.run(_run(bench, stage, job, task, disturbance, teller))
        except BatchLLMError as error:
            teller.tell(
                "error", type=type(error).__name__, code=error.code, deterministic=error.deterministic
            )
        except Exception as error:
            traceback.print_exc()
            teller.tell("error", type=type(error).__name__, code="odd", deterministic=False)
        else:
            teller.tell("progress", **_told(progress))

    return action


async def _run(
    bench: Bench, stage: Stage, job: JobRun, task: Task, disturbance: Disturbance, teller: Teller
) -> Progress:
    tools = _watched(bench, stage, job, disturbance, teller)
    try:
        engine = Engine(tools)
        return await _BODIES[task](engine, bench, job)
    finally:
        await tools.backend.aclose()


def _watched(bench: Bench, stage: Stage, job: JobRun, disturbance: Disturbance, teller: Teller) -> Tools:
    tools = bench.tools()

    def through(url: str) -> Any:
        class Elsewhere:
            api_key = stage.server.api_key

            def url_of(self, protocol: str) -> str:
                return url

        return bench.backend(Elsewhere())  # type: ignore[arg-type]

    backend = WatchedBackend(tools.backend, disturbance, through)
    disturbance.backend = backend
    on_deadline = OnDeadline.FAIL if job.plan.fails_late else OnDeadline.COLLECT
    return replace(
        tools,
        spec=replace(tools.spec, on_deadline=on_deadline),
        ledger=WatchedLedger(tools.ledger, disturbance, teller),
        workspace=BreakableWorkspace(bench.folder, disturbance),
        backend=backend,
    )


async def _submit(engine: Engine, bench: Bench, job: JobRun) -> Progress:
    return await engine.advance(Until.ENDED, bench.order())


async def _reconcile(engine: Engine, bench: Bench, job: JobRun) -> Progress:
    progress = await engine.advance(Until.RECONCILED)
    if progress.done:
        await engine.rejudge()
    return progress


async def _retry(engine: Engine, bench: Bench, job: JobRun) -> Progress:
    return await engine.advance(Until.RETRIED)


async def _retry_alone(engine: Engine, bench: Bench, job: JobRun) -> Progress:
    """As the retry operator: a re-drive of what ran out of attempts, once per clear, seen through."""
    found = engine.tools.ledger.get_job(bench.key.job_id)
    if found is None or not (found.state is JobState.SETTLED or redrive_under_way(found)):
        return await engine.advance(Until.RETRIED)
    mark = f"retry:{found.revision}:{job.retry_clears}"
    engine.redrive(actor="clear", reason="retry was cleared", mark=mark, only_exhausted=True)
    return await engine.advance(Until.SETTLED)


async def _dead_letter(engine: Engine, bench: Bench, job: JobRun) -> Progress:
    return await engine.advance(Until.SETTLED)


_BODIES = {
    Task.SUBMIT: _submit,
    Task.RECONCILE: _reconcile,
    Task.RETRY: _retry,
    Task.RETRY_ALONE: _retry_alone,
    Task.DEAD_LETTER: _dead_letter,
}


def _told(progress: Progress) -> dict[str, Any]:
    return {
        "done": progress.done,
        "state": str(progress.job.state),
        "deadline": progress.job.deadline_at,
        "batches": list(progress.provider_batches),
        "provisional": list(progress.provisional),
        "more_planned": progress.more_planned,
        "not_before": progress.not_before,
        "reason": progress.reason,
    }


def trigger_process(stage: Stage, job: JobRun, progress: dict[str, Any]) -> Callable[[Teller], None]:
    """Return what the triggerer does for a waiting task: the real wait, with short pauses."""
    order = WaitOrder(
        batches=tuple(progress["batches"]),
        more_planned=progress["more_planned"],
        not_before=progress["not_before"],
        deadline=progress["deadline"] if (progress["deadline"] or 0.0) > time.time() else None,
        interval_min=0.03,
        interval_max=0.2,
    )

    def action(teller: Teller) -> None:
        bench = bench_of(stage, job, job.source, lambda point: None)

        async def open_backend() -> Any:
            return bench.backend(stage.server)

        event = asyncio.run(wait(order, bench.conn_id, open_backend))
        teller.tell("event", status=event["status"])

    return action


def cancel_process(stage: Stage, job: JobRun, batches: list[str]) -> Callable[[Teller], None]:
    """Return what ``on_kill`` does where ``cancel_on_kill`` was asked for."""

    def action(teller: Teller) -> None:
        bench = bench_of(stage, job, job.source, lambda point: None)

        async def cancel() -> None:
            backend = bench.backend(stage.server)
            for batch_id in batches:
                with suppress(ProviderError):  # the trigger logs it
                    if not (await backend.retrieve(batch_id)).status.terminal:
                        await backend.cancel(batch_id)
            await backend.aclose()

        asyncio.run(cancel())

    return action


def workspace_of(stage: Stage) -> ObjectWorkspace:
    """Return the workspace without any fault points."""
    return ObjectWorkspace(stage.folder / "workspace")
