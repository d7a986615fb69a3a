"""What a person, or another process, does between two lines of a process: no row is lost or paid twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from pytest_mock import MockerFixture

from airflow_batch_llm.core.by_hand import (
    Cancelled,
    Declined,
    NotYet,
    abandon_results,
    abandon_running,
    accepted_halt,
    cancel,
    settle_accepted,
)
from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.files import iter_outcomes
from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, Job, JobState, RemoteBatch
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import OnDeadline, Until
from airflow_batch_llm.core.verdicts import Disposition
from airflow_batch_llm.exceptions import InputError
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.engine.processes import Interrupted, Suspended, looks_for
from tests.integration.engine.test_judging_again import ALL
from tests.integration.engine.test_time_limits import HALFWAY, TEXTS, let_time_pass
from tests.job_bench import QUICK, Bench

GONE_AT_ONCE = replace(QUICK, gone_after=0.0)
DENIED_ONCE = {"calls": [{"on": "retrieve", "fault": "error", "status": 404, "times": 1}]}
#: A process that is about to send its first batch, and has looked at the job for the last time.
ABOUT_TO_SEND = "submit.before_intent"


def submit(job: Bench) -> None:
    job.step(Until.ENDED, submitting=True)


def resume(job: Bench, **values: Any) -> None:
    assert job.ledger.resume_job(job.job(), actor="bob", reason="", **values) is not None


# -- sending ---------------------------------------------------------------------------------------
def test_nothing_is_sent_once_a_cancel_has_asked_for_all(
    any_ledger: SqlLedger, bench: Callable[..., Bench]
) -> None:
    job = bench(texts=TEXTS, ledger=any_ledger)

    async def stop(engine: Engine) -> Cancelled:
        return await cancel(lambda _: engine.tools, job.ledger, job.job(), actor="ann", reason="")

    with Suspended(job, ABOUT_TO_SEND, submit):
        assert job.call(stop).whole
    assert job.creates() == 0 and job.job().halt_code == "BLLM-032"
    resume(job)
    assert job.until(Until.SETTLED).counts["answered"] == 6
    job.assert_accounted()


def test_a_process_whose_job_was_cleared_and_not_staged_yet_ends(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)

    def unreadable() -> Iterable[Draft]:
        raise InputError("the source is down")

    with Suspended(job, ABOUT_TO_SEND, submit) as old:
        with pytest.raises(InputError, match="down"):
            submit(job.clear(drafts=unreadable))
        old.wake()
    assert isinstance(old.error, InputError) and job.creates() == 0
    assert job.clear().run().counts["answered"] == 6


# -- time that is over -----------------------------------------------------------------------------
def test_more_time_that_is_given_while_it_is_found_over_counts(bench: Callable[..., Bench]) -> None:
    """Two processes see the time pass. One halts the job, which is resumed before the other looks again."""
    job = bench(texts=TEXTS, job_timeout=3600.0, on_deadline=OnDeadline.FAIL, options={"max_requests": 3})
    job.server.set_scenario({"pace": HALFWAY})
    submit(job)
    let_time_pass(job, "deadline_at", "batch_llm_job")
    looks = []

    def second_look(name: str, kwargs: dict[str, Any]) -> bool:
        looks.extend([name] if looks_for("submitted")(name, kwargs) else [])
        return len(looks) == 2

    def halt_and_resume() -> None:
        assert job.step(Until.SETTLED).job.halt_code == "BLLM-043"
        resume(job, deadline_at=job.ledger.now() + 3600.0)

    slow = replace(job, ledger=Interrupted(job.ledger, after=second_look, act=halt_and_resume))
    progress = slow.step(Until.SETTLED)
    assert not progress.done and len(progress.provider_batches) == 2
    job.server.release()
    assert job.until(Until.SETTLED).counts["answered"] == 6
    job.assert_accounted()


# -- lost batches ----------------------------------------------------------------------------------
def test_a_resume_right_before_a_batch_counts_as_lost_does_not_let_the_job_go_on(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS, settings=GONE_AT_ONCE)
    job.server.set_scenario({"pace": HALFWAY})
    submit(job)
    job.server.set_scenario(DENIED_ONCE)
    halts: Callable[[str, dict[str, Any]], bool] = lambda name, _: name == "halt_job"  # noqa: E731
    slow = replace(job, ledger=Interrupted(job.ledger, after=halts, act=lambda: resume(job)))
    assert slow.until(Until.SETTLED).halt_code == "BLLM-031"
    assert [b.state for b in job.batches()] == [BatchState.LOST] and job.creates() == 1


def test_what_a_late_process_sent_is_read_before_an_abandoned_batch_is_sent_again(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS, settings=GONE_AT_ONCE)
    with Suspended(job, "submit.before_create", submit, dies_at="submit.after_create") as late:
        job.expire_leases()
        job.server.set_scenario({"pace": HALFWAY})
        other = job.retry()
        while not (progress := other.step(Until.ENDED, submitting=True)).provider_batches:
            other.wait(progress)
        job.server.set_scenario({})
        late.wake()
    job.server.wait_for("in_progress", "completed")
    job.server.set_scenario(DENIED_ONCE)
    halted = job.until(Until.SETTLED)
    assert halted.halt_code == "BLLM-031" and job.batches()[0].attempt == 2
    abandon_results(job.ledger, job.workspace, halted, job.batches()[0], actor="ann", reason="")
    resume(job)
    assert job.until(Until.SETTLED).counts["answered"] == 6
    assert job.creates() == 2, "the first attempt's answers are there"
    assert [b.kind for b in job.batches()] == [BatchKind.PRIMARY, BatchKind.DUPLICATE]
    assert sorted(answer.custom_id for answer in job.answers()) == sorted(TEXTS)


def test_a_later_re_drive_does_not_pay_again_for_results_that_are_gone(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, settings=GONE_AT_ONCE, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"rows": [{"match": {}, "fault": "server_error"}]})
    assert job.settle().counts["dead"] == 6
    job.server.set_scenario({})
    assert job.call(lambda e: e.redrive(actor="ann", reason="", mark="monday")) == 6
    job.until(Until.ENDED)
    job.server.set_scenario({"calls": [{"on": "download", "fault": "error", "status": 404}]})
    halted = job.until(Until.SETTLED)
    assert halted.halt_code == "BLLM-031"
    job.server.set_scenario({})
    with pytest.raises(InputError, match="abandon"):
        job.call(lambda e: e.redrive(actor="ann", reason="", mark="tuesday"))
    assert job.until(Until.SETTLED).halt_code == "BLLM-031" and job.creates() == 2
    abandon_results(job.ledger, job.workspace, halted, job.batches()[1], actor="ann", reason="")
    assert job.call(lambda e: e.redrive(actor="ann", reason="", mark="tuesday")) == 0
    assert job.until(Until.SETTLED).counts["answered"] == 6


# -- batches that are given up ---------------------------------------------------------------------
def noted_long_ago(job: Bench) -> None:
    """Whoever noted that the batch is to be cancelled died before the provider was asked."""
    submit(job)
    job.server.wait_until_held()
    assert job.ledger.ask_cancel(job.batches()[0], actor="machine", reason="") is not None
    let_time_pass(job, "cancel_asked_at", "batch_llm_batch")


def test_a_batch_that_the_cancel_call_ends_is_read_and_not_given_up(
    bench: Callable[..., Bench], mocker: MockerFixture
) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY})
    noted_long_ago(job)

    async def give_up(engine: Engine) -> Batch:
        backend = engine.tools.backend
        ask = backend.cancel

        async def ask_and_wait(batch_id: str) -> RemoteBatch:
            remote = await ask(batch_id)
            while not remote.status.terminal:  # the server ends it in a moment, as it is held
                remote = await backend.retrieve(batch_id)
            return remote

        mocker.patch.object(backend, "cancel", ask_and_wait)
        batch = job.batches()[0]
        return await abandon_running(engine.tools, job.job(), batch, actor="ann", reason="", pay_again=True)

    with pytest.raises(Declined, match="has ended"):
        job.call(give_up)
    mocker.stopall()
    job.server.set_scenario({})
    assert job.run().counts["answered"] == 6
    assert job.server.summary()["charged"] == 6


def test_a_batch_that_is_asked_to_cancel_only_now_gets_its_time(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY | {"cancel_seconds": 3600}})
    noted_long_ago(job)

    async def give_up(engine: Engine) -> Batch:
        batch = job.batches()[0]
        return await abandon_running(engine.tools, job.job(), batch, actor="ann", reason="", pay_again=True)

    with pytest.raises(NotYet, match="900 s"):
        job.call(give_up)
    assert job.batches()[0].state is BatchState.SUBMITTED
    assert job.call(give_up).state is BatchState.RECONCILED  # it was cancelling all the time since


# -- accepted jobs ---------------------------------------------------------------------------------
def accepted_unsent(job: Bench) -> Job:
    """Return the job as a person accepted it, with two batches that were never sent."""
    killed = replace(job, fault=die_at("submit.before_upload"))
    assert was_killed(lambda: submit(killed))
    halted = job.ledger.halt_job(job.job(), "BLLM-032", "")
    assert halted is not None
    assert job.ledger.accept_job(halted, letters=0, actor="ann", reason="") is not None
    return job.until(Until.SETTLED)


def test_a_resume_while_an_accepted_job_is_settled_sends_what_was_not_sent(
    any_ledger: SqlLedger, bench: Callable[..., Bench]
) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3}, ledger=any_ledger)
    halted = accepted_unsent(job)
    accepted = accepted_halt(halted)
    assert accepted is not None

    def looked(name: str, kwargs: dict[str, Any]) -> bool:
        return name == "batches"

    slow = replace(job, ledger=Interrupted(job.ledger, after=looked, act=lambda: resume(job)))
    assert slow.call(lambda e: settle_accepted(e.tools, halted, accepted)) is None
    assert {b.state for b in job.batches()} == {BatchState.PLANNED}
    assert job.until(Until.SETTLED).counts["answered"] == 6
    job.assert_accounted()


def test_a_second_judgement_does_not_undo_what_a_person_decided(
    any_ledger: SqlLedger, bench: Callable[..., Bench]
) -> None:
    """A slow process judges with another schema while the job is accepted: no row is sent again."""
    job = bench(texts=TEXTS, ledger=any_ledger)
    job.server.set_scenario({"rows": [{"match": {}, "fault": "server_error"}]})
    job.until(Until.RECONCILED, submitting=True)
    halted = job.ledger.halt_job(job.job(), "BLLM-032", "")
    assert halted is not None
    accepted_job = job.ledger.accept_job(halted, letters=0, actor="ann", reason="")
    assert accepted_job is not None and (accepted := accepted_halt(accepted_job)) is not None
    job.server.set_scenario({})
    judge = replace(job, judge=ALL)
    with Suspended(judge, "rejudge.before_reconciled", lambda b: b.call(lambda e: e.rejudge())):
        settled = job.call(lambda e: settle_accepted(e.tools, accepted_job, accepted))
        assert settled is not None and settled.counts["dead"] == 6
    tools = job.tools()
    (batch,) = job.batches()
    outcomes = list(iter_outcomes(tools.workspace, tools.root, batch))
    assert {o.disposition for o in outcomes} == {Disposition.DEAD}
    assert job.until(Until.SETTLED).state is JobState.SETTLED and job.creates() == 1
