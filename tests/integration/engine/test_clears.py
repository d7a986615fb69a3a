"""A clear reads the source again and sends what is new, changed or unanswered, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Rerun, Until
from tests.integration.engine.processes import Died
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
HALFWAY = {"seconds": 600, "hold_at": 0.5}


def fails(number: int, fault: str = "bad_request", **rule: Any) -> dict[str, Any]:
    return {"match": {"contains": f"number {number}."}, "fault": fault, **rule}


def sent(job: Bench) -> list[int]:
    """Rows of each batch that the server took, oldest first."""
    return [batch["total"] for batch in reversed(job.server.batches())]


def test_a_clear_after_success_sends_nothing(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS)
    first.run()
    again = first.clear()
    done = again.run()
    assert done.revision == 2 and done.state is JobState.SETTLED and again.reads == 1
    assert again.creates() == 1 and done.counts["answered"] == 6
    again.assert_accounted()
    third = again.clear()
    third.run()
    assert third.creates() == 1
    third.assert_accounted()


def test_changed_new_and_withdrawn_rows(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS)
    first.server.set_scenario({"rows": [fails(4, code="invalid_value")]})
    first.run()
    assert first.open_letters() == {"t-4": "invalid_value"}
    texts = {**TEXTS, "t-1": "another text", "t-9": "a new ticket"}
    del texts["t-4"], texts["t-5"]
    again = first.clear(texts=texts)
    done = again.run()
    assert sent(again) == [6, 2]
    assert done.counts["rows"] == done.counts["answered"] == 5 and done.counts["withdrawn"] == 2
    found = {a.custom_id: a.output for a in again.answers()}
    assert set(found) == {"t-0", "t-1", "t-2", "t-3", "t-9"} and "another text" in found["t-1"]
    assert again.letters(LetterState.OPEN) == []
    assert [x.custom_id for x in again.letters(LetterState.DISCARDED)] == ["t-4"]
    again.assert_accounted()

    # What was withdrawn comes back: its answer is still there, and so is its failure.
    back = again.clear(texts=TEXTS)
    back.run()
    assert sent(back) == [6, 2], "the first revision knows all about these rows"
    assert back.open_letters() == {"t-4": "invalid_value"}
    back.assert_accounted()


def test_a_clear_in_flight_takes_on_what_runs(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS)
    first.server.set_scenario({"pace": HALFWAY})
    first.step(Until.ENDED, submitting=True)
    texts = {**TEXTS, "t-1": "another text"}
    again = first.clear(texts=texts)
    again.step(Until.ENDED, submitting=True)
    assert again.creates() == 2 and again.job().counts["kept_in_flight"] == 5
    again.server.release()
    done = again.run()
    assert sent(again) == [6, 1] and done.counts["answered"] == 6
    found = {a.custom_id: a.output for a in again.answers()}
    assert "another text" in found["t-1"], "the answer to the old text is nobody's"
    again.assert_accounted()


def test_a_second_clear_in_flight_takes_on_what_both_sent(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS)
    first.server.set_scenario({"pace": HALFWAY})
    first.step(Until.ENDED, submitting=True)
    second = first.clear(texts={**TEXTS, "t-1": "another text"})
    second.step(Until.ENDED, submitting=True)
    third = second.clear(texts=TEXTS)
    third.step(Until.ENDED, submitting=True)
    assert third.job().counts["kept_in_flight"] == 6
    third.server.release()
    third.run()
    assert third.creates() == 2
    third.assert_accounted()


def test_rows_of_a_batch_taken_on_are_retried_unless_they_were_withdrawn(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS, policy=RowRetry(max_rounds=2))
    rules = [fails(3, "server_error", times=1), fails(4, "server_error", times=1), fails(5)]
    first.server.set_scenario({"pace": HALFWAY, "rows": rules})
    first.step(Until.ENDED, submitting=True)
    texts = {k: v for k, v in TEXTS.items() if k != "t-4"}
    again = first.clear(texts=texts)
    again.step(Until.ENDED, submitting=True)
    assert again.creates() == 1
    again.server.set_scenario({})
    again.server.release()
    done = again.run()
    assert sent(again) == [6, 1], "t-3 is sent again; t-4 left, t-5 is dead"
    assert done.counts["answered"] == 4 and done.counts["withdrawn"] == 1
    assert list(again.open_letters()) == ["t-5"]
    again.assert_accounted(list(texts))


def test_a_retry_round_in_flight_is_taken_on_whole(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS)
    first.server.set_scenario({"rows": [fails(2, "server_error", times=1)]})
    first.until(Until.RECONCILED, submitting=True)
    first.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
    first.step(Until.RETRIED)
    assert first.job().round == 1 and first.creates() == 2
    again = first.clear()
    again.step(Until.ENDED, submitting=True)
    assert again.job().counts["kept_in_flight"] == 1 and again.job().counts["kept_answered"] == 5
    again.server.release()
    again.run()
    assert again.creates() == 2
    again.assert_accounted()


def test_a_batch_taken_on_that_finds_the_queue_full_is_not_forgotten(bench: Callable[..., Bench]) -> None:
    """It never ran; the revision that planned it is over: its rows go into the new one's next round."""

    def die(point: str) -> None:
        if point == "submit.after_submitted":
            raise Died

    first = bench(texts=TEXTS, fault=die, policy=RowRetry(max_rounds=0))
    first.server.set_scenario({"batches": [{"fault": "queue_full", "times": 2}]})
    with pytest.raises(Died):
        first.step(Until.ENDED, submitting=True)
    again = first.clear(fault=lambda point: None)
    done = again.run()
    assert done.counts["answered"] == 6 and done.round == 1
    assert again.creates() == 3, "refused twice, taken once"
    again.assert_accounted()


@pytest.mark.parametrize(
    ("rerun", "asked_again"),
    [
        (Rerun.MISSING, {"t-1"}),
        (Rerun.FAILED, {"t-1", "t-2"}),
        (Rerun.FRESH, {"t-0", "t-1", "t-2", "t-3"}),
    ],
)
def test_what_a_clear_sends_again(rerun: Rerun, asked_again: set[str], bench: Callable[..., Bench]) -> None:
    texts = {f"t-{n}": f"ticket number {n}." for n in range(4)}
    first = bench(texts=texts, policy=RowRetry(max_rounds=1))
    first.server.set_scenario({"rows": [fails(1, "server_error"), fails(2, code="invalid_value")]})
    first.run()
    assert sorted(first.open_letters()) == ["t-1", "t-2"] and first.creates() == 2
    first.server.set_scenario({})
    again = first.clear(rerun=rerun)
    again.until(Until.ENDED, submitting=True)
    requests = [line for x in again.batches() if x.revision == 2 for line in lines_of(again, x.path)]
    assert {
        name for name in texts if any(f'"custom_id":"{name}"' in line for line in requests)
    } == asked_again
    done = again.run()
    assert again.creates() == 3
    assert done.counts["answered"] == (3 if rerun is Rerun.MISSING else 4)
    assert again.open_letters() == ({"t-2": "invalid_value"} if rerun is Rerun.MISSING else {})
    # The choice acts once: a later try of the same clear sends nothing more.
    again.retry().run()
    assert again.creates() == 3


def lines_of(job: Bench, path: str) -> list[str]:
    return (job.root / path).read_text().splitlines()


def test_fresh_in_flight_uses_nothing_of_before_and_is_not_halted_by_it(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS)
    first.server.set_scenario({"pace": HALFWAY})
    first.step(Until.ENDED, submitting=True)
    first.server.cancel_by_hand(first.batches()[0].provider_batch_id or "")
    first.server.set_scenario({})
    fresh = first.clear(rerun=Rerun.FRESH)
    done = fresh.run()
    assert done.state is JobState.SETTLED and done.counts["answered"] == 6
    assert {a.round for a in fresh.answers()} == {0} and fresh.creates() == 2


def test_a_history_goes_on_over_a_clear(bench: Callable[..., Bench]) -> None:
    first = bench(texts=TEXTS, policy=RowRetry(max_rounds=1))
    first.server.set_scenario({"rows": [fails(1, "server_error")]})
    first.run()
    again = first.clear()
    again.run()
    (letter,) = again.letters(LetterState.OPEN)
    assert [(a.revision, a.round) for a in letter.attempts] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert letter.exhausted and sent(again) == [6, 1, 1, 1]


def test_planned_batches_of_before_are_not_sent_after_a_clear(bench: Callable[..., Bench]) -> None:
    """The clear comes between two uploads: what was not sent yet is planned anew."""
    count = 0

    def die_before_the_second(point: str) -> None:
        nonlocal count
        count += point == "submit.before_upload"
        if count == 2:
            raise Died

    first = bench(texts=TEXTS, options={"max_requests": 2})
    with pytest.raises(Died):
        replace(first, fault=die_before_the_second).step(Until.ENDED, submitting=True)
    again = first.clear(texts={**TEXTS, "t-5": "another text"})
    again.run()
    assert [x.state for x in again.batches() if x.revision == 1] == [
        BatchState.RECONCILED,
        BatchState.SUPERSEDED,
        BatchState.SUPERSEDED,
    ]
    assert sent(again) == [2, 2, 2]
    again.assert_accounted()
