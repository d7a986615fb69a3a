"""The ledger as a whole, in sums: what monitoring sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_batch_llm.core.model import BatchState, HoldOrigin, JobState, LetterState
from airflow_batch_llm.metrics import (
    CONNECTION_GAUGES,
    DAG_GAUGES,
    LEDGER_GAUGES,
    Tally,
    counted,
    gauges,
    tally,
)
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.ledger_facts import ConnectionFacts, LedgerFacts, read_facts
from tests.integration.storage.ledgers import batch_in, job_in, letter, plan, remote, running_job, some

S = BatchState


def test_an_empty_ledger_is_all_zeros(ledger: SqlLedger) -> None:
    assert read_facts(ledger) == LedgerFacts()
    assert [(s.name, s.value) for s in gauges(LedgerFacts())] == [(name, 0) for name in LEDGER_GAUGES]


@pytest.mark.parametrize(
    ("state", "in_flight", "pending"),
    [
        (S.PLANNED, 0, 10),
        (S.UPLOADED, 0, 10),
        (S.SUBMITTING, 1, 10),
        (S.SUBMITTED, 1, 10),
        (S.ENDED, 1, 10),
    ],
)
def test_a_batch_counts_until_it_is_read(
    ledger: SqlLedger, state: BatchState, in_flight: int, pending: int
) -> None:
    batch_in(ledger, state)
    found = read_facts(ledger).connections["llm"]
    assert (found.in_flight, found.pending, found.stuck) == (in_flight, pending, 0)
    assert 0 <= found.oldest_age < 60


@pytest.mark.parametrize("state", [S.RECONCILED, S.SUPERSEDED, S.LOST])
def test_a_batch_that_is_done_with_counts_no_more(ledger: SqlLedger, state: BatchState) -> None:
    batch_in(ledger, state)
    assert read_facts(ledger).connections == {}


def test_a_create_call_without_news_after_its_lease_is_stuck(ledger: SqlLedger) -> None:
    batch_in(ledger, S.SUBMITTING, lease_seconds=-5.0)
    assert read_facts(ledger).connections["llm"].stuck == 1


def test_a_duplicate_is_in_flight_but_its_rows_count_once(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTED)
    ledger.record_duplicate(batch, remote("batch_2"), 2)
    found = read_facts(ledger).connections["llm"]
    assert (found.in_flight, found.pending) == (2, 10)


def test_batches_stand_under_the_connection_that_they_were_planned_with(ledger: SqlLedger) -> None:
    running_job(ledger, "one")
    job = running_job(ledger, "two", batches=0)
    some(ledger.pin_round(job, replace(plan("p2", 2), conn_id="other")))
    found = read_facts(ledger).connections
    assert {name: facts.pending for name, facts in found.items()} == {"llm": 10, "other": 20}


def test_halted_jobs_open_letters_and_holds_are_counted(ledger: SqlLedger) -> None:
    job = job_in(ledger, JobState.HALTED)
    ledger.insert_dead_letters([letter(job, f"w{n}") for n in range(5)])
    decided = {"expect": [LetterState.OPEN], "actor": "ann", "reason": "no matter"}
    ledger.move_dead_letters(job.job_id, ["w0", "w1"], to=LetterState.DISCARDED, **decided)  # type: ignore[arg-type]
    ledger.hold_connection("llm", code="", origin=HoldOrigin.PERSON, reason="budget", probe_at=None)
    found = read_facts(ledger)
    assert (found.halted, found.open_letters, found.held) == (1, {"nightly": 3}, {"llm"})
    ledger.release_connection("llm", actor="ann", reason="again")
    assert read_facts(ledger).held == frozenset()


def test_gauges_add_up_and_name_what_they_are_of() -> None:
    facts = LedgerFacts(
        connections={"a": ConnectionFacts(2, 50.0, 1, 30), "b": ConnectionFacts(1, 90.5, 0, 5)},
        halted=4,
        open_letters={"d1": 7, "d2": 1},
        held=frozenset({"c"}),
    )
    found = {(s.name, *s.tags.values()): s.value for s in gauges(facts)}
    assert [found[(name,)] for name in LEDGER_GAUGES] == [3, 90.5, 1, 35, 4, 8, 1]
    by_connection = {c: [found[name, c] for name in CONNECTION_GAUGES] for c in "abc"}
    assert by_connection == {"a": [2, 50.0, 0], "b": [1, 90.5, 0], "c": [0, 0.0, 1]}
    assert [found[DAG_GAUGES[0], dag] for dag in ("d1", "d2")] == [7, 1]


def test_what_was_above_zero_falls_to_zero() -> None:
    found = {(s.name, *s.tags.values()): s.value for s in gauges(LedgerFacts(), conn_id="a", dag_id="d")}
    assert all(value == 0 for value in found.values())
    assert {(name, "a") for name in CONNECTION_GAUGES} | {(name, "d") for name in DAG_GAUGES} <= found.keys()


def test_a_tally_counts_what_became_of_a_job(ledger: SqlLedger) -> None:
    assert tally(ledger, "0" * 32) == Tally()
    batch = batch_in(ledger, S.RECONCILED)
    job = some(ledger.get_job(batch.job_id))
    assert tally(ledger, job.job_id) == Tally(answered=10, sent=1, ended=1)

    ledger.insert_dead_letters([letter(job, f"w{n}") for n in range(3)])
    ledger.record_duplicate(batch, remote("batch_2"), 2)
    job = some(ledger.pin_round(job, plan("p2")))
    some(ledger.halt_job(job, "BLLM-031", "why"))
    after = Tally(answered=10, dead=3, retried=10, sent=2, ended=1, duplicates=1, halts=1)
    assert tally(ledger, job.job_id) == after


def test_only_what_rose_is_counted() -> None:
    samples = counted(Tally(sent=2, halts=1), Tally(answered=5, sent=3), conn_id="llm", dag_id="d")
    tags = {"conn_id": "llm", "dag_id": "d"}
    assert [(s.name, s.value, s.tags) for s in samples] == [
        ("batch_llm.rows.answered", 5, tags), ("batch_llm.batches.sent", 1, tags),
    ]  # fmt: skip
