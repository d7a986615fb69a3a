"""A job or a batch past its time: what is cancelled, what lands, and what a clear then sends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from airflow_batch_llm.core.model import BatchState, JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import AuthError, ProviderError
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


def assert_cancelled_and_settled(job: Bench) -> None:
    settled = job.retry().run()
    assert settled.state is JobState.SETTLED
    assert sorted(a.custom_id for a in job.answers()) == ["t-0", "t-1", "t-2"]
    assert job.open_letters() == dict.fromkeys(["t-3", "t-4", "t-5"], "batch_cancelled")
    assert all(letter.exhausted for letter in job.letters())
    assert job.actions().count("cancel_asked") == 1 and job.creates() == 1
    job.assert_accounted()
    job.server.set_scenario({})
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 6, "the time restarts with a clear"
    assert [b["total"] for b in cleared.server.batches()] == [3, 6]
    assert {letter.state for letter in cleared.letters()} == {LetterState.RESOLVED}
    cleared.assert_accounted()
    assert cleared.server.summary()["charged"] == 6


def test_a_job_past_its_time_lands_what_is_paid_and_a_clear_sends_the_rest(running: Bench) -> None:
    let_time_pass(running, "deadline_at", "batch_llm_job")
    assert_cancelled_and_settled(running)


def test_a_process_that_dies_between_the_note_and_the_cancel_is_made_good(running: Bench) -> None:
    let_time_pass(running, "deadline_at", "batch_llm_job")
    killed = running.retry(fault=die_at("observe.before_cancel"))
    assert was_killed(lambda: killed.step(Until.ENDED, submitting=True))
    assert running.server.statuses() == ["in_progress"]
    assert_cancelled_and_settled(running)


def test_a_cancel_that_is_refused_for_now_is_asked_for_again(running: Bench) -> None:
    let_time_pass(running, "deadline_at", "batch_llm_job")
    refusal = {"on": "cancel", "fault": "error", "status": 400, "times": 2}
    running.server.set_scenario({"calls": [refusal]})
    assert_cancelled_and_settled(running)


def test_a_batch_past_its_own_time_is_cancelled_and_the_rest_sent_again(running: Bench) -> None:
    let_time_pass(running, "submitted_at", "batch_llm_batch")
    running.step(Until.ENDED)
    running.server.set_scenario({})
    done = replace(running).run()
    assert done.state is JobState.SETTLED and done.counts["answered"] == 6
    assert [b["total"] for b in running.server.batches()] == [3, 6]
    assert running.server.summary()["charged"] == 6
    running.assert_accounted()


@pytest.mark.parametrize(("status", "raised"), [(403, AuthError), (404, None), (500, None)])
def test_a_cancel_that_fails_keeps_no_other_batch_from_being_read(
    status: int, raised: type[ProviderError] | None, bench: Callable[..., Bench]
) -> None:
    options = {"max_requests": 3, "max_retries": 0}
    job = bench(texts=TEXTS, job_timeout=3600.0, policy=RowRetry(max_rounds=0), options=options)
    job.server.set_scenario({"pace": {"seconds": 600}})
    job.step(Until.ENDED, submitting=True)
    late, other = job.batches()
    job.server.release(other.provider_batch_id)
    let_time_pass(job, "deadline_at", "batch_llm_job")
    failure = {"on": "cancel", "fault": "error", "status": status, "times": 100}
    job.server.set_scenario({"pace": {"seconds": 600}, "calls": [failure]})
    with pytest.raises(raised) if raised is not None else nullcontext():
        job.step(Until.RECONCILED)
    states = {batch.batch_id: batch.state for batch in job.batches()}
    assert states == {late.batch_id: BatchState.SUBMITTED, other.batch_id: BatchState.RECONCILED}
    job.server.set_scenario({"pace": {"seconds": 600}})
    assert job.retry().run().state is JobState.SETTLED
    assert set(job.open_letters().values()) == {"batch_cancelled"}, "asked again"
    assert job.actions().count("cancel_asked") == 1
    job.assert_accounted()
