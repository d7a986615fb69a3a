from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_batch_llm.core.model import BatchState, Job, JobKey, JobState, LetterState
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.storage.ledgers import (
    FACTS,
    actions,
    batch_in,
    job_in,
    letter,
    new_job,
    plan,
    remote,
    running_job,
    some,
)

J = JobState
Transition = Callable[[SqlLedger, Job], Job | None]

TRANSITIONS: dict[str, tuple[Transition, set[JobState], str]] = {
    "begin_revision": (
        lambda ledger, j: ledger.begin_revision(j, **FACTS, seen={}, fresh=False),
        set(JobState),
        "revision_begun",
    ),
    "pin_plan": (lambda ledger, j: ledger.pin_plan(j, plan()), {J.STAGING}, "plan_pinned"),
    "pin_round": (lambda ledger, j: ledger.pin_round(j, plan()), {J.RUNNING, J.SETTLED}, "round_pinned"),
    "mark_seen": (lambda ledger, j: ledger.mark_seen(j, {"retry": 1}), set(JobState), "seen_marked"),
    "halt_job": (lambda ledger, j: ledger.halt_job(j, "BLLM-021", "r"), {J.STAGING, J.RUNNING}, "halted"),
    "resume_job": (lambda ledger, j: ledger.resume_job(j, actor="ann", reason="r"), {J.HALTED}, "resumed"),
    "settle_job": (
        lambda ledger, j: ledger.settle_job(j, {"answered": 1}),
        {J.RUNNING, J.SETTLED},
        "settled",
    ),
}


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("name", list(TRANSITIONS))
def test_each_transition_starts_from_its_states_only_and_writes_one_event(
    ledger: SqlLedger, name: str, state: JobState
) -> None:
    do, allowed, action = TRANSITIONS[name]
    job = job_in(ledger, state)
    before = actions(ledger, job.job_id)
    after = do(ledger, job)
    added = actions(ledger, job.job_id)[len(before) :]
    if state in allowed:
        assert added == [action]
        assert some(after).version == job.version + 1
        assert ledger.get_job(job.job_id) == after
        assert do(ledger, job) is None, "the job given is of an older version now"
    else:
        assert (after, added) == (None, [])
        assert ledger.get_job(job.job_id) == job


@pytest.mark.parametrize("name", list(TRANSITIONS))
def test_every_write_carries_the_revision_it_believes_in(ledger: SqlLedger, name: str) -> None:
    do, allowed, _ = TRANSITIONS[name]
    job = job_in(ledger, min(allowed))
    assert do(ledger, replace(job, revision=job.revision + 1)) is None


def test_a_job_is_created_once(ledger: SqlLedger) -> None:
    key = JobKey(ledger.namespace(), "d" * 250, "manual__é", "t", 7)
    job, new = ledger.create_job(key, **{**FACTS, "deadline_at": 12345.678}, seen={"submit": "0"})
    again, new_again = ledger.create_job(key, **FACTS, seen={"submit": "other"})
    assert (new, new_again) == (True, False)
    assert again == job == ledger.get_job(key.job_id)
    assert (job.key, job.revision, job.round, job.state) == (key, 1, 0, J.STAGING)
    assert (job.deadline_at, job.seen, job.counts) == (12345.678, {"submit": "0"}, {})
    assert actions(ledger, job.job_id) == ["job_created"]
    assert ledger.get_job("none") is None


def test_the_namespace_is_made_once_per_ledger(ledger: SqlLedger) -> None:
    name = ledger.namespace()
    assert len(name) == 12
    assert name.isalnum() and name == name.lower()
    assert SqlLedger(ledger.engine).namespace() == name


def test_a_new_revision_forgets_plan_round_halt_and_counts_and_keeps_what_was_seen(ledger: SqlLedger) -> None:
    job = new_job(ledger, seen={"submit": "a", "retry": 1})
    job = some(ledger.pin_plan(job, plan(rows=10)))
    job = some(ledger.halt_job(job, "BLLM-021", "r"))
    facts = {**FACTS, "model": "m-2", "conn_id": "other", "deadline_at": 5.0}
    job = some(ledger.begin_revision(job, **facts, seen={"submit": "b"}, fresh=False))
    assert (job.state, job.revision, job.floor_revision, job.round) == (J.STAGING, 2, 1, 0)
    assert (job.plan_id, job.plan_digest, job.halt_code, job.settled_at) == (None,) * 4
    assert (job.counts, job.seen) == ({}, {"submit": "b", "retry": 1})
    assert (job.model, job.conn_id, job.deadline_at) == ("m-2", "other", 5.0)
    assert some(ledger.begin_revision(job, **FACTS, seen={}, fresh=True)).floor_revision == 3


def test_pinning_a_plan_inserts_its_batches_and_withdraws_what_older_revisions_did_not_send(
    ledger: SqlLedger,
) -> None:
    job = running_job(ledger, batches=4)
    planned, uploaded, submitting, submitted = ledger.batches(job.job_id)
    some(ledger.mark_uploaded(uploaded, "f"))
    for batch in (submitting, submitted):
        entered = ledger.enter_submitting(
            some(ledger.mark_uploaded(batch, "f")), revision=1, lease_seconds=60
        )
        if batch is submitted:
            some(ledger.mark_submitted(some(entered), remote()))
    job = some(ledger.begin_revision(job, **FACTS, seen={}, fresh=False))
    assert [b.state for b in ledger.batches(job.job_id)][0] is BatchState.PLANNED
    job = some(ledger.pin_plan(job, plan("p2", 2, rows=20)))
    assert (job.state, job.plan_id, job.plan_digest, job.counts) == (J.RUNNING, "p2", "d" * 64, {"rows": 20})
    assert [(b.revision, b.state.value) for b in ledger.batches(job.job_id)] == [
        (1, "superseded"),
        (1, "superseded"),
        (1, "submitting"),
        (1, "submitted"),
        (2, "planned"),
        (2, "planned"),
    ]
    named = {e.batch_id for e in ledger.events(job.job_id) if e.action == "superseded"}
    assert named == {planned.batch_id, uploaded.batch_id}


def test_a_plan_without_batches_can_be_pinned(ledger: SqlLedger) -> None:
    job = some(ledger.pin_plan(new_job(ledger), plan(batches=0, rows=0)))
    assert job.state is J.RUNNING
    assert ledger.batches(job.job_id) == []


def test_a_round_keeps_the_plan_of_the_revision_and_merges_counts_and_marks(ledger: SqlLedger) -> None:
    job = running_job(ledger, rows=10)
    job = some(ledger.settle_job(job, {"rows": 10, "answered": 9}))
    assert job.settled_at is not None
    job = some(
        ledger.pin_round(job, plan("p2", 1, sent=1), seen={"redrive": "x"}, actor="ann", reason="fixed")
    )
    assert (job.state, job.round, job.plan_id, job.settled_at) == (J.RUNNING, 1, "p1", None)
    assert (job.counts, job.seen) == ({"rows": 10, "answered": 9, "sent": 1}, {"redrive": "x"})
    (batch,) = ledger.batches(job.job_id, round=1)
    assert (batch.batch_id, batch.plan_id) == (f"{job.job_id}-1-1-0", "p2")
    event = ledger.events(job.job_id)[-1]
    assert (event.actor, event.action) == ("ann", "round_pinned")
    assert event.reason.endswith(": fixed")


def test_a_round_takes_its_letters_along_or_does_nothing(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    wires = [f"w{n:05}" for n in range(2500)]
    ledger.insert_dead_letters(letter(job, wire) for wire in wires)
    ledger.move_dead_letters(
        job.job_id, [wires[-1]], to=LetterState.DISCARDED, expect=[LetterState.OPEN], actor="a", reason="r"
    )
    before = actions(ledger, job.job_id)
    for refused in (wires, [*wires[:-1], "unknown"]):
        assert ledger.pin_round(job, plan("p2"), letters=refused) is None
    assert ledger.get_job(job.job_id) == job
    assert len(ledger.batches(job.job_id)) == 1
    assert actions(ledger, job.job_id) == before
    assert ledger.count_dead_letters(job.job_id)[LetterState.OPEN, "server_error"] == 2499

    job = some(
        ledger.pin_round(job, plan("p2"), letters=[*wires[:-1], wires[0]], actor="ann", reason="fixed")
    )
    assert ledger.count_dead_letters(job.job_id) == {
        (LetterState.REDRIVING, "server_error"): 2499,
        (LetterState.DISCARDED, "server_error"): 1,
    }
    assert actions(ledger, job.job_id)[len(before) :] == ["round_pinned", "letters_moved"]


def test_a_halted_job_goes_on_where_it_stood(ledger: SqlLedger) -> None:
    staging = some(ledger.halt_job(new_job(ledger, "one"), "BLLM-020", "key"))
    assert staging.halt_code == "BLLM-020"
    assert some(ledger.resume_job(staging, actor="ann", reason="new key")).state is J.STAGING
    running = some(ledger.halt_job(running_job(ledger, "two"), "BLLM-021", "credit"))
    running = some(ledger.resume_job(running, actor="ann", reason="paid"))
    assert (running.state, running.halt_code) == (J.RUNNING, None)
    halted, resumed = ledger.events(running.job_id)[-2:]
    assert (halted.action, halted.reason) == ("halted", "BLLM-021: credit")
    assert (resumed.actor, resumed.reason) == ("ann", "paid")


def test_settling_again_replaces_the_counts(ledger: SqlLedger) -> None:
    job = some(ledger.settle_job(running_job(ledger, rows=10), {"rows": 10, "answered": 9}))
    again = some(ledger.settle_job(job, {"rows": 10, "answered": 10}))
    assert again.counts == {"rows": 10, "answered": 10}
    assert some(again.settled_at) >= some(job.settled_at)


def test_marks_are_merged(ledger: SqlLedger) -> None:
    job = new_job(ledger, seen={"a": 1, "b": 2})
    assert some(ledger.mark_seen(job, {"b": 3, "c": "x\x00é"})).seen == {"a": 1, "b": 3, "c": "x\x00é"}


def test_events_are_read_in_the_order_of_writing_with_who_and_why(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, BatchState.SUBMITTED)
    ledger.add_event(batch.job_id, "looked_at", batch_id=batch.batch_id, actor="ann", reason="why\x00 \ud800")
    ledger.add_event("other", "elsewhere")
    events = ledger.events(batch.job_id)
    assert [e.action for e in events] == [
        "job_created",
        "plan_pinned",
        "uploaded",
        "submitting",
        "submitted",
        "looked_at",
    ]
    assert [e.time for e in events] == sorted(e.time for e in events)
    assert (events[-1].batch_id, events[-1].actor, events[-1].reason) == (batch.batch_id, "ann", "why� ?")
