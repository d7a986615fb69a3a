"""Batches that were never made, and batches that a provider without marks may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, Job, RemoteStatus
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.storage.ledgers import (
    FACTS,
    actions,
    batch_in,
    plan,
    reconciled,
    remote,
    running_job,
    some,
)

S = BatchState
RUNS = remote("theirs", counts={"total": 10})


def doubt(ledger: SqlLedger, task: str, *, lease: float = 60.0, seq: int = 0) -> Batch:
    """Return the batch of a job of its own whose create call is in doubt."""
    batch = ledger.batches(running_job(ledger, task, batches=seq + 1).job_id)[seq]
    uploaded = some(ledger.mark_uploaded(batch, ""))
    return some(ledger.enter_submitting(uploaded, revision=1, lease_seconds=lease))


def job_of(ledger: SqlLedger, batch: Batch) -> Job:
    return some(ledger.get_job(batch.job_id))


# -- nothing was created ---------------------------------------------------------------------------
@pytest.mark.parametrize("state", list(BatchState))
def test_only_what_was_not_accepted_can_have_been_refused(ledger: SqlLedger, state: BatchState) -> None:
    batch = batch_in(ledger, state)
    refused = ledger.mark_refused(batch, reconciled(cancelled=10), error_code="bad_file", reason="r")
    if state not in (S.PLANNED, S.UPLOADED, S.SUBMITTING):
        assert refused is None and ledger.get_batch(batch.batch_id) == batch
        return
    assert some(refused) == ledger.get_batch(batch.batch_id)
    assert (refused.state, refused.provider_status, refused.error_code) == (
        S.RECONCILED,
        "failed",
        "bad_file",
    )
    assert (refused.provider_batch_id, refused.lease_until, refused.attempt) == (None, None, batch.attempt)
    assert refused.input_file_id == batch.input_file_id and refused.ended_at is not None
    assert actions(ledger, batch.job_id)[-1] == "refused"
    assert ledger.mark_refused(batch, reconciled(), error_code="x", reason="r") is None
    assert (
        ledger.mark_refused(replace(refused, state=state), reconciled(), error_code="x", reason="r") is None
    )


def test_what_a_later_revision_sends_itself_is_not_refused_any_more(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.UPLOADED)
    some(ledger.begin_revision(job_of(ledger, batch), **FACTS, seen={}, fresh=False))
    assert ledger.mark_refused(batch, reconciled(), error_code="x", reason="r") is None
    sent = doubt(ledger, "other")
    some(ledger.begin_revision(job_of(ledger, sent), **FACTS, seen={}, fresh=False))
    assert some(ledger.mark_refused(sent, reconciled(), error_code="x", reason="r")).state is S.RECONCILED


def test_only_a_batch_of_the_present_revision_goes_back_to_be_sent(ledger: SqlLedger) -> None:
    batch = doubt(ledger, "submit")
    some(ledger.begin_revision(job_of(ledger, batch), **FACTS, seen={}, fresh=False))
    assert ledger.leave_submitting(batch, reason="r", only_current=True) is None
    closed = some(ledger.mark_not_created(batch, reconciled(cancelled=10), reason="r"))
    assert (closed.state, closed.error_code, closed.provider_batch_id) == (S.RECONCILED, "not_created", None)
    present = doubt(ledger, "other")
    assert some(ledger.leave_submitting(present, reason="r", only_current=True)).state is S.UPLOADED
    assert ledger.mark_not_created(present, reconciled(), reason="r") is None


# -- perhaps ours ----------------------------------------------------------------------------------
def test_a_provisional_adoption_keeps_the_lease_and_is_confirmed_or_undone(ledger: SqlLedger) -> None:
    batch = doubt(ledger, "submit")
    adopted = some(ledger.adopt_provisionally(batch, RUNS))
    assert (adopted.state, adopted.provider_batch_id, adopted.provisional) == (S.SUBMITTED, "theirs", True)
    assert adopted.lease_until == batch.lease_until and adopted.submitted_at is not None
    ended = some(ledger.mark_ended(adopted, remote("theirs", RemoteStatus.DONE)))
    assert ended.provisional
    undone = some(ledger.disown(ended, reason="its rows", actor="ann"))
    assert (undone.state, undone.provider_batch_id, undone.provisional) == (S.SUBMITTING, None, False)
    assert (undone.not_ours, undone.lease_until) == (("theirs",), batch.lease_until)
    assert (undone.submitted_at, undone.ended_at, undone.provider_status) == (None, None, None)
    assert ledger.disown(ended, reason="again") is None and ledger.confirm(ended) is None
    again = some(ledger.adopt_provisionally(undone, remote("other", counts={"total": 10})))
    confirmed = some(ledger.confirm(again))
    assert not confirmed.provisional and confirmed.lease_until is None and confirmed.not_ours == ("theirs",)
    assert ledger.disown(again, reason="too late") is None and ledger.confirm(again) is None
    assert actions(ledger, batch.job_id)[-5:] == [
        "adopted_provisionally", "ended", "provisional_disowned", "adopted_provisionally",
        "provisional_confirmed",
    ]  # fmt: skip


def test_nothing_is_adopted_that_another_batch_may_be_or_is(ledger: SqlLedger) -> None:
    one, two = doubt(ledger, "one"), doubt(ledger, "two")
    assert [b.batch_id for b in ledger.in_doubt_alike(one)] == [two.batch_id]
    assert ledger.adopt_provisionally(one, RUNS) is None
    some(ledger.mark_submitted(two, RUNS))
    assert ledger.in_doubt_alike(one) == [] and ledger.adopt_provisionally(one, RUNS) is None
    assert some(ledger.get_batch(one.batch_id)) == one


def test_what_was_read_and_is_not_ours_is_remembered(ledger: SqlLedger) -> None:
    batch = doubt(ledger, "submit")
    assert some(ledger.note_not_ours(batch, ["b", "a"])).not_ours == ("a", "b")
    noted = some(ledger.note_not_ours(batch, ["b", "c"]))
    assert noted.not_ours == ("a", "b", "c") and ledger.note_not_ours(batch, ["c"]) == noted
    assert actions(ledger, batch.job_id).count("not_ours") == 2
    assert some(ledger.disown(some(ledger.adopt_provisionally(noted, RUNS)), reason="r")).not_ours == (
        "a",
        "b",
        "c",
        "theirs",
    )


@pytest.mark.parametrize("state", [S.SUBMITTED, S.ENDED])
def test_whoever_gets_the_reply_after_all_replaces_what_was_adopted(
    ledger: SqlLedger, state: BatchState
) -> None:
    intent = doubt(ledger, "submit")
    adopted = some(ledger.adopt_provisionally(intent, RUNS))
    if state is S.ENDED:
        adopted = some(ledger.mark_ended(adopted, remote("theirs", RemoteStatus.FAILED)))
    ours = some(ledger.mark_submitted(intent, remote("ours")))
    assert (ours.state, ours.provider_batch_id, ours.provisional) == (S.SUBMITTED, "ours", False)
    assert (ours.ended_at, ours.error_code, ours.lease_until) == (None, None, None)
    assert ledger.confirm(adopted) is None and ledger.disown(adopted, reason="r") is None
    assert ledger.mark_submitted(intent, remote("third")) is None, "certain now"


Take = Callable[[SqlLedger, Batch], Batch | None]


@pytest.mark.parametrize(
    "take",
    [
        lambda ledger, b: ledger.mark_submitted(b, RUNS),
        lambda ledger, b: ledger.record_duplicate(b, RUNS, 1),
        lambda ledger, b: ledger.adopt(b, RUNS, actor="ann", reason="r"),
    ],
    ids=["submitted", "duplicate", "adopted"],
)
def test_what_is_known_to_be_one_batchs_is_taken_from_the_others(ledger: SqlLedger, take: Take) -> None:
    holder = some(ledger.adopt_provisionally(doubt(ledger, "holder"), RUNS))
    owner = doubt(ledger, "owner")
    assert some(take(ledger, owner)).provider_batch_id == "theirs"
    freed = some(ledger.get_batch(holder.batch_id))
    assert (freed.state, freed.provider_batch_id, freed.not_ours) == (S.SUBMITTING, None, ("theirs",))
    assert actions(ledger, holder.job_id)[-1] == "provisional_disowned"


def test_what_a_batch_was_taken_for_becomes_its_own_duplicate(ledger: SqlLedger) -> None:
    """Another attempt of the batch left it there: some of its rows are in it."""
    adopted = some(ledger.adopt_provisionally(doubt(ledger, "submit"), RUNS))
    duplicate = ledger.record_duplicate(adopted, RUNS, 1)
    assert (duplicate.kind, duplicate.provider_batch_id) == (BatchKind.DUPLICATE, "theirs")
    assert not duplicate.provisional and duplicate.not_ours == ()
    assert some(ledger.get_batch(adopted.batch_id)).state is S.SUBMITTING


def test_a_person_may_adopt_provisionally_and_change_their_mind(ledger: SqlLedger) -> None:
    batch = doubt(ledger, "submit")
    adopted = some(ledger.adopt(batch, RUNS, actor="ann", reason="r", provisional=True))
    assert adopted.provisional and adopted.lease_until == batch.lease_until
    other = some(ledger.adopt(adopted, remote("other"), actor="ann", reason="r"))
    assert (other.provider_batch_id, other.provisional) == ("other", False)
    assert ledger.adopt(other, RUNS, actor="ann", reason="r") is None


def test_a_plan_of_later_batches_knows_nothing_of_this(ledger: SqlLedger) -> None:
    (batch,) = ledger.batches(running_job(ledger).job_id)
    assert not batch.provisional and batch.not_ours == ()
    assert some(ledger.pin_round(job_of(ledger, batch), plan("p2"))).round == 1
