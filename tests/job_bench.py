"""A job on a bench: the engine with a real ledger, a real workspace and real HTTP, without Airflow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.backends import find_decoder, make_backend
from airflow_batch_llm.core.drafts import Answer, Draft
from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Batch, DeadLetter, Job, JobKey, LetterState, RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.publish import read_answers
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import (
    JobSpec,
    OnDeadline,
    OnEmpty,
    Progress,
    Rerun,
    Settings,
    StageOrder,
    Until,
)
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.row_index import DiskRowIndex
from airflow_batch_llm.storage.workspace import ObjectWorkspace
from tests.local_server import LocalServer

if TYPE_CHECKING:
    from tests.integration.engine.server_since import ServerSince

CHAT = "/v1/chat/completions"
QUICK = Settings(
    create_timeout=5,
    lease_margin=1,
    look_apart=0.2,
    queue_wait=0.2,
    queue_wait_max=1,
    probe_first=0.3,
    probe_max=0.6,
)


def drafts_of(texts: dict[str, str]) -> list[Draft]:
    """Return one chat request per (custom_id, text)."""
    return [
        Draft(
            line=line,
            custom_id=custom_id,
            body={"messages": [{"role": "user", "content": text}]},
            row={"id": custom_id, "text": text},
            key={"id": custom_id},
        )
        for line, (custom_id, text) in enumerate(texts.items(), start=1)
    ]


@dataclass
class Bench:
    """One job. ``mark`` is what a clear changes (``ti.max_tries``)."""

    server: LocalServer | ServerSince
    ledger: SqlLedger
    folder: Path
    texts: dict[str, str] = field(default_factory=dict)
    drafts: Callable[[], Iterable[Draft]] | None = None
    run_id: str = "run-1"
    task_id: str = "labels.submit"
    mark: int = 3
    first_try: bool = True
    policy: RowRetry = RowRetry()
    judge: Judge = Judge()
    template: RequestTemplate = RequestTemplate(CHAT, "m-1", {"max_tokens": 100})
    rerun: Rerun = Rerun.MISSING
    on_empty: OnEmpty = OnEmpty.SUCCESS
    job_timeout: float | None = None
    on_deadline: OnDeadline = OnDeadline.COLLECT
    settings: Settings = QUICK
    options: dict[str, Any] = field(default_factory=dict)
    provider: str = "openai"
    api_key: str | None = None
    fault: Callable[[str], None] = lambda point: None
    conn_id: str = "llm"
    other_servers: dict[str, LocalServer] = field(default_factory=dict)
    around_backend: Callable[[Any], Any] = lambda backend: backend
    sink: Any = None
    results_formats: tuple[Any, ...] = ()
    describe: dict[str, Any] = field(default_factory=dict)
    reuse: Reuse | None = None
    reads: int = 0

    @property
    def key(self) -> JobKey:
        return JobKey(self.ledger.namespace(), "tickets", self.run_id, self.task_id)

    @property
    def workspace(self) -> ObjectWorkspace:
        return ObjectWorkspace(self.folder)

    @property
    def root(self) -> Path:
        """The job's folder."""
        return self.folder / self.workspace.job_root(self.key)

    def backend(self, server: LocalServer) -> Any:
        return make_backend(
            self.provider,
            base_url=server.url_of(self.provider),
            api_key=self.api_key or server.api_key,
            options={"create_timeout_seconds": self.settings.create_timeout, **self.options},
        )

    def tools(self) -> Tools:
        backend = self.backend(self.server)
        spec = JobSpec(
            self.key,
            self.conn_id,
            self.policy,
            self.judge,
            self.sink,
            self.on_deadline,
            self.results_formats,
        )
        return Tools(
            self.ledger,
            self.workspace,
            self.around_backend(backend),
            spec,
            DiskRowIndex,
            self.settings,
            self.fault,
            lambda conn_id: self.backend(self.other_servers[conn_id]),
            find_decoder,
        )

    def order(self) -> StageOrder:
        def read() -> Iterable[Draft]:
            self.reads += 1
            return self.drafts() if self.drafts is not None else drafts_of(self.texts)

        return StageOrder(
            template=self.template,
            drafts=read,
            mark=self.mark,
            first_try=self.first_try,
            rerun=self.rerun,
            on_empty=self.on_empty,
            job_timeout=self.job_timeout,
            describe=self.describe,
            reuse=self.reuse,
        )

    # -- what tasks do -------------------------------------------------------------------------------
    def step(self, until: Until, *, submitting: bool = False) -> Progress:
        """Call the engine once, as one task process would."""
        return self.call(lambda engine: engine.advance(until, self.order() if submitting else None))

    def call(self, what: Callable[[Engine], Any]) -> Any:
        """Run something with an engine of its own, as a process of its own would."""

        async def run() -> Any:
            tools = self.tools()
            try:
                found = what(Engine(tools))
                return await found if asyncio.iscoroutine(found) else found
            finally:
                await tools.backend.aclose()

        return asyncio.run(run())

    def until(self, until: Until, *, submitting: bool = False, calls: int = 400) -> Job:
        """Call the engine until it says done."""
        for _ in range(calls):
            progress = self.step(until, submitting=submitting)
            if progress.done:
                return progress.job
            self.wait(progress)
        raise AssertionError(f"not done after {calls} calls: {progress}")

    def wait(self, progress: Progress) -> None:
        """Wait until calling again may be of use."""

        async def look() -> None:
            pause = 0.02
            if progress.not_before is not None and not progress.provider_batches:
                pause = max(0.02, progress.not_before - self.ledger.now())
            await asyncio.sleep(min(pause, 2.0))

        asyncio.run(look())

    def run(self) -> Job:
        """Run all four tasks, as a DAG run would."""
        self.until(Until.ENDED, submitting=True)
        self.until(Until.RECONCILED)
        self.until(Until.RETRIED)
        return self.until(Until.SETTLED)

    def settle(self) -> Job:
        """Do all that is left in one task, as the one-task form would."""
        return self.until(Until.SETTLED, submitting=True)

    def clear(self, **changes: Any) -> Bench:
        """Clear the whole group, as Airflow does it."""
        return replace(self, mark=self.mark + 1, first_try=False, reads=0, **changes)

    def retry(self, **changes: Any) -> Bench:
        """A later try of the same task: its own process, its own code."""
        return replace(self, first_try=False, reads=0, **changes)

    def expire_leases(self) -> None:
        """Let the time of all create calls that are in doubt be over."""
        over = self.ledger.now() - 1.0
        with self.ledger.engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE batch_llm_batch SET lease_until = {over} "
                f"WHERE state = 'submitting' AND lease_until > {over}"
            )

    # -- what can be seen afterwards -----------------------------------------------------------------
    def job(self) -> Job:
        found = self.ledger.get_job(self.key.job_id)
        assert found is not None
        return found

    def batches(self) -> list[Batch]:
        return self.ledger.batches(self.key.job_id)

    def answers(self) -> list[Answer]:
        return list(read_answers(self.tools(), self.job()))

    def letters(self, *states: LetterState) -> list[DeadLetter]:
        return list(self.ledger.dead_letters(self.key.job_id, states=states or None))

    def plan_folders(self) -> set[str]:
        """Names of the folders of plans in the workspace."""
        return {path.name for path in self.root.iterdir() if path.name.startswith("plan-")}

    def actions(self) -> list[str]:
        """What the job's events say was done, in order."""
        return [event.action for event in self.ledger.events(self.key.job_id)]

    def open_letters(self) -> dict[str, str]:
        """custom_id -> code of the open dead letters."""
        return {x.custom_id: x.code for x in self.letters(LetterState.OPEN)}

    def creates(self) -> int:
        """How many batches the server was asked to create."""
        return len(self.server.requests("POST", "/v1/batches"))

    def assert_accounted(self, ids: Sequence[str] | None = None) -> None:
        """Every row is answered or dead, none twice, and the server charged no answered row twice."""
        wanted = sorted(ids if ids is not None else self.texts)
        answered = [a.custom_id for a in self.answers()]
        dead = [x.custom_id for x in self.letters(LetterState.OPEN, LetterState.REDRIVING)]
        assert sorted(answered + dead) == wanted
        assert self.server.summary()["answered_twice"] == 0
