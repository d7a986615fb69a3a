"""Holds of connections: one row a connection, one winner of every change, an event of each."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_batch_llm.core.model import Hold, HoldOrigin
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.storage.ledgers import actions, new_job, some
from tests.integration.storage.test_races import THREADS, race


def held(ledger: SqlLedger, *, due: bool = True, job_id: str = "") -> Hold:
    probe_at = ledger.now() + (-1.0 if due else 1000.0)
    hold, made = ledger.hold_connection(
        "llm", code="BLLM-020", origin=HoldOrigin.CALL, job_id=job_id, reason="no", probe_at=probe_at
    )
    assert made
    return hold


def held_by_ann(ledger: SqlLedger) -> Hold:
    hold, made = ledger.hold_connection(
        "llm", code="", origin=HoldOrigin.PERSON, actor="ann", reason="invoice", probe_at=None
    )
    assert made
    return hold


def test_a_connection_is_held_once_and_the_first_reason_stands(ledger: SqlLedger) -> None:
    job = new_job(ledger)
    hold = held(ledger, job_id=job.job_id)
    again, made = ledger.hold_connection(
        "llm", code="BLLM-021", origin=HoldOrigin.ROWS, job_id="x", reason="other", probe_at=None
    )
    assert (again, made) == (hold, False)
    assert ledger.get_hold("llm") == hold
    assert ledger.holds() == [hold]
    assert (hold.code, hold.origin, hold.probes) == ("BLLM-020", HoldOrigin.CALL, 0)
    assert actions(ledger, job.job_id) == ["job_created", "connection_held"]


def test_other_connections_are_not_held(ledger: SqlLedger) -> None:
    held(ledger)
    assert ledger.get_hold("LLM") is None


def test_many_hold_at_once_and_one_made_it(ledger: SqlLedger) -> None:
    def hold(number: int) -> tuple[Hold, bool]:
        return ledger.hold_connection(
            "llm", code="BLLM-021", origin=HoldOrigin.CALL, job_id=f"j{number}", reason="r", probe_at=1.0
        )

    results = race(hold)
    assert Counter(made for _, made in results) == {True: 1, False: THREADS - 1}
    (owner,) = {hold.job_id for hold, _ in results}
    assert actions(ledger, owner) == ["connection_held"]


def test_many_take_the_probe_at_once_and_one_may_try(ledger: SqlLedger) -> None:
    hold = held(ledger)
    later = ledger.now() + 1000.0
    taken = race(lambda n: ledger.take_probe(hold, probe_at=later, batch_id=f"b{n}"))
    (winner,) = [probe for probe in taken if probe is not None]
    assert ledger.get_hold("llm") == winner
    assert (winner.probes, winner.probe_at) == (1, pytest.approx(later))
    assert actions(ledger, "") == ["connection_held", "probe_taken"]


def test_a_probe_is_not_taken_before_its_time(ledger: SqlLedger) -> None:
    hold = held(ledger, due=False)
    assert ledger.take_probe(hold, probe_at=0.0) is None
    assert ledger.get_hold("llm") == hold


def test_a_hurried_probe_is_due_at_once_and_whoever_tried_before_has_lost(ledger: SqlLedger) -> None:
    taken = some(ledger.take_probe(held(ledger), probe_at=ledger.now() + 1000.0, batch_id="b"))
    hurried = some(ledger.hurry_probe("llm", actor="ann", reason="paid"))
    assert some(hurried.probe_at) <= ledger.now()
    assert (hurried.probes, hurried.probe_batch_id) == (0, None)
    assert ledger.release_connection("llm", actor="machine", reason="r", only=taken) is None
    assert some(ledger.take_probe(hurried, probe_at=ledger.now() + 1.0)).probes == 1
    assert ledger.events("")[2].actor == "ann"


def test_a_released_connection_is_released_once(ledger: SqlLedger) -> None:
    hold = held(ledger)
    gone = race(lambda n: ledger.release_connection("llm", actor=f"a{n}", reason="mended"))
    assert [found for found in gone if found is not None] == [hold]
    assert ledger.holds() == []
    assert actions(ledger, "") == ["connection_held", "connection_released"]


def test_a_later_hold_is_not_taken_for_the_earlier_one(ledger: SqlLedger) -> None:
    earlier = held(ledger)
    ledger.release_connection("llm", actor="ann", reason="mended")
    later = held(ledger)
    assert ledger.release_connection("llm", actor="machine", reason="r", only=earlier) is None
    assert ledger.take_probe(earlier, probe_at=0.0) is None
    assert ledger.get_hold("llm") == later


def test_a_persons_hold_has_no_probe_and_takes_the_place_of_the_machines(ledger: SqlLedger) -> None:
    machine = held(ledger, job_id="j1")
    hold = held_by_ann(ledger)
    assert (hold.actor, hold.job_id, hold.probe_at) == ("ann", "", None)
    assert ledger.take_probe(machine, probe_at=0.0) is None
    assert ledger.take_probe(hold, probe_at=0.0) is None
    assert ledger.hurry_probe("llm") is None
    _, made = ledger.hold_connection(
        "llm", code="BLLM-020", origin=HoldOrigin.CALL, job_id="j1", reason="r", probe_at=1.0
    )
    assert not made
    assert ledger.release_connection("llm", actor="bob", reason="paid") == hold
    assert [(event.action, event.actor) for event in ledger.events("")] == [
        ("connection_held", "ann"),
        ("connection_released", "bob"),
    ]
