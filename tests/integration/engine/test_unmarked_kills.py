"""Processes killed with SIGKILL where requests go along with the create call, and no batch shows a mark."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.spec import Settings, Until
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.engine.strangers import Street, in_doubt, step_until, street, submit, unmarked_server
from tests.job_bench import Bench

__all__ = ["street", "unmarked_server"]

#: A short lease, so that what is in doubt is resolved soon.
SHORT = Settings(create_timeout=1.0, lease_margin=0.2, look_apart=0.05, queue_wait=0.1, probe_first=0.05)


@pytest.mark.parametrize(
    "point",
    [
        "submit.before_intent",
        "submit.after_intent",
        "submit.before_create",
        "submit.after_create",
        "submit.after_submitted",
        "observe.before_ended",
        "reconcile.before_reconciled",
    ],
)
def test_nothing_is_lost_or_paid_twice_after_a_kill_at(point: str, street: Street) -> None:
    job = street.job(settings=SHORT)
    assert was_killed(replace(job, fault=die_at(point)).run)
    done = job.retry().run()
    assert done.counts["answered"] == street.rows and done.round == 0
    assert street.creates() == 1 and street.server.requests("DELETE") == []
    job.assert_accounted()


def look(job: Bench) -> None:
    """Call the engine until the job waits for nobody but its batch, or has settled."""
    step_until(job, lambda: job.batches()[0].state is not BatchState.SUBMITTING)


@pytest.mark.parametrize("point", ["doubt.before_adopted", "doubt.after_adopted"])
def test_a_kill_while_a_batch_that_runs_is_adopted_changes_nothing(point: str, street: Street) -> None:
    job = in_doubt(street, "lost_reply")
    assert was_killed(lambda: look(replace(job, fault=die_at(point))))
    look(job)
    assert job.batches()[0].provisional
    street.run_free()
    assert job.until(Until.SETTLED).counts["answered"] == street.rows
    assert street.creates() == 1 and job.batches()[0].attempt == 1
    assert street.touched(job.batches()[0].provider_batch_id) == []
    job.assert_accounted()


@pytest.mark.parametrize(
    "point",
    ["doubt.before_confirmed", "doubt.after_confirmed", "reconcile.before_raw", "reconcile.before_outcomes"],
)
def test_a_kill_while_it_is_confirmed_changes_nothing(point: str, street: Street) -> None:
    job = in_doubt(street, "lost_reply")
    look(job)
    street.run_free()
    assert was_killed(lambda: replace(job, fault=die_at(point)).until(Until.SETTLED))
    done = job.until(Until.SETTLED)
    assert done.state is JobState.SETTLED and done.counts["answered"] == street.rows
    assert street.creates() == 1 and not job.batches()[0].provisional
    job.assert_accounted()


@pytest.mark.parametrize(
    "point", ["doubt.before_disowned", "doubt.after_disowned", "submit.after_intent", "submit.after_create"]
)
def test_a_kill_while_a_stranger_is_let_go_changes_nothing(point: str, street: Street) -> None:
    job = replace(in_doubt(street, "dropped"), settings=SHORT)
    stranger = street.stranger()
    look(job)
    assert job.batches()[0].provisional
    street.run_free()
    assert was_killed(lambda: replace(job, fault=die_at(point)).until(Until.SETTLED))
    done = job.until(Until.SETTLED)
    assert done.counts["answered"] == street.rows and street.creates() == 3
    street.assert_only_looked_at(stranger)
    job.assert_accounted()


def test_each_process_dies_a_little_later_and_the_strangers_batch_is_left_alone(street: Street) -> None:
    street.stand_still()
    job = street.job(settings=SHORT)
    assert was_killed(lambda: submit(replace(job, fault=die_at("submit.before_create"))))
    job = replace(job, first_try=False)
    stranger = street.stranger()
    for point in ("doubt.before_adopted", "doubt.after_adopted"):
        job.expire_leases()
        dying = replace(job, fault=die_at(point))
        assert was_killed(partial(look, dying))
    street.run_free()
    for point in (
        "doubt.before_disowned",
        "doubt.after_disowned",
        "submit.before_create",
        "submit.after_create",
    ):
        dying = replace(job, fault=die_at(point))
        assert was_killed(partial(dying.until, Until.SETTLED))
        job.expire_leases()
    assert job.until(Until.SETTLED).counts["answered"] == street.rows
    assert street.creates() == 2
    street.assert_only_looked_at(stranger)
    job.assert_accounted()
