"""Results that a person brings: noted once, never overwritten by what was decided before they came."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.core.model import Batch, BatchState, RemoteStatus, Usage
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.storage.ledgers import FACTS, actions, batch_in, plan, reconciled, remote, some

S = BatchState
BROUGHT = [{"kind": "output", "file_id": "", "path": "batch/b/raw/output-1.jsonl", "bytes": 5, "sha256": "1"}]


def hand_in(ledger: SqlLedger, batch: Batch, **other: Any) -> Batch | None:
    job = some(ledger.get_job(batch.job_id))
    said = {"job": job, "remote": None, "error_code": None, "actor": "ann", "reason": "by hand", **other}
    return ledger.hand_in(batch, BROUGHT, **said)


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
@pytest.mark.parametrize("state", list(BatchState))
def test_a_batch_that_was_sent_has_ended_once_its_results_are_brought(
    ledger: SqlLedger, state: BatchState
) -> None:
    batch = batch_in(ledger, state)
    before = some(ledger.get_job(batch.job_id)).version
    handed = hand_in(ledger, batch)
    if state not in (S.SUBMITTED, S.ENDED, S.LOST, S.RECONCILED):
        assert handed is None and ledger.get_batch(batch.batch_id) == batch
        return
    assert some(handed).state is S.ENDED and some(handed).files == tuple(BROUGHT)
    assert (some(handed).counts, some(handed).usage, some(handed).judge) == ({}, Usage(), None)
    assert some(handed).outcomes_sha256 is None and some(handed).ended_at is not None
    assert some(handed).provider_status == batch.provider_status
    event = ledger.events(batch.job_id)[-1]
    assert (event.action, event.actor, event.reason) == ("handed_in", "ann", "by hand")
    # Whoever is about to send its rows again finds the job changed.
    assert some(ledger.get_job(batch.job_id)).version == before + (state in (S.LOST, S.RECONCILED))


def test_the_provider_says_how_it_ended(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTED)
    ended = some(hand_in(ledger, batch, remote=remote(status=RemoteStatus.EXPIRED), error_code="late"))
    assert (ended.provider_status, ended.error_code) == ("expired", "late")


def test_what_was_decided_before_they_came_does_not_overwrite_them(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.ENDED)
    handed = some(hand_in(ledger, batch))
    assert hand_in(ledger, batch) is None
    assert ledger.mark_reconciled(batch, reconciled()) is None
    assert ledger.put_back(batch, reason="queue_full", not_before=None) is None
    off = {"error_code": "abandoned", "actor": "ann", "reason": "r"}
    assert ledger.write_off(batch, reconciled(), **off) is None
    assert ledger.get_batch(batch.batch_id) == handed
    assert some(ledger.mark_reconciled(handed, reconciled())).state is S.RECONCILED


@pytest.mark.parametrize("state", [S.LOST, S.RECONCILED])
def test_while_its_rows_may_be_sent_again_the_job_must_be_as_it_was_seen(
    ledger: SqlLedger, state: BatchState
) -> None:
    batch = batch_in(ledger, state)
    seen = some(ledger.get_job(batch.job_id))
    changed = some(ledger.mark_seen(seen, {"x": 1}))
    assert hand_in(ledger, batch, job=seen) is None
    staging = some(ledger.begin_revision(changed, **FACTS, seen={}, fresh=False))
    assert hand_in(ledger, batch) is None and ledger.get_batch(batch.batch_id) == batch
    pinned = some(ledger.pin_plan(staging, plan("p2", 0)))
    assert hand_in(ledger, batch, job=staging) is None
    assert some(hand_in(ledger, batch, job=pinned)).state is S.ENDED


def test_a_round_that_was_planned_before_is_not_pinned(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.RECONCILED)
    job = some(ledger.get_job(batch.job_id))
    assert hand_in(ledger, batch) is not None
    assert ledger.pin_round(job, plan("p2", 1)) is None
    assert "round_pinned" not in actions(ledger, job.job_id)


def test_what_turns_out_to_be_another_batch_is_left_where_its_results_were_brought(
    ledger: SqlLedger,
) -> None:
    batch = batch_in(ledger, S.SUBMITTING, lease_seconds=-1)
    unsure = some(ledger.adopt_provisionally(batch, remote("batch_x")))
    ended = some(ledger.mark_ended(unsure, remote("batch_x", RemoteStatus.DONE)))
    handed = some(hand_in(ledger, ended))
    assert handed.provisional
    ledger.record_duplicate(batch, remote("batch_x"), 1)
    assert ledger.get_batch(batch.batch_id) == handed
    # Where the create call's own reply comes, that is what counts.
    taken = some(ledger.mark_submitted(handed, remote("batch_y")))
    assert (taken.state, taken.files) == (S.SUBMITTED, ())
