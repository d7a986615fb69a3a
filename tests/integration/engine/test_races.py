"""Two processes move one job at the same time, each in the middle of what the other does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, JobState, LetterState, RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import InputError
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.engine.processes import Died, Interrupted, Suspended, looks_for
from tests.job_bench import CHAT, Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
HALFWAY = {"seconds": 600, "hold_at": 0.5}
ONCE = {"match": {"contains": "number 1."}, "fault": "server_error", "times": 1}


def interrupted(job: Bench, after: Callable[[str, dict[str, Any]], bool], act: Callable[[], object]) -> Bench:
    """The same job in a process that is interrupted once by ``act``."""
    return replace(job, ledger=Interrupted(job.ledger, after=after, act=act))


@pytest.mark.parametrize("until", [Until.RECONCILED, Until.RETRIED, Until.SETTLED])
def test_a_batch_that_ends_between_two_looks_is_not_passed_over(
    until: Until, bench: Callable[..., Bench]
) -> None:
    """One process found nothing that had ended; another notes the end; the first finds nothing that runs."""
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY, "rows": [ONCE]})
    job.step(Until.ENDED, submitting=True)
    job.server.set_scenario({})

    def end() -> None:
        job.server.release()
        job.until(Until.ENDED)
        assert job.batches()[0].state is BatchState.ENDED

    interrupted(job, looks_for("ended"), end).step(until)
    assert job.batches()[0].state is BatchState.RECONCILED
    assert job.run().counts["answered"] == 6, "the row that failed once was sent again"
    job.assert_accounted()


def test_a_job_that_is_cleared_under_a_running_task_keeps_its_letters(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "bad_request"}]})
    job.run()

    def cannot_read() -> Any:
        raise ConnectionError

    def clear() -> None:
        with pytest.raises(ConnectionError):
            job.clear(drafts=cannot_read).step(Until.ENDED, submitting=True)
        assert job.job().state is JobState.STAGING

    with pytest.raises(InputError):
        interrupted(job, looks_for("ended"), clear).step(Until.SETTLED)
    assert list(job.open_letters()) == ["t-2"]
    assert [x.state for x in job.letters()] == [LetterState.OPEN]


def test_what_was_staged_anew_is_sent_as_it_was_asked_anew(bench: Callable[..., Bench]) -> None:
    """A process that read the old plan meets the batches of the new one."""
    too_short = RequestTemplate(CHAT, "m-1", {"max_tokens": 2})
    long_enough = RequestTemplate(CHAT, "m-2", {"max_tokens": 100})
    job = bench(texts=TEXTS, template=too_short, policy=RowRetry(max_tokens_factor=1))
    job.server.set_scenario({"rows": [ONCE]})
    job.until(Until.RECONCILED, submitting=True)

    def clear() -> None:
        def die(point: str) -> None:
            if point == "submit.before_upload":
                raise Died

        with pytest.raises(Died):
            job.clear(template=long_enough, fault=die).step(Until.ENDED, submitting=True)

    # The clear comes right after the old plan's retry round was pinned, and before it is sent.
    interrupted(job, lambda name, _: name == "pin_round", clear).step(Until.RETRIED)
    assert job.until(Until.SETTLED).counts["answered"] == 6
    assert {answer.model for answer in job.answers()} == {"m-2"}
    assert job.creates() == 3, "the row that fails once does so under its new wire id, too"
    assert job.open_letters() == {}


@pytest.mark.parametrize("point", ["round.before_pin", "settle.before_letters", "settle.before_close"])
def test_a_slow_task_meets_a_job_that_is_done(point: str, bench: Callable[..., Bench]) -> None:
    """What it finds out late changes nothing any more."""
    job = bench(texts=TEXTS)
    job.server.set_scenario({"rows": [ONCE, {"match": {"contains": "number 2."}, "fault": "bad_request"}]})
    job.until(Until.RECONCILED, submitting=True)
    with Suspended(job, point, lambda b: b.until(Until.SETTLED)) as slow:
        done = job.until(Until.SETTLED)
        slow.wake()
    assert slow.error is None
    assert job.job().state is JobState.SETTLED and dict(job.job().counts) == dict(done.counts)
    assert job.creates() == 2 and list(job.open_letters()) == ["t-2"]
    job.until(Until.SETTLED)
    job.assert_accounted()
    assert len(job.plan_folders()) == 2


def test_a_slow_task_of_before_a_clear_meets_the_new_revision(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "bad_request"}]})
    job.until(Until.RETRIED, submitting=True)
    with Suspended(job, "settle.before_letters", lambda b: b.step(Until.SETTLED)) as slow:
        cleared = job.clear(texts={**TEXTS, "t-2": "another text"})
        cleared.run()
        slow.wake()
    assert slow.error is None and cleared.job().state is JobState.SETTLED
    cleared.until(Until.SETTLED)
    assert cleared.open_letters() == {} and cleared.job().counts["answered"] == 6
    cleared.assert_accounted()


def test_a_re_drive_and_a_slow_settlement(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "bad_request"}]})
    job.run()
    with Suspended(job, "settle.before_letters", lambda b: b.step(Until.SETTLED)) as slow:
        job.server.set_scenario({})
        assert job.call(lambda e: e.redrive(actor="ann", reason="", mark="1")) == 1
        slow.wake()
    assert slow.error is None
    assert job.until(Until.SETTLED).counts["answered"] == 6
    assert [x.state for x in job.letters()] == [LetterState.RESOLVED]
    assert job.creates() == 2
    job.assert_accounted()


def test_many_processes_at_once_send_everything_once(
    bench: Callable[..., Bench], any_ledger: SqlLedger
) -> None:
    job = bench(texts=TEXTS, ledger=any_ledger, options={"max_requests": 2}, policy=RowRetry(max_rounds=2))
    job.server.set_scenario({"rows": [ONCE, {"match": {"contains": "number 2."}, "fault": "bad_request"}]})
    start = threading.Barrier(4, timeout=60)
    errors: list[BaseException] = []

    def one() -> None:
        start.wait()
        try:
            replace(job).settle()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert job.creates() == 4 and len(job.server.batches()) == 4
    assert job.job().counts["answered"] == 5 and list(job.open_letters()) == ["t-2"]
    job.assert_accounted()
    assert job.actions().count("plan_pinned") == 1 and job.actions().count("round_pinned") == 1


def test_a_batch_put_back_and_taken_up_by_many(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"batches": [{"fault": "queue_full", "times": 2}]})
    job.step(Until.ENDED, submitting=True)
    threads = [threading.Thread(target=replace(job).settle) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.creates() == 3 and job.server.statuses() == ["failed", "failed", "completed"]
    assert job.job().counts["answered"] == 6
    job.assert_accounted()
