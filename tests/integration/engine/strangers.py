"""A provider that shows no marks, and others who use the same key: benches over the Anthropic protocol.

Each test gets a count of rows of its own, so that what earlier tests left at the server never looks like its
batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.spec import Settings, Until
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.integration.engine.server_since import ServerSince
from tests.job_bench import Bench
from tests.local_server import LocalServer

CREATE = "/anthropic/v1/messages/batches"
#: Leases end where a test says so.
SLOW = Settings(create_timeout=30.0, lease_margin=600.0, look_apart=0.02, queue_wait=0.05, probe_first=0.02)
#: Batches run half of their rows and stand still.
HALFWAY = {"seconds": 3600, "hold_at": 0.5}
_COUNTS = count(4)


@pytest.fixture(scope="session")
def unmarked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("unmarked-server")) as server:
        yield server


@dataclass
class Street:
    """Our job, and strangers who send batches with as many rows over the same key."""

    server: Any
    folder: Path
    rows: int = field(default_factory=lambda: next(_COUNTS))

    def job(self, ledger: SqlLedger | None = None, *, rows: int | None = None, **values: Any) -> Bench:
        """Return a job of ours."""
        texts = {f"t-{n}": f"ticket number {n}." for n in range(rows or self.rows)}
        values.setdefault("settings", SLOW)
        values.setdefault("texts", texts)
        ledger = ledger or open_default_sqlite(self.folder / "ledger.db")
        return Bench(
            server=self.server, ledger=ledger, folder=self.folder / "files", provider="anthropic", **values
        )

    def stranger(self, name: str = "stranger", *, rows: int | None = None) -> Bench:
        """Return somebody else, with a ledger and files of their own, whose batch is at the provider."""
        theirs = Street(self.server, self.folder / name, rows or self.rows)
        theirs.folder.mkdir()
        bench = theirs.job(run_id=name)
        bench.step(Until.ENDED, submitting=True)
        assert bench.batches()[0].provider_batch_id is not None
        return bench

    # -- how things are spoiled ------------------------------------------------------------------
    def stand_still(self, *calls: dict[str, Any]) -> None:
        """Let batches stand still halfway from now on, and spoil calls."""
        self.server.set_scenario({"pace": HALFWAY, "calls": [dict(call) for call in calls]})

    def run_free(self) -> None:
        """Let everything end."""
        self.server.set_scenario({})
        self.server.release()

    # -- what can be seen ------------------------------------------------------------------------
    def creates(self) -> int:
        return len(self.server.requests("POST", CREATE))

    def touched(self, provider_id: str | None) -> list[str]:
        """Return the calls that would change a batch at the provider."""
        return [
            call["path"]
            for call in self.server.requests()
            if provider_id in call["path"]
            and (call["method"] == "DELETE" or call["path"].endswith("/cancel"))
        ]

    def assert_only_looked_at(self, stranger: Bench) -> None:
        """Somebody else's batch was neither cancelled nor deleted, its rows were not kept, and it came to its
        own end."""
        theirs = stranger.batches()[0].provider_batch_id
        assert self.touched(theirs) == []
        own = set(_wire_ids(stranger))
        for path in (self.folder / "files").rglob("*.jsonl"):
            assert not any(wire_id in path.read_text() for wire_id in own), path
        done = stranger.retry().run()
        assert done.counts["answered"] == len(stranger.texts)


@pytest.fixture
def street(unmarked_server: LocalServer, tmp_path: Path) -> Iterator[Street]:
    unmarked_server.set_scenario({})
    yield Street(ServerSince(unmarked_server), tmp_path)
    unmarked_server.release()


def submit(bench: Bench) -> None:
    """What the submit task does, without waiting for the end of what it sent."""
    bench.step(Until.ENDED, submitting=True)


def step_until(bench: Bench, reached: Callable[[], bool], until: Until = Until.ENDED) -> None:
    """Call the engine until something is so."""
    for _ in range(200):
        if reached():
            return
        bench.wait(bench.step(until))
    raise AssertionError("never reached")


def in_doubt(street: Street, fault: str, **values: Any) -> Bench:
    """Return a job whose create call had no reply, which took effect or did not (``fault``); its lease is
    over."""
    street.stand_still({"on": "create", "fault": fault, "times": 1})
    job = street.job(**values)
    submit(job)
    job.expire_leases()
    return replace(job, first_try=False)


def _wire_ids(bench: Bench) -> Iterator[str]:
    for path in (bench.folder).rglob("requests.jsonl"):
        for line in path.read_text().splitlines():
            yield json.loads(line)["wire_id"]
