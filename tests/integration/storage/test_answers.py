"""Answers that later jobs may take: the newest to a request stands, and what is forgotten is not found."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.core.model import BoughtAnswer
from airflow_batch_llm.storage.ledger import SqlLedger


def bought(number: int = 1, **other: Any) -> BoughtAnswer:
    facts: dict[str, Any] = {
        "request_hash": f"{number:043}",
        "task": "t" * 32,
        "connection": "c" * 32,
        "job_id": "j" * 32,
        "batch_id": "j-1-0-0",
        "wire_id": f"a{number:043}",
        "answered_at": 1000.5,
    }
    return BoughtAnswer(**{**facts, **other})


def test_an_answer_is_found_by_its_request_with_all_its_facts(ledger: SqlLedger) -> None:
    assert ledger.record_answers([bought(1), bought(2)]) == 2
    found = ledger.find_answers([bought(1).request_hash, bought(3).request_hash])
    assert found == {bought(1).request_hash: bought(1)}


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_two_answers_to_a_request_the_newest_stands(ledger: SqlLedger, newest_first: bool) -> None:
    old, new = bought(answered_at=1.0), bought(answered_at=2.0, wire_id="b", batch_id="k", job_id="l")
    for one in (new, old) if newest_first else (old, new):
        ledger.record_answers([one])
    assert list(ledger.find_answers([old.request_hash]).values()) == [new]
    ledger.record_answers([old, new] if newest_first else [new, old])
    assert list(ledger.find_answers([old.request_hash]).values()) == [new]


def test_noting_the_same_answers_again_changes_nothing(ledger: SqlLedger) -> None:
    answers = [bought(n) for n in range(2500)]
    ledger.record_answers(answers)
    ledger.record_answers(reversed(answers))
    assert ledger.find_answers(a.request_hash for a in answers) == {a.request_hash: a for a in answers}


def test_only_answers_of_the_scope_and_of_the_age_asked_for_are_found(ledger: SqlLedger) -> None:
    mine = bought(answered_at=5.0)
    other_task = bought(task="u" * 32, answered_at=6.0)
    changed = bought(task="v" * 32, connection="", answered_at=7.0)
    ledger.record_answers([mine, other_task, changed])
    asked = [mine.request_hash]
    assert list(ledger.find_answers(asked, task=mine.task).values()) == [mine]
    assert list(ledger.find_answers(asked, connection=mine.connection).values()) == [other_task]
    assert list(ledger.find_answers(asked).values()) == [changed]
    assert ledger.find_answers(asked, task=mine.task, since=5.0) != {}
    assert ledger.find_answers(asked, task=mine.task, since=5.1) == {}


def test_answers_are_forgotten_by_job_by_request_and_by_age(ledger: SqlLedger) -> None:
    answers = [bought(n) for n in range(1200)]
    others = [bought(n, task="u" * 32, job_id="k" * 32, answered_at=float(n)) for n in range(10)]
    ledger.record_answers([*answers, *others])
    assert ledger.forget_answers(job_id="j" * 32, wire_ids=[answers[0].wire_id, "nobody's"]) == 1
    assert ledger.forget_answers(older_than=4.0) == 4
    assert ledger.forget_answers(job_id="k" * 32, older_than=6.0) == 2
    assert ledger.forget_answers(job_id="j" * 32) == 1199
    left = ledger.find_answers(a.request_hash for a in answers)
    assert sorted(a.answered_at for a in left.values()) == [6.0, 7.0, 8.0, 9.0]
    with pytest.raises(ValueError, match="of a job, or older"):
        ledger.forget_answers(wire_ids=["a"])
