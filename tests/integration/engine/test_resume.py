"""A halted job that a person resumes goes on in its later tasks; submit does not run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.core.model import Job, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import OnDeadline, Until
from tests.job_bench import QUICK, Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
HALFWAY = {"seconds": 600, "hold_at": 0.5}


def resume(job: Bench, *words: str) -> int:
    url = job.ledger.engine.url.render_as_string(hide_password=False)
    return main(["resume", job.key.job_id, "--reason", "mended", "--actor", "ann", "--url", url, *words])


def retry_and_settle(job: Bench) -> Job:
    """What clearing the retry task with downstream runs."""
    job.until(Until.RETRIED)
    return job.until(Until.SETTLED)


ROWS = {"rows": [{"match": {"custom_id": ".*", "every": 2}, "fault": "insufficient_quota"}]}
KEY = {"calls": [{"on": "create", "fault": "error", "status": 401, "skip": 1}]}


@pytest.mark.parametrize(("scenario", "code"), [(ROWS, "BLLM-021"), (KEY, "BLLM-020")])
def test_what_is_pending_is_sent_and_nothing_that_is_answered(
    bench: Callable[..., Bench], scenario: dict[str, Any], code: str
) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3}, policy=RowRetry(max_rounds=0))
    job.server.set_scenario(scenario)
    assert job.run().halt_code == code
    paid = job.server.summary()["charged"]
    assert 0 < paid < 6
    job.server.set_scenario({})
    assert resume(job) == 0
    settled = retry_and_settle(job)
    assert settled.state is JobState.SETTLED and settled.counts["answered"] == 6
    assert job.server.summary()["charged"] == 6 and job.reads == 1
    job.assert_accounted()


def test_a_job_past_its_time_goes_on_with_a_new_one(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, job_timeout=3600.0, on_deadline=OnDeadline.FAIL, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_llm_job SET deadline_at = deadline_at - 1000000")
    assert job.run().halt_code == "BLLM-043"
    assert resume(job) == 6
    assert resume(job, "--job-timeout", "2") == 0
    job.server.release()
    assert retry_and_settle(job).counts["answered"] == 6
    assert job.creates() == 1, "the batch that ran went on"
    job.assert_accounted()


def test_a_batch_that_somebody_cancelled_is_made_up_for(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    job.server.cancel_by_hand(job.batches()[0].provider_batch_id or "")
    assert job.run().halt_code == "BLLM-032"
    job.server.set_scenario({})
    assert resume(job) == 0
    assert retry_and_settle(job).counts["answered"] == 6
    job.assert_accounted()


@pytest.mark.parametrize("first_code", [None, "BLLM-021"])
def test_what_was_paid_and_is_gone_is_not_paid_for_again_by_a_resume(
    bench: Callable[..., Bench], first_code: str | None
) -> None:
    job = bench(texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    job.until(Until.ENDED, submitting=True)
    if first_code:
        job.ledger.halt_job(job.job(), first_code, "halted before the results were looked for")
    job.server.set_scenario({"calls": [{"on": "download", "fault": "error", "status": 404}]})
    assert job.until(Until.SETTLED).halt_code == (first_code or "BLLM-031")
    job.server.set_scenario({})
    assert resume(job, "--job-timeout", "2") == 6
    assert job.until(Until.SETTLED).state is JobState.HALTED and job.creates() == 1


def test_a_lost_batch_is_not_sent_again_by_a_resume(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3}, settings=replace(QUICK, gone_after=0.0))
    job.server.set_scenario({"calls": [{"on": "retrieve", "fault": "error", "status": 404, "times": 1}]})
    assert job.run().halt_code == "BLLM-031"
    assert resume(job) == 6
    assert job.retry().run().state is JobState.HALTED and job.creates() == 2
