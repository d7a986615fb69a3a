"""D05: the provider's queue is full; the batch is put back and sent again after a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from tests.integration.cases.conftest import Case
from tests.job_bench import QUICK, Bench
from tests.replay_provider import Replay, ReplayProvider

IDS = ["r-1", "r-2"]
#: Any attempt that is charged, or counted as a free one, would kill a row at once.
NO_ATTEMPTS = RowRetry(max_rounds=0, max_free_rounds=0)


def test_d05_the_whole_batch_is_sent_again_after_a_wait_and_no_row_is_charged(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d05 = case("D05")
    server = provider(d05.replay())
    bench = job(server, d05.input, policy=NO_ATTEMPTS)
    before = bench.ledger.now()
    progress = bench.step(Until.ENDED, submitting=True)
    assert progress.not_before is not None and progress.not_before >= before + bench.settings.queue_wait
    assert bench.creates() == 1, "not again before the wait is over"
    settled = bench.run()
    assert bench.creates() == 2 and server.sent() == [["say 1", "say 2"]] * 2
    assert settled.counts["answered"] == 2 and bench.letters() == []
    assert {a.round for a in bench.answers()} == {0}, "the batch is sent again, its rows are in no new round"
    (batch,) = bench.batches()
    assert batch.attempt == 2 and batch.counts == {"ok": 2}
    bench.assert_accounted(IDS)


def test_d05_it_is_bounded_by_the_jobs_time_and_charges_nothing_then_either(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d05 = case("D05")
    server = provider(d05.replay(), replays=10**6)
    quick = replace(QUICK, queue_wait=0.02, queue_wait_max=0.04)
    bench = job(server, d05.input, policy=NO_ATTEMPTS, settings=quick, job_timeout=0.6)
    over = bench.until(Until.SETTLED, submitting=True)
    assert over.state is JobState.SETTLED and bench.creates() > 1
    assert bench.open_letters() == dict.fromkeys(IDS, "job_timeout")
    for letter in bench.letters():
        assert letter.exhausted and not any(attempt.charged for attempt in letter.attempts)
    # With room in the queue, and time, they are sent again: they died of nothing of their own.
    server.replays = 0
    cleared = bench.clear(job_timeout=60.0)
    assert cleared.run().counts["answered"] == 2
    cleared.assert_accounted(IDS)


def test_d05_the_wait_grows_up_to_a_bound(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d05, waits = case("D05"), [0.02, 0.04, 0.05, 0.05]
    server = provider(d05.replay(), replays=len(waits))
    settings = replace(QUICK, queue_wait=0.02, queue_wait_max=0.05)
    bench = job(server, d05.input, policy=NO_ATTEMPTS, settings=settings)
    bench.run()
    assert bench.creates() == len(waits) + 1
    for wait, (one, next_) in zip(waits, pairwise(server.created_at), strict=True):
        assert next_ - one >= wait
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param((400, "token_limit_exceeded"), id="Azure fails fast"),
        pytest.param((429, "token_limit_exceeded"), id="429 with its code"),
        pytest.param((429, "rate_limit_exceeded"), id="429 of a proxy"),
    ],
)
def test_d05_a_queue_that_is_full_at_the_create_call_is_waited_for_alike(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    refusal: tuple[int, str],
) -> None:
    d05 = case("D05")
    server = provider(refusals=[refusal] * 2)
    bench = job(server, d05.input, policy=NO_ATTEMPTS)
    settled = bench.run()
    assert settled.counts["answered"] == 2 and bench.letters() == []
    assert server.statuses()[refusal[0]] == 2
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param([{"code": "token_limit_exceeded"}], id="a bare code"),
        pytest.param(
            {"object": "list", "data": [{"code": "token_limit_exceeded", "line": None}]}, id="a list object"
        ),
        pytest.param([{"code": "queue_full", "line": 1}], id="another word, and a line beside it"),
        pytest.param([{"code": "request_limit_exceeded"}], id="a limit of requests"),
    ],
)
def test_d05_each_way_to_say_so_puts_the_batch_back(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    errors: Any,
) -> None:
    d05 = case("D05")
    nothing = {"output_file_id": None, "error_file_id": ""}
    server = provider(Replay({"status": "failed", "errors": errors, **nothing}, texts=d05.texts()))
    bench = job(server, d05.input, policy=NO_ATTEMPTS)
    assert bench.run().counts["answered"] == 2
    assert bench.letters() == [] and bench.creates() == 2
    bench.assert_accounted(IDS)
