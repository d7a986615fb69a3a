"""D14: rough polling, through operators, trigger and engine; the wait's clock only moves when it sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.triggers import batches as trigger_module
from airflow_batch_llm.triggers.poller import AUTH_TRIES
from airflow_batch_llm.triggers.waiting import wait
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import SUBMIT, Books, Traffic, Warehouse, desk_dag
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer


@dataclass
class Clock:
    """Stands in for time and sleep of the triggers' waits.

    :param looks: how many looks at a batch the server got so far.
    :param pauses: looks before each pause, and its seconds.
    """

    looks: Callable[[], int]
    now: float = field(default_factory=time.time)
    pauses: list[tuple[int, float]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        """Let this much time be over."""
        self.pauses.append((self.looks(), seconds))
        self.now += seconds
        await asyncio.sleep(0)

    async def wait(self, *args: Any) -> dict[str, Any]:
        """Wait as the trigger does, by this clock."""
        event = await wait(*args, sleep=self.sleep, clock=lambda: self.now)
        self.events.append(event)
        return event


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, server: LocalServer, traffic: Traffic) -> Clock:
    """The wait begins at the shortest pauses that are the default; a call is given up after two seconds."""
    set_llm(monkeypatch, server, extra={"timeout": 2})
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN", "15")
    clock = Clock(lambda: len(traffic.calls("GET", "/batches/")))
    monkeypatch.setattr(trigger_module, "wait", clock.wait)
    return clock


def on_retrieve(skip: int, **fault: Any) -> dict[str, Any]:
    """A fault of one look at a batch. The first look is the engine's own, right after the create call."""
    return {"on": "retrieve", "skip": skip, "times": 1, **fault}


POLLS = [
    on_retrieve(1, fault="error", status=503),
    on_retrieve(1, fault="timeout"),
    on_retrieve(1, fault="error", status=429, retry_after=120),
]
LATER = {"statuses": ["validating", "queued", "in_progress"]}


def cancels(traffic: Traffic) -> list[Any]:
    return [call for call in traffic.calls("POST", "/batches/") if call["path"].endswith("/cancel")]


def test_d14_rough_polling_ends_in_one_event_and_one_landing(
    clock: Clock, runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    server.set_scenario({"calls": POLLS, "pace": LATER})
    run = runs.run(desk_dag("d14"))
    assert run.state == "success" and len(warehouse.labels()) == 6
    assert clock.events == [{"version": 1, "status": "ended", "ended": 1}]
    assert (traffic.creates, traffic.uploads, len(cancels(traffic))) == (1, 1, 0)
    assert runs.tries(run)[SUBMIT] == 1
    # The engine's own look, then those of the case. A look repeats what fails, after moments that this clock
    # does not see, until the provider says how long it wants to be left alone: then nobody asks.
    assert len(traffic.calls("GET", "/batches/")) >= 1 + 6
    after = dict(clock.pauses)
    assert after[1 + 3] >= 120 and max(seconds for looks, seconds in after.items() if looks != 4) < 120
    assert not {1 + 1, 1 + 2} & set(after)


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "error", "status": 502, "html": True},
        {"fault": "dropped"},
        {"fault": "error", "status": 429},
    ],
    ids=lambda fault: str(fault.get("status", fault["fault"])),
)
def test_d14_no_fault_of_a_moment_ends_the_wait_or_sends_anything(
    clock: Clock,
    runs: Runs,
    traffic: Traffic,
    warehouse: Warehouse,
    server: LocalServer,
    fault: dict[str, Any],
) -> None:
    server.set_scenario(
        {"calls": [{**on_retrieve(1, **fault), "times": 4}], "pace": {"statuses": ["validating", "new_word"]}}
    )
    run = runs.run(desk_dag(f"d14_{fault.get('status', fault['fault'])}"))
    assert run.state == "success" and len(warehouse.labels()) == 6
    assert [event["status"] for event in clock.events] == ["ended"]
    assert (traffic.creates, len(cancels(traffic)), runs.tries(run)[SUBMIT]) == (1, 0, 1)


def test_d14_variant_b_a_refused_key_is_told_soon_and_the_batch_is_kept(
    clock: Clock, runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    refused = {"on": "retrieve", "skip": 1, "fault": "error", "status": 401, "code": "invalid_api_key"}
    server.set_scenario({"calls": [refused], "pace": LATER})
    began = clock.now
    run = runs.run(dag := desk_dag("d14_b"))
    assert run.state == "failed"
    assert "BLLM-020" in str(runs.error_of(SUBMIT))
    assert {event["status"] for event in clock.events} == {"auth"}
    assert clock.now - began < 3600, "soon, not after a day"
    assert all(event.get("code") == "BLLM-020" for event in clock.events)
    looks = len(traffic.calls("GET", "/batches/"))
    assert looks <= 2 * (AUTH_TRIES + 3), "two tries"
    assert (traffic.creates, len(cancels(traffic))) == (1, 0)
    (batch,) = Books.of(run).ledger.batches(Books.of(run).job_id)
    assert batch.provider_batch_id is not None
    # With a good key the same batch is read.
    server.set_scenario({})
    runs.rerun(dag, run, *[name for name, state in runs.states(run).items() if state != "success"])
    assert traffic.creates == 1 and len(warehouse.labels()) == 6
    assert Books.of(run).job.state is JobState.SETTLED
