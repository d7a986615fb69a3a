"""What cannot be done with one batch keeps no other from being read, and a person gets out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.by_hand import Declined, NotYet, abandon_running
from airflow_batch_llm.core.by_hand.giving_up import CANCEL_PATIENCE
from airflow_batch_llm.core.doubts import LISTED, NOT_LISTED, seek_strays
from airflow_batch_llm.core.model import Batch, BatchState, JobState
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    BatchLLMError,
    InDoubt,
    NotFound,
    ProviderError,
    RateLimited,
    Refused,
    Unreachable,
)
from tests.integration.engine.handing_in import download, hands_in
from tests.job_bench import QUICK, Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
FAULTS = [AuthError("no"), AccountError("no"), Refused("no", reason="no"), Unreachable("no")]


class Failing:
    """A way to the provider on which some calls never succeed.

    :param error: what they raise.
    :param calls: names of the calls.
    :param only: batch id that the calls must be about; None for all.
    """

    def __init__(self, backend: Any, error: Exception, calls: set[str], only: str | None = None) -> None:
        self._backend, self._error, self._calls, self._only = backend, error, calls, only

    def __getattr__(self, name: str) -> Any:
        if name not in self._calls:
            return getattr(self._backend, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._only in (None, *args):
                raise self._error
            return await getattr(self._backend, name)(*args, **kwargs)

        return call


def failing(job: Bench, error: Exception, *calls: str, only: str | None = None) -> Bench:
    return replace(job, around_backend=lambda backend: Failing(backend, error, set(calls), only))


def abandoning(batch: Batch, *, pay_again: bool = True) -> Callable[[Any], Any]:
    async def act(engine: Any) -> Batch:
        tools = engine.tools
        job, current = tools.ledger.get_job(batch.job_id), tools.ledger.get_batch(batch.batch_id)
        who = {"actor": "ann", "reason": "the account is closed"}
        return await abandon_running(tools, job, current, pay_again=pay_again, **who)

    return act


def later(job: Bench, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    then = job.ledger.now() + seconds
    monkeypatch.setattr(type(job.ledger), "now", lambda ledger: then)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: error.code)
def test_a_batch_that_cannot_be_asked_for_keeps_no_other_from_being_read(
    error: ProviderError, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3})
    job.step(Until.ENDED, submitting=True)
    first = job.batches()[0]
    broken = failing(job, error, "retrieve", only=first.provider_batch_id)
    with pytest.raises(type(error)):
        while True:
            broken.step(Until.SETTLED)
    assert [batch.state for batch in job.batches()] == [first.state, BatchState.RECONCILED]
    # Its results, handed in whole, need no word of the provider.
    files = download(job, first, tmp_path)
    assert broken.call(hands_in(first, files)).taken == 3
    assert broken.until(Until.SETTLED).counts["answered"] == 6
    job.assert_accounted()


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: error.code)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_a_batch_that_nobody_can_be_asked_for_can_be_given_up_but_not_for_a_fault_that_passes(
    error: ProviderError, ended: bool, bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench(texts=TEXTS)
    if not ended:
        job.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
        job.step(Until.ENDED, submitting=True)
    else:
        job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    assert batch.state is (BatchState.ENDED if ended else BatchState.SUBMITTED)
    broken = failing(job, error, "retrieve", "cancel")
    with pytest.raises(Declined, match=r"cannot be asked \(BLLM-0.*--yes-pay-again"):
        broken.call(abandoning(batch, pay_again=False))
    for _ in range(2):
        with pytest.raises(NotYet, match="run this again"):
            broken.call(abandoning(batch))
    assert (job.batches()[0].state, job.batches()[0].cancel_asked_by) == (batch.state, None)
    later(job, CANCEL_PATIENCE + 1, monkeypatch)
    given_up = broken.call(abandoning(batch))
    assert (given_up.state, given_up.counts) == (BatchState.RECONCILED, {"missing": 6})
    monkeypatch.undo()
    job.server.set_scenario({})
    assert job.run().counts["answered"] == 6 and job.creates() == 2, "as a person decided"


def test_a_provider_that_has_answered_in_between_gets_its_time_again(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    broken = failing(job, Unreachable("no"), "retrieve")
    with pytest.raises(NotYet):
        broken.call(abandoning(batch))
    with pytest.raises(Declined, match="nothing is given up"):
        job.call(abandoning(batch))
    later(job, CANCEL_PATIENCE + 1, monkeypatch)
    with pytest.raises(NotYet):
        broken.call(abandoning(batch))
    with pytest.raises(RateLimited):
        failing(job, RateLimited("later"), "retrieve").call(abandoning(batch))
    monkeypatch.undo()
    assert job.run().counts["answered"] == 6 and job.creates() == 1


@pytest.mark.parametrize(
    "error",
    [AuthError("no"), AccountError("no"), Refused("no", reason="no"), NotFound("no"), InDoubt("no end")],
    ids=lambda error: error.code,
)
def test_results_are_read_where_the_batches_cannot_be_listed(
    error: ProviderError, bench: Callable[..., Bench]
) -> None:
    """Although the first create call was only told to come later: another batch hardly ever exists."""
    job = bench(texts=TEXTS, settings=replace(QUICK, look_apart=0.0))
    job.server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 429, "times": 1}]})
    job.until(Until.ENDED, submitting=True)
    assert [batch.attempt for batch in job.batches()] == [2]
    broken = failing(job, error, "find", "list_since", "list_recent")
    with pytest.raises(type(error)):
        broken.step(Until.SETTLED)
    settled = broken.until(Until.SETTLED)
    assert (settled.state, settled.counts["answered"]) == (JobState.SETTLED, 6)
    assert job.actions().count(NOT_LISTED) == 1
    job.assert_accounted()


def test_a_fault_of_the_list_that_passes_is_waited_for_however_often_it_was_refused_before(
    bench: Callable[..., Bench],
) -> None:
    """What another attempt left behind may hold answers, which are not paid for again."""
    job = bench(texts=TEXTS, settings=replace(QUICK, look_apart=0.0))
    job.server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 429, "times": 1}]})
    job.until(Until.ENDED, submitting=True)
    lists = ("find", "list_since", "list_recent")
    for error in (AuthError("no"), Unreachable("no"), RateLimited("later"), Unreachable("no")):
        with pytest.raises(type(error)):
            failing(job, error, *lists).step(Until.SETTLED)
    job.step(Until.RECONCILED)
    assert job.actions().count(LISTED) == 1
    (batch,) = job.batches()
    with pytest.raises(AuthError):
        failing(job, AuthError("no"), *lists).call(lambda e: seek_strays(e.tools, job.job(), batch))
    assert job.run().counts["answered"] == 6
    job.assert_accounted()


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: error.code)
def test_results_that_were_handed_in_are_read_whatever_the_provider_says(
    error: ProviderError, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    files = download(job, batch, tmp_path)
    broken = failing(job, error, "retrieve", "download", "find", "list_since", "list_recent")
    assert broken.call(hands_in(batch, files)).taken == 6
    assert broken.until(Until.SETTLED).counts["answered"] == 6
    job.assert_accounted()


@pytest.mark.parametrize(
    ("error", "working", "asked"),
    [
        (Unreachable("no"), 0, 3),
        (Unreachable("no"), 2, 5),
        (AuthError("no"), 0, 3),
        (RateLimited("later", retry_after=60.0), 0, 1),
        (RateLimited("later", retry_after=60.0), 2, 3),
    ],
)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_a_provider_that_does_not_answer_is_not_asked_for_every_batch(
    error: ProviderError, working: int, asked: int, ended: bool, bench: Callable[..., Bench]
) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 1})
    if ended:
        job.until(Until.ENDED, submitting=True)
    else:
        job.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
        job.step(Until.ENDED, submitting=True)
    calls: list[str] = []

    class Silent(Failing):
        async def retrieve(self, batch_id: str) -> Any:
            calls.append(batch_id)
            if len(calls) > working:
                raise error
            return await self._backend.retrieve(batch_id)

    silent = replace(job, around_backend=lambda backend: Silent(backend, error, set()))
    with pytest.raises(type(error)) as raised:
        silent.step(Until.RECONCILED)
    assert raised.value.conn_id == job.conn_id
    assert len(calls) == asked and len(job.batches()) == 6


def test_an_upload_that_is_lost_for_good_keeps_no_other_batch_from_being_read(
    bench: Callable[..., Bench],
) -> None:
    """And is made anew as soon as uploads stay."""
    job = bench(texts=TEXTS, options={"max_requests": 3})
    later = {"on": "create", "fault": "error", "status": 429, "skip": 1, "times": 9}
    job.server.set_scenario({"calls": [later]})
    job.step(Until.ENDED, submitting=True)
    lost = failing(job, NotFound("gone"), "ready")
    job.server.set_scenario({})
    with pytest.raises(BatchLLMError) as raised:
        lost.until(Until.SETTLED)
    assert raised.value.code == NotFound.code
    assert [batch.state for batch in job.batches()] == [BatchState.RECONCILED, BatchState.PLANNED]
    assert job.run().counts["answered"] == 6
    job.assert_accounted()
