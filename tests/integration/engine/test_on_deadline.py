"""A job past its time, in both modes: what is sent, cancelled and counted, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import OnDeadline, Until
from airflow_batch_llm.exceptions import InputError
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.engine.processes import Interrupted, Suspended, looks_for
from tests.integration.engine.test_time_limits import HALFWAY, TEXTS, let_time_pass
from tests.job_bench import Bench

BOTH = pytest.mark.parametrize("mode", list(OnDeadline))


@pytest.fixture
def late(bench: Callable[..., Bench]) -> Callable[..., Bench]:
    """Make a job whose time is over at once: both of its batches are planned, none was sent."""

    def make(mode: OnDeadline, **values: Any) -> Bench:
        options = {"max_requests": 3}
        return bench(
            **{"texts": TEXTS, "options": options, "job_timeout": -1.0, "on_deadline": mode, **values}
        )

    return make


def over(job: Bench) -> None:
    let_time_pass(job, "deadline_at", "batch_llm_job")


def half_run(bench: Callable[..., Bench], mode: OnDeadline) -> Bench:
    """Return a job whose one batch stands still in the middle, and whose time is over."""
    job = bench(texts=TEXTS, job_timeout=3600.0, on_deadline=mode, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    over(job)
    return job


# -- what was not sent -----------------------------------------------------------------------------
def test_collect_makes_dead_letters_of_what_was_not_sent(
    any_ledger: SqlLedger, late: Callable[..., Bench]
) -> None:
    job = late(OnDeadline.COLLECT, ledger=any_ledger)
    settled = job.run()
    assert settled.state is JobState.SETTLED and job.creates() == 0
    assert (settled.counts["answered"], settled.counts["dead"]) == (0, 6)
    assert {b.state for b in job.batches()} == {BatchState.RECONCILED}
    assert {(x.verdict, x.code, x.exhausted) for x in job.letters()} == {("expired", "job_timeout", True)}
    job.assert_accounted()
    cleared = job.clear(job_timeout=3600.0)
    assert cleared.run().counts["answered"] == 6
    assert {x.state for x in cleared.letters()} == {LetterState.RESOLVED}
    assert all(not a.charged for x in cleared.letters() for a in x.attempts)
    cleared.assert_accounted()


def test_what_was_not_sent_can_be_re_driven_with_a_new_time(late: Callable[..., Bench]) -> None:
    job = late(OnDeadline.COLLECT)
    job.run()
    with pytest.raises(InputError, match="needs a new one"):
        job.call(lambda e: e.redrive(actor="ann", reason="", mark="1"))
    assert job.call(lambda e: e.redrive(actor="ann", reason="", mark="2", job_timeout=3600.0)) == 6
    assert job.until(Until.SETTLED).counts["answered"] == 6
    job.assert_accounted()


def test_fail_keeps_what_was_not_sent_for_a_clear(late: Callable[..., Bench]) -> None:
    job = late(OnDeadline.FAIL)
    halted = job.run()
    assert halted.halt_code == "BLLM-043" and job.creates() == 0
    assert {b.state for b in job.batches()} == {BatchState.PLANNED} and job.letters() == []
    cleared = job.clear(job_timeout=3600.0)
    assert cleared.run().counts["answered"] == 6
    cleared.assert_accounted()


def test_a_process_that_dies_while_it_gives_up_a_batch_is_made_good(late: Callable[..., Bench]) -> None:
    job = late(OnDeadline.COLLECT)
    assert was_killed(replace(job, fault=die_at("deadline.before_given_up", time=2)).run)
    assert job.retry().run().counts["dead"] == 6
    job.assert_accounted()


def test_a_batch_that_is_given_more_time_at_this_moment_is_not_given_up(
    any_ledger: SqlLedger, late: Callable[..., Bench]
) -> None:
    """A slow process that saw the time pass, and a clear that restarts it meanwhile."""
    job = late(OnDeadline.COLLECT, ledger=any_ledger)
    with Suspended(job, "deadline.before_given_up", lambda b: b.step(Until.ENDED, submitting=True)):
        cleared = job.clear(job_timeout=3600.0)
        assert cleared.run().counts["answered"] == 6
    assert "given_up" not in job.actions()
    cleared.assert_accounted()
    assert cleared.creates() == 2


def test_an_upload_that_was_not_used_is_deleted(late: Callable[..., Bench]) -> None:
    job = late(OnDeadline.COLLECT, job_timeout=3600.0)
    killed = replace(job, fault=die_at("submit.before_intent"))
    assert was_killed(lambda: killed.step(Until.ENDED, submitting=True))
    assert [b.state for b in job.batches()] == [BatchState.UPLOADED, BatchState.PLANNED]
    over(job)
    assert job.retry().run().counts["dead"] == 6
    (deleted,) = [call["path"] for call in job.server.requests("DELETE")]
    assert deleted == f"/v1/files/{job.batches()[0].input_file_id}"


# -- what runs -------------------------------------------------------------------------------------
def test_fail_cancels_nothing_waits_for_nothing_and_a_clear_goes_on_with_what_runs(
    bench: Callable[..., Bench],
) -> None:
    job = half_run(bench, OnDeadline.FAIL)
    for until in (Until.ENDED, Until.RECONCILED, Until.RETRIED, Until.SETTLED):
        progress = job.step(until)
        assert progress.done and progress.job.halt_code == "BLLM-043"
    assert job.server.requests("POST")[-1]["path"] == "/v1/batches", "no cancel call"
    assert job.answers() == [] and job.letters() == []
    assert job.server.statuses() == ["in_progress"]
    cleared = job.clear()
    cleared.step(Until.ENDED, submitting=True)
    job.server.release()
    assert cleared.run().counts["answered"] == 6
    assert job.creates() == 1
    cleared.assert_accounted()


def test_fail_reads_what_has_ended_and_leaves_what_runs(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, job_timeout=3600.0, on_deadline=OnDeadline.FAIL, options={"max_requests": 3})
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    first = job.batches()[0].provider_batch_id
    job.server.release(first)
    job.server.wait_for("completed", "in_progress", in_order=False)
    over(job)
    halted = job.run()
    assert halted.halt_code == "BLLM-043" and len(job.answers()) == 3
    job.server.release()
    resumed = job.ledger.resume_job(halted, actor="ann", reason="", deadline_at=job.ledger.now() + 3600.0)
    assert resumed is not None
    assert job.run().counts["answered"] == 6
    assert job.creates() == 2
    job.assert_accounted()


def test_fail_sends_no_further_round(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, job_timeout=3600.0, on_deadline=OnDeadline.FAIL)
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "server_error"}]})
    job.until(Until.RECONCILED, submitting=True)
    over(job)
    halted = job.run()
    assert halted.halt_code == "BLLM-043" and job.creates() == 1
    assert len(job.answers()) == 5 and job.letters() == []
    job.server.set_scenario({})
    assert job.clear().run().counts["answered"] == 6
    assert [b["total"] for b in job.server.batches()] == [1, 6]
    job.assert_accounted()


def test_collect_sends_no_further_round(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, job_timeout=3600.0)
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "server_error"}]})
    job.until(Until.RECONCILED, submitting=True)
    over(job)
    assert job.run().state is JobState.SETTLED and job.creates() == 1
    assert job.open_letters() == {"t-2": "server_error"} and job.letters()[0].exhausted
    job.assert_accounted()


@BOTH
def test_a_batch_that_has_ended_counts_in_full_although_the_look_comes_late(
    mode: OnDeadline, bench: Callable[..., Bench]
) -> None:
    job = half_run(bench, mode)
    job.server.release()
    job.server.wait_for("completed")
    settled = job.run()
    assert settled.state is JobState.SETTLED and settled.counts["answered"] == 6
    assert "cancel_asked" not in job.actions()
    job.assert_accounted()


@BOTH
def test_a_batch_in_doubt_at_the_end_of_the_time_is_found_and_never_sent_again(
    mode: OnDeadline, bench: Callable[..., Bench]
) -> None:
    job = bench(texts=TEXTS, job_timeout=3600.0, on_deadline=mode, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": HALFWAY})
    killed = replace(job, fault=die_at("submit.after_create"))
    assert was_killed(lambda: killed.step(Until.ENDED, submitting=True))
    over(job)
    later = job.retry()
    ended = later.run()
    assert ended.state is (JobState.SETTLED if mode is OnDeadline.COLLECT else JobState.HALTED)
    assert len(job.answers()) == (3 if mode is OnDeadline.COLLECT else 0)
    job.server.set_scenario({})
    job.server.release()
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 6
    cleared.assert_accounted()
    assert cleared.server.summary()["charged"] == 6


def test_a_create_call_that_took_no_effect_is_not_made_again_past_the_time(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS, job_timeout=3600.0)
    killed = replace(job, fault=die_at("submit.before_create"))
    assert was_killed(lambda: killed.step(Until.ENDED, submitting=True))
    over(job)
    job.expire_leases()
    assert job.retry().run().counts["dead"] == 6
    assert job.creates() == 0
    job.assert_accounted()


def test_a_halted_job_sends_nothing_although_its_create_call_took_no_effect(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS)
    killed = replace(job, fault=die_at("submit.before_create"))
    assert was_killed(lambda: killed.step(Until.ENDED, submitting=True))
    job.ledger.halt_job(job.job(), "BLLM-021", "for a person")
    job.expire_leases()
    assert job.retry().run().state is JobState.HALTED
    assert job.creates() == 0 and [b.state for b in job.batches()] == [BatchState.UPLOADED]


def test_a_process_that_wakes_up_after_its_batch_was_given_up_pays_for_nothing_that_is_lost(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS, job_timeout=3600.0)
    zombie = Suspended(job, "submit.before_create", lambda b: b.step(Until.ENDED, submitting=True))
    with zombie:
        job.expire_leases()
        over(job)
        job.until(Until.RETRIED)
        assert "given_up" in job.actions()
    settled = job.until(Until.SETTLED)
    assert settled.state is JobState.SETTLED
    job.assert_accounted()
    assert job.creates() == 1 and len(job.batches()) == 2, "it is recorded as a duplicate and read"


def test_a_job_that_gets_more_time_at_this_moment_is_not_halted(bench: Callable[..., Bench]) -> None:
    job = half_run(bench, OnDeadline.FAIL)

    def more_time() -> None:
        with job.ledger.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE batch_llm_job SET deadline_at = deadline_at + 9000000")

    ledger = Interrupted(job.ledger, after=looks_for("planned", "uploaded", "submitting"), act=more_time)
    progress = replace(job, ledger=ledger).step(Until.ENDED)  # type: ignore[arg-type]
    assert ledger.happened and not progress.done
    assert progress.job.state is JobState.RUNNING and "cancel_asked" not in job.actions()
