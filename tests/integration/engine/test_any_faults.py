"""Whatever the rows do: each is answered or dead in the end, none is paid for again, however it is run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Progress, Until
from airflow_batch_llm.hooks.batch_llm import BatchLLMHook
from airflow_batch_llm.triggers.batches import BatchLLMTrigger
from airflow_batch_llm.triggers.waiting import WaitOrder, wait
from tests.integration.engine.engine_results import came_to
from tests.job_bench import QUICK, Bench

_FAULTS = (
    "server_error",
    "rate_limited",
    "request_timeout",
    "missing",
    "error_in_200",
    "empty",
    "truncated",
    "bad_request",
    "content_filter",
    "context_length_exceeded",
)


@dataclass(frozen=True)
class Trouble:
    """What the provider does to a job of ``rows`` rows. ``faults``: row -> (fault, times; None: always)."""

    rows: int
    faults: dict[int, tuple[str, int | None]]
    batches: tuple[str, ...]
    results: dict[str, Any]
    max_requests: int

    def scenario(self) -> dict[str, Any]:
        rules = [
            {"match": {"contains": f"number {row}."}, "fault": fault, "times": times}
            for row, (fault, times) in self.faults.items()
        ]
        batches = [{"fault": fault, "times": 1} for fault in self.batches]
        return {"rows": rules, "batches": batches, "results": self.results}


@st.composite
def troubles(draw: st.DrawFn) -> Trouble:
    rows = draw(st.integers(1, 14))
    fault = st.tuples(st.sampled_from(_FAULTS), st.sampled_from([1, 2, None]))
    results = {
        "shuffle": draw(st.none() | st.integers(0, 9)),
        "repeat": draw(st.integers(0, 2)),
        "foreign": draw(st.integers(0, 2)),
        "no_id": draw(st.integers(0, 1)),
        "blank_lines": draw(st.integers(0, 1)),
        "crlf": draw(st.booleans()),
        "broken_last_line": draw(st.booleans()),
    }
    return Trouble(
        rows,
        draw(st.dictionaries(st.integers(0, rows - 1), fault, max_size=rows)),
        tuple(draw(st.lists(st.sampled_from(["expire", "queue_full", "fail_validation"]), max_size=2))),
        results,
        draw(st.integers(3, 14)),
    )


def found(job: Bench) -> tuple[Any, ...]:
    """What a job came to, in the terms of its users."""
    letters = {x.custom_id: (x.code, x.exhausted) for x in job.letters(LetterState.OPEN)}
    return sorted(a.custom_id for a in job.answers()), letters, job.job().counts.get("answered_round_0", 0)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(troubles())
def test_every_row_ends_once_and_four_tasks_find_what_one_task_finds(
    bench: Callable[..., Bench], trouble: Trouble
) -> None:
    texts = {f"t-{n}": f"ticket number {n}." for n in range(trouble.rows)}
    seen = []
    for run in (Bench.run, Bench.settle):
        job = bench(
            texts=texts,
            policy=RowRetry(max_rounds=2, escalate_to="m-2"),
            options={"max_requests": trouble.max_requests},
            # The server counts a missing row as completed; whether its file may yet come is not waited for.
            settings=replace(QUICK, gone_after=0.0),
        )
        job.server.set_scenario(trouble.scenario())
        before = job.server.summary()["answered"]
        assert run(job).state is JobState.SETTLED
        job.assert_accounted()
        charges = job.server.summary()
        assert charges["answered_twice"] == charges["sent_after_answer"] == 0
        assert charges["answered"] - before == job.job().counts["answered"]
        seen.append(found(job))
    assert seen[0] == seen[1]
    answered, letters, _ = seen[0]
    for row, (fault, times) in trouble.faults.items():
        dies = times is None or fault in ("bad_request", "content_filter", "context_length_exceeded")
        if not trouble.batches:
            assert (f"t-{row}" in letters) == dies, (row, fault, times)
    untouched = set(texts) - {f"t-{row}" for row in trouble.faults}
    if "fail_validation" not in trouble.batches:
        assert untouched <= set(answered), "one row never stops the others"


# -- both modes ------------------------------------------------------------------------------------
def in_the_worker(order: WaitOrder) -> dict[str, Any]:
    """Wait as a task does that is not deferrable."""
    return asyncio.run(wait(order, "llm", BatchLLMHook("llm").amake_backend))


def in_the_triggerer(order: WaitOrder) -> dict[str, Any]:
    """Wait as a deferred task does: its trigger goes through the database and runs somewhere else."""
    trigger = BatchLLMTrigger(
        conn_id="llm",
        batches=list(order.batches),
        more_planned=order.more_planned,
        not_before=order.not_before,
        deadline=order.deadline,
        interval_min=order.interval_min,
        interval_max=order.interval_max,
    )
    path, stored = trigger.serialize()
    module, _, name = path.rpartition(".")
    loaded = getattr(import_module(module), name)(**json.loads(json.dumps(stored)))

    async def events() -> list[dict[str, Any]]:
        return [event.payload async for event in loaded.run()]

    (event,) = asyncio.run(events())
    return dict(event)


def settle_waiting(job: Bench, waits: Callable[[WaitOrder], dict[str, Any]]) -> list[str]:
    """Take a job through all its tasks; returns what each wait ended with."""
    ends = []

    def order(progress: Progress) -> WaitOrder:
        return WaitOrder(
            batches=progress.provider_batches,
            more_planned=progress.more_planned,
            not_before=progress.not_before,
            interval_min=0.02,
            interval_max=0.02,
        )

    for until in Until:
        while not (progress := job.step(until, submitting=until is Until.ENDED)).done:
            ends.append(str(waits(order(progress))["status"]))
    return ends


@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(troubles())
def test_waiting_in_the_worker_and_in_the_triggerer_comes_to_the_same(
    bench: Callable[..., Bench], trouble: Trouble
) -> None:
    texts = {f"t-{n}": f"ticket number {n}." for n in range(trouble.rows)}
    seen = []
    for waits in (in_the_worker, in_the_triggerer):
        job = bench(
            texts=texts,
            policy=RowRetry(max_rounds=2, escalate_to="m-2"),
            options={"max_requests": trouble.max_requests},
            settings=replace(QUICK, gone_after=0.0),
        )
        account = {"conn_type": "batch_llm", "host": job.server.url, "password": job.server.api_key}
        pace = {"statuses": ["validating", "in_progress"]}
        job.server.set_scenario({**trouble.scenario(), "pace": pace})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIRFLOW_CONN_LLM", json.dumps({**account, "extra": {"dialect": "generic"}}))
            ends = settle_waiting(job, waits)
        assert "ended" in ends and set(ends) <= {"ended", "due"}
        job.assert_accounted()
        seen.append(came_to(job))
    assert seen[0] == seen[1]
