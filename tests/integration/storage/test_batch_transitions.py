from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pytest_mock import MockerFixture
from sqlalchemy import select, update

from airflow_batch_llm.core.model import (
    Batch,
    BatchError,
    BatchKind,
    BatchState,
    Place,
    RemoteStatus,
    ResultFile,
    Usage,
)
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.schema import batch as batch_table
from tests.integration.storage.ledgers import (
    FACTS,
    actions,
    batch_in,
    batch_plan,
    new_job,
    plan,
    reconciled,
    remote,
    running_job,
    some,
)

S = BatchState
Transition = Callable[[SqlLedger, Batch], Batch | None]

#: Each method, the states it may start from, where it leads, and its event.
TRANSITIONS: dict[str, tuple[Transition, set[BatchState], BatchState | None, str]] = {
    "mark_uploaded": (lambda ledger, b: ledger.mark_uploaded(b, "f"), {S.PLANNED}, S.UPLOADED, "uploaded"),
    "enter_submitting": (
        lambda ledger, b: ledger.enter_submitting(b, revision=b.revision, lease_seconds=5),
        {S.UPLOADED},
        S.SUBMITTING,
        "submitting",
    ),
    "record_look": (lambda ledger, b: ledger.record_look(b), {S.SUBMITTING}, S.SUBMITTING, "looked"),
    "leave_submitting": (
        lambda ledger, b: ledger.leave_submitting(b, reason="r"),
        {S.SUBMITTING},
        S.UPLOADED,
        "submitting_left",
    ),
    "mark_submitted": (
        lambda ledger, b: ledger.mark_submitted(b, remote()),
        {S.SUBMITTING},
        S.SUBMITTED,
        "submitted",
    ),
    "put_back": (
        lambda ledger, b: ledger.put_back(b, reason="queue_full", not_before=9.5),
        {S.UPLOADED, S.SUBMITTING, S.SUBMITTED, S.ENDED},
        S.PLANNED,
        "put_back",
    ),
    "mark_ended": (
        lambda ledger, b: ledger.mark_ended(b, remote(status=RemoteStatus.DONE)),
        {S.SUBMITTED},
        S.ENDED,
        "ended",
    ),
    "mark_reconciled": (
        lambda ledger, b: ledger.mark_reconciled(b, reconciled("j2")),
        {S.ENDED, S.RECONCILED},
        S.RECONCILED,
        "reconciled",
    ),
    "mark_lost": (lambda ledger, b: ledger.mark_lost(b, "404"), {S.SUBMITTED}, S.LOST, "lost"),
    "ask_cancel": (
        lambda ledger, b: ledger.ask_cancel(b, actor="ann", reason="late"),
        {S.SUBMITTED},
        S.SUBMITTED,
        "cancel_asked",
    ),
}


@pytest.mark.parametrize("state", list(BatchState))
def test_each_transition_starts_from_its_states_only_and_writes_one_event(
    ledger: SqlLedger, state: BatchState
) -> None:
    start = batch_in(ledger, state, lease_seconds=-1)
    row = _row(ledger, start)
    for name, (do, allowed, to, action) in TRANSITIONS.items():
        _write_row(ledger, row)
        before = actions(ledger, start.job_id)
        after = do(ledger, start)
        added = actions(ledger, start.job_id)[len(before) :]
        if state not in allowed:
            assert (after, added) == (None, []), name
            assert ledger.get_batch(start.batch_id) == start, name
            continue
        assert added == ["rejudged" if state is S.RECONCILED else action], name
        assert some(after).state is to, name
        assert ledger.get_batch(start.batch_id) == after, name


def _row(ledger: SqlLedger, batch: Batch) -> dict[str, Any]:
    with reading(ledger.engine) as connection:
        query = select(batch_table).where(batch_table.c.batch_id == batch.batch_id)
        return dict(connection.execute(query).mappings().one())


def _write_row(ledger: SqlLedger, row: dict[str, Any]) -> None:
    """Put the batch back, past all rules, so that one job serves every transition."""
    with writing(ledger.engine) as connection:
        connection.execute(update(batch_table).where(batch_table.c.batch_id == row["batch_id"]).values(**row))


@pytest.mark.parametrize("name", list(TRANSITIONS))
def test_a_transition_of_an_older_attempt_does_nothing(ledger: SqlLedger, name: str) -> None:
    do, allowed, _, _ = TRANSITIONS[name]
    batch = batch_in(ledger, min(allowed), lease_seconds=-1)
    assert do(ledger, replace(batch, attempt=batch.attempt + 1)) is None
    assert do(ledger, replace(batch, attempt=batch.attempt - 1)) is None
    assert do(ledger, batch) is not None


def test_a_planned_batch_is_read_back_as_it_was_planned(ledger: SqlLedger) -> None:
    job = new_job(ledger)
    wanted = batch_plan(3, overrides={"max_tokens": 400, "é": [1.5, None]}, not_before=12345.678)
    job = some(ledger.pin_plan(job, replace(plan(), batches=(wanted,))))
    (batch,) = ledger.batches(job.job_id)
    assert batch.batch_id == f"{job.job_id}-1-0-3"
    for name in ("seq", "path", "requests", "bytes", "sha256", "upload_bytes", "model", "est_input_tokens",
                 "max_output_tokens", "overrides", "not_before"):  # fmt: skip
        assert getattr(batch, name) == getattr(wanted, name)
    assert (batch.conn_id, batch.provider, batch.plan_id) == ("llm", "openai", "p1")
    assert (batch.kind, batch.state, batch.attempt) == (BatchKind.PRIMARY, S.PLANNED, 0)
    assert (batch.files, batch.counts, batch.usage) == ((), {}, Usage())


def test_entering_submitting_counts_the_attempt_and_takes_a_lease_by_the_clock_of_the_database(
    ledger: SqlLedger, mocker: MockerFixture
) -> None:
    batch = batch_in(ledger, S.UPLOADED)
    mocker.patch.object(time, "time", return_value=0.0)
    before = ledger.now()
    batch = some(ledger.enter_submitting(batch, revision=1, lease_seconds=90))
    after = ledger.now()
    assert batch.attempt == 1
    assert before - 0.01 <= some(batch.lease_until) - 90 <= after + 0.01
    left = some(ledger.leave_submitting(batch, reason="r", not_before=5.0))
    assert (left.attempt, left.lease_until, left.not_before) == (1, None, 5.0)
    assert some(ledger.enter_submitting(left, revision=1, lease_seconds=90)).attempt == 2


def test_the_clock_is_that_of_the_world(ledger: SqlLedger) -> None:
    assert abs(ledger.now() - time.time()) < 5


def test_a_look_counts_only_after_the_lease_ended_and_only_once(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTING, lease_seconds=600)
    assert ledger.record_look(batch) is None
    left = some(ledger.leave_submitting(batch, reason="r"))
    batch = some(ledger.enter_submitting(left, revision=1, lease_seconds=-0.001))
    looked = some(ledger.record_look(batch))
    assert some(looked.first_look_at) >= some(batch.lease_until)
    assert ledger.record_look(looked) is None


def test_a_new_attempt_forgets_the_looks_of_the_last(ledger: SqlLedger) -> None:
    batch = some(ledger.record_look(batch_in(ledger, S.SUBMITTING, lease_seconds=-1)))
    batch = some(ledger.leave_submitting(batch, reason="r"))
    assert batch.first_look_at is None
    assert some(ledger.enter_submitting(batch, revision=1, lease_seconds=1)).first_look_at is None


def test_nothing_is_sent_for_a_revision_that_is_over(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.UPLOADED)
    job = some(ledger.get_job(batch.job_id))
    some(ledger.begin_revision(job, **FACTS, seen={}, fresh=False))
    assert ledger.enter_submitting(batch, revision=1, lease_seconds=5) is None
    assert some(ledger.get_batch(batch.batch_id)).attempt == 0


def test_submitting_and_ending_keep_what_the_provider_said(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTING)
    batch = some(ledger.mark_submitted(batch, remote("batch_é", RemoteStatus.PENDING)))
    assert (batch.provider_batch_id, batch.provider_status) == ("batch_é", "pending")
    assert batch.lease_until is None
    assert abs(some(batch.submitted_at) - ledger.now()) < 60
    answer = remote(
        "batch_é",
        RemoteStatus.FAILED,
        errors=(BatchError("token_limit", message="secret"), BatchError("other")),
        files=(ResultFile("output", "f-out"),),
    )
    batch = some(ledger.mark_ended(batch, answer))
    assert (batch.provider_status, batch.error_code, batch.files) == ("failed", "token_limit", ())
    assert "secret" not in str(ledger.events(batch.job_id))


def test_putting_back_clears_the_provider_ids_and_the_event_keeps_them(ledger: SqlLedger) -> None:
    batch = some(ledger.ask_cancel(batch_in(ledger, S.SUBMITTED), actor="ann", reason="r"))
    batch = some(ledger.put_back(batch, reason="queue_full", not_before=99.25))
    gone = (batch.input_file_id, batch.provider_batch_id, batch.provider_status, batch.submitted_at)
    assert gone == (None,) * 4
    assert (batch.cancel_asked_by, batch.lease_until) == (None, None)
    assert (batch.attempt, batch.not_before) == (1, 99.25)
    reason = ledger.events(batch.job_id)[-1].reason
    assert all(word in reason for word in ("queue_full", "file-1", "batch_1"))


def test_a_batch_is_put_back_from_the_state_that_was_seen_only(ledger: SqlLedger) -> None:
    seen = batch_in(ledger, S.SUBMITTED)
    some(ledger.mark_ended(seen, remote(status=RemoteStatus.DONE)))
    assert ledger.put_back(seen, reason="queue_full", not_before=None) is None


def test_a_second_judgement_needs_another_judge_and_the_one_that_was_seen(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.RECONCILED)
    assert (batch.counts, batch.usage, batch.judge) == ({"ok": 10}, Usage(1, 2, 3, 4, 5), "j1")
    assert batch.files[0]["file_id"] == "f-out"
    assert ledger.mark_reconciled(batch, reconciled("j1")) is None
    again = some(ledger.mark_reconciled(batch, reconciled("j2", ok=9, refused=1)))
    assert (again.judge, again.counts) == ("j2", {"ok": 9, "refused": 1})
    assert ledger.mark_reconciled(batch, reconciled("j3")) is None
    ended = replace(batch, state=S.ENDED)
    assert ledger.mark_reconciled(ended, reconciled("j3")) is None


def test_cancelling_is_asked_once(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTED)
    asked = some(ledger.ask_cancel(batch, actor="ann", reason="late"))
    assert asked.cancel_asked_by == "ann"
    assert ledger.ask_cancel(batch, actor="bob", reason="late") is None
    event = ledger.events(batch.job_id)[-1]
    assert (event.actor, event.action, event.reason) == ("ann", "cancel_asked", "late")


def test_a_duplicate_stands_beside_its_batch_once_per_provider_id(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTED)
    double = ledger.record_duplicate(batch, remote("batch_2"), 2)
    assert double.batch_id == f"{batch.batch_id}-d2"
    assert (double.kind, double.state, double.attempt) == (BatchKind.DUPLICATE, S.SUBMITTED, 2)
    assert (double.path, double.sha256, double.requests) == (batch.path, batch.sha256, batch.requests)
    assert (double.provider_batch_id, double.cancel_asked_by) == ("batch_2", "machine")
    assert ledger.record_duplicate(batch, remote("batch_2"), 2) == double
    other = ledger.record_duplicate(batch, remote("batch_3"), 2)
    assert other.batch_id == f"{batch.batch_id}-d2-2"
    assert ledger.batches(batch.job_id) == [batch, double, other]
    assert actions(ledger, batch.job_id).count("duplicate") == 2
    ended = some(ledger.mark_ended(double, remote("batch_2", RemoteStatus.CANCELLED)))
    assert some(ledger.mark_reconciled(ended, reconciled())).state is S.RECONCILED


def test_the_batch_that_counts_is_not_recorded_as_its_own_duplicate(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTED)
    assert ledger.record_duplicate(batch, remote("batch_1"), 1) == batch
    assert ledger.batches(batch.job_id) == [batch]


def test_batches_are_found_by_state_revision_and_round_in_order(ledger: SqlLedger) -> None:
    job = running_job(ledger, batches=12)
    job = some(ledger.pin_round(job, plan("p2", 2)))
    found = ledger.batches(job.job_id)
    assert [(b.round, b.seq) for b in found] == [(0, n) for n in range(12)] + [(1, 0), (1, 1)]
    some(ledger.mark_uploaded(found[3], "f"))
    assert [b.seq for b in ledger.batches(job.job_id, states=[S.UPLOADED])] == [3]
    assert [b.plan_id for b in ledger.batches(job.job_id, round=1)] == ["p2", "p2"]
    assert ledger.batches(job.job_id, revision=2) == []
    assert ledger.batches(job.job_id, states=[]) == []
    assert ledger.get_batch("none") is None


def test_a_providers_id_may_be_as_long_as_a_gateway_makes_it(ledger: SqlLedger) -> None:
    found = batch_in(ledger, S.SUBMITTING)
    long = "bGl0ZWxsbV9wcm94eTs" * 32  # a LiteLLM proxy wraps ids
    submitted = ledger.mark_submitted(found, replace(remote(), id=long))
    assert submitted is not None and submitted.provider_batch_id == long
    assert [batch.batch_id for batch in ledger.batches_at_provider(long)] == [found.batch_id]


# -- where a batch is ------------------------------------------------------------------------------
A, B, C = Place("a/v1", "0a0a0a0a"), Place("b/v1"), Place("c/v1", "0c0c0c0c")


def test_it_is_noted_where_a_batch_was_uploaded_sent_and_found(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.PLANNED)
    assert batch.place is None
    batch = some(ledger.mark_uploaded(batch, "f", place=A))
    assert batch.place == A
    batch = some(ledger.enter_submitting(batch, revision=1, lease_seconds=5, place=B))
    assert batch.place == B
    batch = some(ledger.mark_submitted(batch, remote(), place=C))
    assert batch.place == C
    assert some(ledger.mark_ended(batch, remote(status=RemoteStatus.DONE))).place == C


def test_what_is_planned_again_is_nowhere(ledger: SqlLedger) -> None:
    uploaded = some(ledger.mark_uploaded(batch_in(ledger, S.PLANNED), "f", place=A))
    assert some(ledger.put_back(uploaded, reason="other_connection", not_before=None)).place is None


def test_a_transition_that_names_no_place_leaves_it_as_it_is(ledger: SqlLedger) -> None:
    uploaded = some(ledger.mark_uploaded(batch_in(ledger, S.PLANNED), "f", place=A))
    sent = some(ledger.enter_submitting(uploaded, revision=1, lease_seconds=5))
    assert some(ledger.mark_submitted(sent, remote())).place == A


def test_a_duplicate_is_where_it_was_found(ledger: SqlLedger) -> None:
    uploaded = some(ledger.mark_uploaded(batch_in(ledger, S.PLANNED), "f", place=A))
    sent = some(ledger.enter_submitting(uploaded, revision=1, lease_seconds=5))
    assert ledger.record_duplicate(sent, remote("b-2"), 1).place == A
    assert ledger.record_duplicate(sent, remote("b-3"), 1, place=B).place == B


@pytest.mark.parametrize("state", [S.SUBMITTED, S.ENDED])
def test_what_was_sent_is_adopted_anew_only_where_its_connection_was_changed(
    state: BatchState, ledger: SqlLedger
) -> None:
    batch, told = batch_in(ledger, state), {"actor": "ann", "reason": "a gateway gives other ids"}
    assert ledger.adopt(batch, remote("gw-1"), **told) is None
    adopted = some(ledger.adopt(batch, remote("gw-1"), **told, place=B, moved=True))
    assert (adopted.state, adopted.provider_batch_id, adopted.place) == (S.SUBMITTED, "gw-1", B)
    assert adopted.ended_at is None
