"""Rows of a job with the same request: it is sent once, and what becomes of it becomes of all of them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Rerun, Until
from tests.job_bench import Bench, drafts_of

RED, BLUE = "a red ticket", "a blue ticket"
#: Five rows, two requests.
TEXTS = {"r-1": RED, "b-1": BLUE, "r-2": RED, "r-3": RED, "b-2": BLUE}
IN_JOB = Reuse("job")


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Callable[..., Bench]:
    def make(**values: Any) -> Bench:
        values.setdefault("reuse", IN_JOB)
        values.setdefault("texts", TEXTS)
        return bench(**values)

    return make


def fails(what: str, fault: str = "bad_request", **rule: Any) -> dict[str, Any]:
    return {"rows": [{"match": {"contains": what}, "fault": fault, **rule}]}


def origins(job: Bench) -> dict[str, str]:
    return {a.custom_id: a.origin for a in job.answers()}


def charged(job: Bench) -> int:
    return job.server.summary()["charged"]


def without(*ids: str, texts: dict[str, str] = TEXTS) -> dict[str, str]:
    return {custom_id: text for custom_id, text in texts.items() if custom_id not in ids}


def test_identical_requests_are_sent_once_and_answer_every_row(job: Callable[..., Bench]) -> None:
    one = job()
    done = one.settle()
    assert [b.requests for b in one.batches()] == [2] and charged(one) == 2
    assert done.counts["rows"] == done.counts["answered"] == 5 and done.counts["duplicates"] == 3
    answers = {a.custom_id: a for a in one.answers()}
    assert origins(one) == {
        "r-1": "paid", "b-1": "paid", "r-2": "duplicate", "r-3": "duplicate", "b-2": "duplicate"
    }  # fmt: skip
    assert answers["r-2"].output == answers["r-1"].output != answers["b-2"].output
    assert answers["r-2"].key == {"id": "r-2"} and answers["r-2"].wire_id != answers["r-1"].wire_id
    assert sum(answers["r-2"].usage.values()) == 0 < answers["r-1"].usage["input"]
    one.assert_accounted()


def test_without_reuse_every_row_is_sent(job: Callable[..., Bench]) -> None:
    one = job(reuse=None)
    one.settle()
    assert charged(one) == 5 and set(origins(one).values()) == {"paid"}


def test_samples_of_a_row_are_never_the_same_request(job: Callable[..., Bench]) -> None:
    def sampled() -> Iterator[Draft]:
        for draft in drafts_of({"r-1": RED, "r-2": RED}):
            for sample in (1, 2):
                yield Draft(draft.line, f"{draft.custom_id}-{sample}", draft.body, draft.row, sample=sample)

    one = job(drafts=sampled)
    one.settle()
    assert origins(one) == {
        "r-1-1": "paid", "r-1-2": "paid", "r-2-1": "duplicate", "r-2-2": "duplicate"
    }  # fmt: skip
    assert charged(one) == 2


def test_a_failure_is_a_letter_for_each_row_and_one_request_resolves_them_all(
    job: Callable[..., Bench],
) -> None:
    one = job()
    one.server.set_scenario(fails("red", code="invalid_value"))
    done = one.settle()
    assert one.open_letters() == {"r-1": "invalid_value", "r-2": "invalid_value", "r-3": "invalid_value"}
    assert done.counts["dead"] == 3 and done.counts["answered"] == 2
    assert len({x.wire_id for x in one.letters()}) == 3
    one.assert_accounted()
    one.server.set_scenario({})
    assert one.call(lambda e: e.redrive(actor="me", reason="", mark="0", codes=["other"])) == 0
    assert one.call(lambda e: e.redrive(actor="me", reason="", mark="1", codes=["invalid_value"])) == 3
    assert one.settle().counts["answered"] == 5
    assert [b.requests for b in one.batches()] == [2, 1] and one.open_letters() == {}
    assert [x.state for x in one.letters()] == [LetterState.RESOLVED] * 3
    assert origins(one)["r-1"] == "paid" and origins(one)["r-3"] == "duplicate"
    one.assert_accounted()


def test_a_re_drive_of_a_row_that_shares_sends_the_request_it_shares(job: Callable[..., Bench]) -> None:
    one = job()
    one.server.set_scenario(fails("red"))
    one.settle()
    first = next(x for x in one.letters() if x.custom_id == "r-1")
    one.ledger.move_dead_letters(
        first.job_id, [first.wire_id], to=LetterState.DISCARDED, expect=[LetterState.OPEN],
        actor="me", reason="",
    )  # fmt: skip
    one.server.set_scenario({})
    assert one.call(lambda e: e.redrive(actor="me", reason="", mark="1")) == 2
    assert one.settle().counts["answered"] == 5 and one.creates() == 2


def test_what_failed_again_stays_open_for_each_row(job: Callable[..., Bench]) -> None:
    one = job()
    one.server.set_scenario(fails("red"))
    one.settle()
    one.call(lambda e: e.redrive(actor="me", reason="", mark="1"))
    one.settle()
    assert [len(x.attempts) for x in one.letters(LetterState.OPEN)] == [2, 2, 2]
    one.assert_accounted()


def test_a_retry_round_sends_the_request_once(job: Callable[..., Bench]) -> None:
    one = job(policy=RowRetry(max_rounds=3))
    one.server.set_scenario(fails("red", "server_error", times=1))
    assert one.settle().counts["answered"] == 5
    assert [b.requests for b in one.batches()] == [2, 1]
    one.assert_accounted()


def test_rows_of_a_halted_job_are_pending_with_the_row_they_share(job: Callable[..., Bench]) -> None:
    one = job()
    one.server.set_scenario(fails("red", "insufficient_quota"))
    one.until(Until.RECONCILED, submitting=True)
    halted = one.until(Until.SETTLED)
    assert halted.state is JobState.HALTED
    assert {a.custom_id for a in one.answers()} == {"b-1", "b-2"} and one.letters() == []
    one.server.set_scenario({})
    again = one.clear()
    assert again.settle().counts["answered"] == 5
    assert charged(again) == 2


def test_a_row_that_left_the_source_goes_on_answering_those_that_share(job: Callable[..., Bench]) -> None:
    one = job()
    one.settle()
    again = one.clear(texts={**without("r-1"), "r-4": RED})
    done = again.settle()
    assert charged(again) == 2 and again.creates() == 1
    assert done.counts["withdrawn"] == 1 and done.counts["duplicates"] == 4
    assert origins(again) == {
        "b-1": "paid", "r-2": "duplicate", "r-3": "duplicate", "b-2": "duplicate", "r-4": "duplicate"
    }  # fmt: skip
    again.assert_accounted()


def test_a_row_that_was_sent_stays_so_whatever_the_order(job: Callable[..., Bench]) -> None:
    one = job()
    one.settle()
    again = one.clear(texts=dict(reversed(TEXTS.items())))
    again.settle()
    assert charged(again) == 2 and origins(again) == origins(one)


@pytest.mark.parametrize("texts", [without("r-1"), dict(reversed(TEXTS.items()))], ids=["gone", "reversed"])
def test_a_request_in_flight_answers_the_rows_of_the_next_revision(
    texts: dict[str, str], job: Callable[..., Bench]
) -> None:
    one = job()
    one.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
    one.step(Until.ENDED, submitting=True)
    again = one.clear(texts={**texts, "r-9": RED})
    again.step(Until.ENDED, submitting=True)
    assert again.creates() == 1
    again.server.release()
    assert again.settle().counts["answered"] == len(texts) + 1
    assert charged(again) == 2
    again.assert_accounted()


def test_a_request_in_flight_whose_row_left_is_sent_again_for_those_that_share(
    job: Callable[..., Bench],
) -> None:
    one = job(policy=RowRetry(max_rounds=3))
    pace = {"seconds": 600, "hold_at": 0.5}  # the first of the two requests fails before the clear
    one.server.set_scenario({"pace": pace, **fails("red", "server_error", times=1)})
    one.step(Until.ENDED, submitting=True)
    again = one.clear(texts=without("r-1"))
    again.step(Until.ENDED, submitting=True)
    again.server.set_scenario({})
    again.server.release()
    assert again.settle().counts["answered"] == 4
    assert [b.requests for b in again.batches()] == [2, 1]
    again.assert_accounted()


def test_a_request_that_died_for_good_is_not_sent_for_another_row(job: Callable[..., Bench]) -> None:
    one = job()
    one.server.set_scenario(fails("red"))
    one.settle()
    again = one.clear(texts={"r-8": RED, **without("r-1")})
    again.settle()
    assert again.creates() == 1 and set(again.open_letters()) == {"r-2", "r-3", "r-8"}
    again.assert_accounted()
    again.server.set_scenario({})
    assert again.call(lambda e: e.redrive(actor="me", reason="", mark="1")) == 3
    assert again.settle().counts["answered"] == 5 and [b.requests for b in again.batches()] == [2, 1]
    assert {x.custom_id: x.state for x in again.letters()}["r-1"] is LetterState.DISCARDED
    again.assert_accounted()


def test_a_clear_that_tries_failures_again_sends_each_request_once(job: Callable[..., Bench]) -> None:
    one = job()
    one.server.set_scenario(fails("red"))
    one.settle()
    one.server.set_scenario({})
    again = one.clear(rerun=Rerun.FAILED, texts={"r-0": RED, **TEXTS})
    assert again.settle().counts["answered"] == 6
    assert [b.requests for b in again.batches()] == [2, 1] and again.open_letters() == {}
    again.assert_accounted()


def test_a_clear_for_everything_anew_sends_each_request_once(job: Callable[..., Bench]) -> None:
    one = job()
    one.settle()
    again = one.clear(rerun=Rerun.FRESH)
    assert again.settle().counts["answered"] == 5
    assert [b.requests for b in again.batches()] == [2, 2]


@pytest.mark.parametrize("changed", [{"reuse": None}, {"reuse": Reuse("job", version="2")}])
def test_a_row_that_shared_an_answer_keeps_it_when_reuse_is_changed(
    changed: dict[str, Any], job: Callable[..., Bench]
) -> None:
    one = job()
    one.settle()
    again = one.clear(**changed)
    assert again.settle().counts["answered"] == 5
    assert charged(again) == 2 and origins(again) == origins(one)


def test_rows_share_an_answer_that_an_earlier_job_bought(job: Callable[..., Bench]) -> None:
    job(texts={"x": RED}, reuse=Reuse("task")).settle()
    one = job(reuse=Reuse("task"))
    one.settle()
    assert [b.requests for b in one.batches()] == [1]
    expected = Counter({"reused": 1, "duplicate": 3, "paid": 1})
    assert Counter(origins(one).values()) == expected
    again = one.clear(texts={**without("r-1"), "r-7": RED})
    again.settle()
    assert charged(again) == 2
    assert {origins(again)[row] for row in ("r-2", "r-3", "r-7")} <= {"reused", "duplicate"}
    again.assert_accounted()


def test_rows_that_share_a_request_which_cannot_be_sent_any_more_are_dead_with_it(
    job: Callable[..., Bench],
) -> None:
    first = job(texts={"x": RED}, reuse=Reuse("task"))
    first.settle()
    shutil.rmtree(first.root)
    one = job(texts=without("b-1", "b-2"), reuse=Reuse("task"), options={"max_bytes": 10})
    one.settle()
    assert one.open_letters() == dict.fromkeys(("r-1", "r-2", "r-3"), "request_over_limit")
    one.assert_accounted(list(without("b-1", "b-2")))


def test_an_answer_checked_for_one_row_is_not_that_of_another_where_the_check_looks_at_the_row(
    job: Callable[..., Bench],
) -> None:
    def carrying() -> Iterator[Draft]:
        for draft in drafts_of({"r-1": RED, "r-2": RED, "r-3": RED}):
            draft.carry = {"colour": "red" if draft.custom_id != "r-2" else "blue"}
            yield draft

    one = job(drafts=carrying, judge=Judge(validate=names_its_colour))
    one.settle()
    assert origins(one) == {"r-1": "paid", "r-3": "duplicate"}
    assert one.open_letters() == {"r-2": "rejected"}


def names_its_colour(output: Any, row: dict[str, Any]) -> str | None:
    return None if row["colour"] in output else "is about another colour"


def test_columns_that_changed_with_a_clear_are_published_as_they_are_now(job: Callable[..., Bench]) -> None:
    def carrying(title: str) -> Callable[[], Iterator[Draft]]:
        def read() -> Iterator[Draft]:
            for draft in drafts_of(TEXTS):
                draft.carry = {"title": f"{title} of {draft.custom_id}"}
                yield draft

        return read

    job(texts={"x": BLUE}, reuse=Reuse("task")).settle()
    one = job(drafts=carrying("first"), reuse=Reuse("task"))
    one.settle()
    assert Counter(origins(one).values()) == {"paid": 1, "reused": 1, "duplicate": 3}
    again = one.clear(drafts=carrying("second"))
    again.settle()
    assert again.creates() == one.creates() == 2
    assert {a.custom_id: a.carry for a in again.answers()} == {
        row: {"title": f"second of {row}"} for row in TEXTS
    }
