"""Triggerers that hang and go on, and triggerers that die, while jobs wait in them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from example_dags.demo.rest import wait_for
from tests.e2e.runs import PATIENCE, SUBMIT, TASKS, Jobs, Run
from tests.e2e.together import Together

#: Seconds that a triggerer hangs: longer than any lapse of its heartbeat that Airflow is set to by default.
HANGS = 40.0


@pytest.fixture(autouse=True)
def undisturbed(together: Together) -> None:
    """The tests that run at once are over: none of them waits in a triggerer that is stopped here."""


@contextmanager
def second_triggerer(jobs: Jobs) -> Iterator[None]:
    """Run a second triggerer."""
    before = alive(jobs)
    jobs.stack.start_component("triggerer", name="triggerer-b")
    wait_for(lambda: alive(jobs) - before or None, "a second triggerer", PATIENCE)
    yield
    jobs.stack.stop_component("triggerer-b")


def alive(jobs: Jobs) -> set[int]:
    """Return the ids of the triggerers whose heartbeat is fresh."""
    found = jobs.stack.client.get("/jobs", job_type="TriggererJob", is_alive=True)["jobs"]
    return {job["id"] for job in found}


def triggerer_of(run: Run) -> int | None:
    """Return the triggerer that the run's trigger is assigned to."""
    task = run.task(SUBMIT)
    assert task is not None and task.state == "deferred"
    return task.triggerer


def waiting(jobs: Jobs) -> dict[Run, int | None]:
    """Start two runs and return them when each waits, with the triggerer it waits in."""
    runs = [jobs.start("rows_cancelled", ["North", "South"]) for _ in range(2)]
    return {run: run.waits().triggerer for run in runs}


def wait_moved(placed: dict[Run, int | None]) -> None:
    """Wait until each run's trigger is with another triggerer."""
    for run, before in placed.items():
        run.has(lambda run=run, before=before: triggerer_of(run) not in (None, before), "another triggerer")


def assert_one_of_each(run: Run) -> None:
    """One batch, nothing cancelled, each row executed and landed once, no task failed."""
    assert run.ends() == "success"
    assert run.cancel_calls() == 0
    assert len(run.batches()) == 1
    assert sorted(run.executed().values()) == [1, 1]
    assert run.landed() == run.ids(0, 1)
    assert [run.failures(task) for task in TASKS] == [0, 0, 0, 0]


def test_a_triggerer_that_hangs_while_another_takes_its_triggers_cancels_nothing_when_it_goes_on(
    jobs: Jobs,
) -> None:
    placed = waiting(jobs)
    hanging = jobs.stack.components["triggerer"]
    with second_triggerer(jobs):
        hanging.signal_all(signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            wait_moved(placed)
            wait_for(lambda: time.monotonic() - stopped > HANGS or None, "a long hang", PATIENCE)
        finally:
            hanging.signal_all(signal.SIGCONT)
        for run in placed:
            run.trigger_let_batches_go_on()
        for run in placed:
            assert_one_of_each(run)


def test_a_triggerer_that_is_killed_and_started_again_waits_for_the_same_batch(jobs: Jobs) -> None:
    placed = waiting(jobs)
    jobs.stack.kill_component("triggerer")
    jobs.stack.start_component("triggerer")
    wait_moved(placed)
    for run in placed:
        assert_one_of_each(run)
