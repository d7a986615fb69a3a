"""A job past its time: its batches are cancelled, what they answered lands, the rest stays pending."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
HALFWAY = {"seconds": 600, "hold_at": 0.5}


@pytest.fixture
def running(bench: Callable[..., Bench]) -> Bench:
    """A job whose one batch stands still in the middle."""
    job = bench(texts=TEXTS, job_timeout=3600.0, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    return job


def let_time_pass(job: Bench, column: str, table: str) -> None:
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET {column} = {column} - 1000000")


def assert_cancelled_and_halted(job: Bench) -> None:
    halted = job.retry().run()
    assert halted.state is JobState.HALTED and halted.halt_code == "BLLM-043"
    assert sorted(a.custom_id for a in job.answers()) == ["t-0", "t-1", "t-2"]
    assert job.letters() == [] and job.creates() == 1
    assert job.actions().count("cancel_asked") == 1
    job.server.set_scenario({})
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 6, "the time restarts with a clear"
    assert [b["total"] for b in cleared.server.batches()] == [3, 6]
    cleared.assert_accounted()
    assert cleared.server.summary()["charged"] == 6


def test_a_job_past_its_time_lands_what_is_paid_and_waits_for_a_clear(running: Bench) -> None:
    let_time_pass(running, "deadline_at", "batch_llm_job")
    assert_cancelled_and_halted(running)


def test_a_process_that_dies_between_the_note_and_the_cancel_is_made_good(running: Bench) -> None:
    let_time_pass(running, "deadline_at", "batch_llm_job")
    killed = running.retry(fault=die_at("observe.before_cancel"))
    assert was_killed(lambda: killed.step(Until.ENDED, submitting=True))
    assert running.server.statuses() == ["in_progress"]
    assert_cancelled_and_halted(running)


def test_a_cancel_that_is_refused_for_now_is_asked_for_again(running: Bench) -> None:
    let_time_pass(running, "deadline_at", "batch_llm_job")
    refusal = {"on": "cancel", "fault": "error", "status": 400, "times": 2}
    running.server.set_scenario({"calls": [refusal]})
    assert_cancelled_and_halted(running)


def test_nothing_is_sent_past_the_time(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, job_timeout=-1.0)
    halted = job.run()
    assert halted.halt_code == "BLLM-043" and job.creates() == 0
    assert {b.state for b in job.batches()} == {BatchState.PLANNED}
    cleared = job.clear(job_timeout=3600.0)
    cleared.run()
    cleared.assert_accounted()


def test_a_batch_past_its_own_time_is_cancelled_and_the_rest_sent_again(running: Bench) -> None:
    let_time_pass(running, "submitted_at", "batch_llm_batch")
    running.step(Until.ENDED)
    running.server.set_scenario({})
    done = replace(running).run()
    assert done.state is JobState.SETTLED and done.counts["answered"] == 6
    assert [b["total"] for b in running.server.batches()] == [3, 6]
    assert running.server.summary()["charged"] == 6
    running.assert_accounted()
