"""Twenty rows of one service through the whole engine, in two jobs that a later run goes on with."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Batch, Job, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import OnEmpty, Settings, Until
from airflow_batch_llm.exceptions import BatchLLMError, RateLimited, Unreachable
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.job_bench import Bench
from tests.live.recording import Recording
from tests.live.rows import PARTS, Part
from tests.live.services import Service

_ACTOR = "make live"
#: No row that may have been executed is sent again: what is paid for stays below what was reckoned before.
#: Rows of a batch that was refused as a whole are: none of them ran.
_ONCE = RowRetry(max_rounds=0, dispositions={"missing": "dead", "expired": "dead"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a bench sends its requests, in the place of a local server."""

    service: Service

    @property
    def api_key(self) -> str:
        return self.service.api_key

    def url_of(self, provider: str) -> str | None:
        return self.service.base_url


class Warnings(logging.Handler):
    """Keeps what the package warns of: unknown states and the like."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.add(record.getMessage())


@dataclass
class Trial:
    """The jobs of one service.

    :param folder: ledger, workspace and the number of the run; what is there is gone on with.
    :param settings: waiting times of the engine.
    """

    service: Service
    folder: Path
    settings: Settings = Settings()
    recording: Recording = field(init=False)
    warnings: Warnings = field(default_factory=Warnings)
    faults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.recording = Recording(self.service.address)
        self.ledger: SqlLedger = open_default_sqlite(self.folder / "ledger.db")
        self.goes_on = self._mark.exists()
        if not self.goes_on:
            self._mark.write_text(secrets.token_hex(4))
            self._release()
        run_id = self._mark.read_text()
        self.benches = {part.name: self._bench(part, run_id) for part in PARTS}
        self._done: set[str] = set()
        if self.goes_on:
            self.recording.load(self._seen)

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return len(self._done) == len(self.benches)

    def step(self) -> None:
        """Do for each job what can be done now."""
        for name, bench in self.benches.items():
            if name not in self._done:
                with self.listening():
                    self._step(name, bench)
        self.recording.save(self._seen)

    def close(self) -> None:
        """Take in the result rows, and delete what the service keeps of them."""
        for bench in self.benches.values():
            for batch in bench.batches():
                for path in sorted((bench.root / "batch" / batch.batch_id / "raw").glob("*.jsonl")):
                    self.recording.add_rows(path.stem, path.read_bytes().splitlines())
            with self.listening():
                bench.call(_delete_results)

    def forget(self) -> None:
        """Let the next run be a new one."""
        self._mark.unlink()
        for path in (self._seen, self.folder / "reference.json"):
            path.unlink(missing_ok=True)

    # -- what came of it -----------------------------------------------------------------------------
    def jobs(self) -> dict[str, Job]:
        """Return the jobs that were made."""
        found = {name: self.ledger.get_job(bench.key.job_id) for name, bench in self.benches.items()}
        return {name: job for name, job in found.items() if job is not None}

    def batches(self) -> list[Batch]:
        """Return all batches of the jobs."""
        return [batch for bench in self.benches.values() for batch in bench.batches()]

    def tally(self, name: str) -> Mapping[str, int]:
        """Return how the rows of a job ended: ``answered`` or a code, with their numbers."""
        bench = self.benches[name]
        if name not in self.jobs() or self.jobs()[name].state is not JobState.SETTLED:
            return {}
        counts = Counter(f"{x.verdict}: {x.code}" if x.code else str(x.verdict) for x in bench.letters())
        answered = len(bench.answers())
        return {**({"answered": answered} if answered else {}), **counts}

    def usage(self) -> dict[str, int]:
        """Return the tokens of all answers."""
        total: Counter[str] = Counter()
        for name, job in self.jobs().items():
            if job.state is JobState.SETTLED:
                for answer in self.benches[name].answers():
                    total.update(answer.usage)
        return {name: count for name, count in sorted(total.items()) if count}

    def sound(self) -> bool:
        """Whether every row of every job is accounted for: answered or dead, and most of them answered."""
        for part in PARTS:
            counts = self.tally(part.name)
            if sum(counts.values()) != part.rows or counts.get("answered", 0) * 2 < part.rows:
                return False
        return not self.faults

    # -- inside --------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take in replies and warnings."""
        logger = logging.getLogger("airflow_batch_llm")
        logger.addHandler(self.warnings)
        try:
            with self.recording.listening():
                yield
        finally:
            logger.removeHandler(self.warnings)

    @property
    def _mark(self) -> Path:
        return self.folder / "run"

    @property
    def _seen(self) -> Path:
        return self.folder / "seen.json"

    def _step(self, name: str, bench: Bench) -> None:
        try:
            progress = bench.step(Until.SETTLED, submitting=True)
        except (Unreachable, RateLimited) as error:
            self.warnings.messages.add(str(error))
            return
        except BatchLLMError as error:
            self.faults[name] = str(error)
            self._done.add(name)
            return
        if progress.done:
            self._done.add(name)
            if progress.job.halt_code:
                self.faults[name] = f"halted: {progress.job.halt_code}"
        elif holds := self.ledger.holds():  # a fault of the account: the other job waits for a person
            self.faults[name] = f"not sent: the account is at fault ({holds[0].code})"
            self._done.add(name)

    def _bench(self, part: Part, run_id: str) -> Bench:
        schema = answer_schema(part.output_schema)
        address: Any = Address(self.service)
        return Bench(
            server=address,
            ledger=self.ledger,
            folder=self.folder / "files",
            drafts=part.drafts,
            run_id=f"live-{run_id}",
            task_id=part.name,
            first_try=not self.goes_on,
            policy=_ONCE,
            judge=Judge(schema),
            template=part.template(self.service.model),
            on_empty=OnEmpty.FAIL,
            settings=self.settings,
            options=dict(self.service.options),
            provider=self.service.name,
            conn_id="live",
        )

    def _release(self) -> None:
        """A new run tries its key again, whatever came of the last one."""
        for hold in self.ledger.holds():
            self.ledger.release_connection(hold.conn_id, actor=_ACTOR, reason="a new run")


async def _delete_results(engine: Engine) -> None:
    backend = engine.tools.backend
    for batch in engine.tools.ledger.batches(engine.tools.spec.key.job_id):
        # Uploads are deleted by the engine as soon as their batch has ended.
        for file_id in filter(None, (str(file["file_id"] or "") for file in batch.files)):
            with contextlib.suppress(BatchLLMError):
                await backend.delete_file(file_id)


def run_to_the_end(trials: list[Trial], *, seconds: float, pause: float) -> None:
    """Let trials go on by turns until all are done or the time is over."""

    async def wait() -> None:
        await asyncio.sleep(pause)

    deadline = trials[0].ledger.now() + seconds if trials else 0.0
    while True:
        for trial in trials:
            trial.step()
        if all(trial.done for trial in trials) or trials[0].ledger.now() > deadline:
            return
        asyncio.run(wait())
