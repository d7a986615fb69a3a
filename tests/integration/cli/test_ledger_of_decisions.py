"""The ledger's transitions that stand for a person's decision."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from airflow_batch_llm.core.model import Batch, BatchState, JobState, RemoteStatus
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.cli.conftest import SQLITE
from tests.integration.storage.ledgers import (
    FACTS,
    actions,
    batch_in,
    job_in,
    new_job,
    plan,
    reconciled,
    remote,
    running_job,
    some,
)

WHO = {"actor": "ann", "reason": "as ann says"}


def in_doubt(ledger: SqlLedger, task: str) -> Batch:
    job = running_job(ledger, task)
    (batch,) = ledger.batches(job.job_id)
    batch = some(ledger.mark_uploaded(batch, "file-1"))
    return some(ledger.enter_submitting(batch, revision=1, lease_seconds=60))


def test_two_people_who_adopt_one_batch_at_once_get_it_once(ledger: SqlLedger) -> None:
    batches = [in_doubt(ledger, f"task-{n}") for n in range(4)]
    start = Barrier(len(batches))

    def adopt(batch: Batch) -> Batch | None:
        start.wait()
        return ledger.adopt(batch, remote("batch_x"), **WHO)

    with ThreadPoolExecutor(len(batches)) as pool:
        adopted = [found for found in pool.map(adopt, batches) if found is not None]
    assert len(adopted) == 1
    assert [b.batch_id for b in ledger.batches_at_provider("batch_x")] == [adopted[0].batch_id]


@SQLITE
@pytest.mark.parametrize("state", BatchState)
def test_a_batch_is_adopted_only_where_it_is_in_doubt_or_lost(ledger: SqlLedger, state: BatchState) -> None:
    batch = batch_in(ledger, state)
    adopted = ledger.adopt(batch, remote("batch_x"), **WHO)
    assert (adopted is not None) == (state in (BatchState.SUBMITTING, BatchState.LOST))
    if adopted is not None:
        assert (adopted.state, adopted.provider_batch_id) == (BatchState.SUBMITTED, "batch_x")
        last = ledger.events(batch.job_id)[-1]
        assert (last.action, last.actor, last.reason) == (
            "adopted", "ann", "provider batch batch_x: as ann says",
        )  # fmt: skip
        assert ledger.adopt(batch, remote("batch_y"), **WHO) is None, "once"


@SQLITE
@pytest.mark.parametrize("state", BatchState)
def test_a_batch_is_written_off_unless_it_is_in_doubt_or_was_withdrawn(
    ledger: SqlLedger, state: BatchState
) -> None:
    batch = batch_in(ledger, state)
    off = ledger.write_off(batch, reconciled(missing=10), error_code="abandoned", **WHO)
    refused = {BatchState.SUBMITTING, BatchState.SUPERSEDED}
    assert (off is None) == (state in refused)
    if off is not None:
        assert (off.state, off.error_code, off.counts) == (
            BatchState.RECONCILED,
            "abandoned",
            {"missing": 10},
        )
        assert actions(ledger, batch.job_id)[-1] == "written_off"


@SQLITE
def test_a_batch_that_has_ended_meanwhile_is_not_written_off_unread(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, BatchState.SUBMITTED)
    some(ledger.mark_ended(batch, remote(status=RemoteStatus.DONE)))
    assert ledger.write_off(batch, reconciled(missing=10), error_code="abandoned", **WHO) is None


@SQLITE
def test_outcomes_that_were_changed_meanwhile_are_not_written_off(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, BatchState.RECONCILED)
    other = replace(reconciled("j2"), outcomes_sha256="9" * 64)
    some(ledger.mark_reconciled(batch, other))
    assert ledger.write_off(batch, reconciled(missing=10), error_code="x", **WHO) is None


@SQLITE
@pytest.mark.parametrize("state", JobState)
def test_a_job_is_accepted_only_where_it_has_stopped(ledger: SqlLedger, state: JobState) -> None:
    job = job_in(ledger, state)
    accepted = ledger.accept_job(job, letters=2, **WHO)
    assert (accepted is not None) == (state in (JobState.HALTED, JobState.SETTLED))
    if accepted is not None:
        assert accepted.state is state and accepted.seen["accepted"]["letters"] == 2
        assert ledger.accept_job(job, letters=3, **WHO) is None, "by compare-and-set"


@SQLITE
def test_a_halted_job_settles_only_where_it_was_accepted(ledger: SqlLedger) -> None:
    job = job_in(ledger, JobState.HALTED)
    assert ledger.settle_job(job, {"dead": 3}) is None
    job = some(ledger.accept_job(job, letters=0, **WHO))
    settled = some(ledger.settle_job(job, {"dead": 3}))
    assert (settled.state, settled.halt_code) == (JobState.SETTLED, None)
    assert settled.seen["accepted"] == {"revision": 1, "halted": False, "letters": 3, **WHO}


@SQLITE
@pytest.mark.parametrize("by", ["resume", "clear"])
def test_a_cancel_that_was_thought_better_of_frees_the_rows(ledger: SqlLedger, by: str) -> None:
    batch = batch_in(ledger, BatchState.SUBMITTED)
    batch = some(ledger.ask_cancel(batch, **WHO))
    job = some(ledger.halt_job(some(ledger.get_job(batch.job_id)), "BLLM-032", "not today", actor="ann"))
    assert ledger.events(job.job_id)[-1].actor == "ann"
    if by == "resume":
        some(ledger.resume_job(job, **WHO))
    else:
        some(ledger.begin_revision(job, **FACTS, seen={}, fresh=False))
    assert some(ledger.get_batch(batch.batch_id)).cancel_asked_by == "machine"


@SQLITE
def test_what_was_read_keeps_who_cancelled_it(ledger: SqlLedger) -> None:
    job = some(ledger.pin_plan(new_job(ledger), plan()))
    (batch,) = ledger.batches(job.job_id)
    batch = some(ledger.mark_uploaded(batch, "f"))
    batch = some(ledger.enter_submitting(batch, revision=1, lease_seconds=60))
    batch = some(ledger.mark_submitted(batch, remote()))
    batch = some(ledger.ask_cancel(batch, **WHO))
    batch = some(ledger.mark_ended(batch, remote()))
    some(ledger.mark_reconciled(batch, reconciled()))
    some(ledger.resume_job(some(ledger.halt_job(some(ledger.get_job(job.job_id)), "BLLM-032", "x")), **WHO))
    assert some(ledger.get_batch(batch.batch_id)).cancel_asked_by == "ann"
