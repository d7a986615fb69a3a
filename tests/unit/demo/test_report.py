"""The demo's checks: they hold for a sound night and each fails for the fault it is there for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from example_dags.demo.facts import Answered, BatchFacts, Dead, Facts, Places, Sent
from example_dags.demo.report import all_hold, checks, table, xcom_check

PLACES = Places(Path("/w/warehouse.db"), Path("/w/state"), Path("/w/server.db"))

#: Three tickets: one answered at once, one after a retry, one dead.
SOUND = Facts(
    tickets=("T-1", "T-2", "T-3"),
    landed=("T-1", "T-2"),
    answers=(Answered("T-1", "a1", 0), Answered("T-2", "a2", 1)),
    dead=(Dead("T-3", "a3", "invalid_prompt", "open", False),),
    batches=(BatchFacts(0, "batch_a", 3, 10, 5), BatchFacts(1, "batch_b", 1, 10, 5)),
    sent=(Sent("a1", True, 10, 5), Sent("a2", False, 0, 0), Sent("a3", False, 0, 0), Sent("a2", True, 10, 5)),
    results=Path("/w/state/results/1"),
)
REDRIVEN = replace(
    SOUND,
    landed=("T-1", "T-2", "T-3"),
    answers=(*SOUND.answers, Answered("T-3", "a3", 2)),
    dead=(Dead("T-3", "a3", "invalid_prompt", "resolved", False),),
    batches=(*SOUND.batches, BatchFacts(2, "batch_c", 1, 10, 5)),
    sent=(*SOUND.sent, Sent("a3", True, 10, 5)),
)


def failing(facts: Facts) -> set[str]:
    return {check.statement.split(" (")[0] for check in checks(facts) if not check.holds}


@pytest.mark.parametrize("facts", [SOUND, REDRIVEN])
def test_a_sound_night_passes_every_check(facts: Facts) -> None:
    assert failing(facts) == set()
    assert all_hold(checks(facts))


def test_a_ticket_that_vanished_is_seen() -> None:
    facts = replace(SOUND, dead=())
    assert failing(facts) == {"answered + dead = tickets", "each ticket is there exactly once"}


def test_sums_that_agree_by_two_wrongs_are_seen() -> None:
    facts = replace(SOUND, dead=(Dead("T-1", "a1", "invalid_prompt", "open", True),))
    assert failing(facts) == {"each ticket is there exactly once"}


def test_a_night_without_tickets_is_no_proof() -> None:
    nothing = replace(SOUND, tickets=(), landed=(), answers=(), dead=(), batches=(), sent=())
    assert failing(nothing) == {"answered + dead = tickets", "each ticket is there exactly once"}


@pytest.mark.parametrize("landed", [("T-1",), ("T-1", "T-2", "T-3"), ("T-1", "T-1", "T-2")])
def test_a_table_that_differs_from_the_answers_is_seen(landed: tuple[str, ...]) -> None:
    assert failing(replace(SOUND, landed=landed)) == {
        "table ticket_labels holds exactly the answered tickets"
    }


def test_an_answer_paid_for_twice_is_seen() -> None:
    facts = replace(SOUND, sent=(*SOUND.sent, Sent("a1", True, 0, 0)))
    assert failing(facts) == {"every answer was paid for exactly once", "no answered ticket was sent again"}


def test_an_answered_ticket_sent_again_is_seen_even_where_it_failed() -> None:
    facts = replace(SOUND, sent=(*SOUND.sent, Sent("a1", False, 0, 0)))
    assert failing(facts) == {"no answered ticket was sent again"}


def test_a_ticket_that_failed_for_good_and_was_sent_again_is_seen() -> None:
    facts = replace(SOUND, sent=(*SOUND.sent, Sent("a3", False, 0, 0)))
    assert failing(facts) == {"no ticket that failed for good was sent again by the machine"}


def test_an_answer_that_was_never_charged_is_seen() -> None:
    facts = replace(SOUND, sent=(Sent("a1", True, 20, 10), Sent("a3", False, 0, 0)))
    assert failing(facts) == {"every answer was paid for exactly once"}


def test_tokens_that_the_ledger_does_not_know_are_seen() -> None:
    facts = replace(SOUND, batches=SOUND.batches[:1])
    assert failing(facts) == {"the ledger's tokens are those the server charged"}


def test_a_resolved_dead_letter_without_an_answer_is_seen() -> None:
    facts = replace(REDRIVEN, answers=SOUND.answers)
    assert "dead letters that a re-drive resolved have an answer" in failing(facts)


def test_a_large_xcom_is_seen() -> None:
    assert xcom_check({"submit": 400, "retry": 4095}).holds
    assert not xcom_check({"submit": 400, "retry": 4096}).holds


def test_the_table_tells_the_rounds_apart() -> None:
    lines = {line.partition("  ")[0]: line.split()[-1] for line in table(REDRIVEN, PLACES).splitlines()}
    assert lines["answered in round 0"] == "1"
    assert lines["answered after retry"] == "1"
    assert lines["answered after re-drive"] == "1"
    assert lines["dead letters"] == "0"
