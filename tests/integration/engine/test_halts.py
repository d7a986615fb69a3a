"""What stops a job for a person: what is paid lands, the rest stays pending, and a clear goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState, LetterState, RemoteBatch, ResultFile
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import TransferError
from tests.job_bench import QUICK, Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
HALFWAY = {"seconds": 600, "hold_at": 0.5}


def through_all_tasks(job: Bench, code: str) -> None:
    """Run all tasks of a job that is halted: again and again nothing more is sent."""
    for _ in range(2):
        halted = job.retry().run()
        assert halted.state is JobState.HALTED and halted.halt_code == code


def test_a_batch_cancelled_by_somebody_else(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    job.server.cancel_by_hand(job.batches()[0].provider_batch_id or "")
    through_all_tasks(job, "BLLM-032")
    assert sorted(a.custom_id for a in job.answers()) == ["t-0", "t-1", "t-2"]
    assert job.letters() == [] and job.creates() == 1
    job.server.set_scenario({})
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 6
    assert [b["total"] for b in cleared.server.batches()] == [3, 6]
    cleared.assert_accounted()
    assert cleared.server.summary()["charged"] == 6


def test_a_halted_job_that_is_resumed_goes_on(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    job.server.cancel_by_hand(job.batches()[0].provider_batch_id or "")
    through_all_tasks(job, "BLLM-032")
    job.server.set_scenario({})
    job.ledger.resume_job(job.job(), actor="ann", reason="cancelled by mistake")
    assert job.run().counts["answered"] == 6
    job.assert_accounted()


@pytest.mark.parametrize("looks", [1, 3])
def test_a_batch_that_the_provider_denies_is_lost_and_never_sent_again(
    looks: int, bench: Callable[..., Bench]
) -> None:
    """Before it has ended or after: it is a person's matter either way."""
    job = bench(texts=TEXTS, options={"max_requests": 3}, settings=replace(QUICK, gone_after=0.0))
    denied = {"on": "retrieve", "fault": "error", "status": 404, "times": 1, "skip": looks}
    job.server.set_scenario({"calls": [denied]})
    job.step(Until.ENDED, submitting=True)
    through_all_tasks(job, "BLLM-031")
    assert len(job.answers()) == 3 and job.letters() == []
    assert job.creates() == 2
    # A person decides that its rows are sent again.
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 6 and cleared.creates() == 3
    assert len(cleared.answers()) == 6 and cleared.letters() == []


@pytest.mark.parametrize("on", ["retrieve", "download"])
def test_results_that_are_not_there_for_a_moment_are_asked_for_again(
    on: str, bench: Callable[..., Bench]
) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    job.server.set_scenario({"calls": [{"on": on, "fault": "error", "status": 404, "times": 2}]})
    progress = job.step(Until.RECONCILED)
    assert not progress.done and progress.reason == "results_late" and progress.not_before is not None
    assert job.run().counts["answered"] == 6 and job.creates() == 1
    job.assert_accounted()


def test_results_that_are_gone_are_not_paid_for_again_without_a_person(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    job.until(Until.ENDED, submitting=True)
    job.server.set_scenario({"calls": [{"on": "download", "fault": "error", "status": 404}]})
    through_all_tasks(job, "BLLM-031")
    assert job.creates() == 1 and job.letters() == []


def test_a_fault_of_the_account_charges_no_row_an_attempt(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.server.set_scenario(
        {"rows": [{"match": {"custom_id": ".*", "every": 2}, "fault": "insufficient_quota"}]}
    )
    through_all_tasks(job, "BLLM-021")
    assert len(job.answers()) == 3 and job.letters() == [] and job.creates() == 1
    job.server.set_scenario({"rows": [{"match": {"contains": "number 1."}, "fault": "bad_request"}]})
    cleared = job.clear()
    cleared.run()
    assert cleared.job().counts["answered"] == 5 and [b["total"] for b in cleared.server.batches()] == [3, 6]
    (letter,) = cleared.letters(LetterState.OPEN)
    assert [(a.verdict, a.charged) for a in letter.attempts] == [("account", False), ("bad_request", True)]
    cleared.assert_accounted()


def test_a_fault_of_the_account_in_a_batch_that_never_ran(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0, max_free_rounds=0))
    refusal = {"fault": "fail_validation", "code": "billing_hard_limit_reached", "times": 1}
    job.server.set_scenario({"batches": [refusal]})
    through_all_tasks(job, "BLLM-021")
    assert job.letters() == [] and job.creates() == 1
    assert job.clear().run().counts["answered"] == 6
    job.assert_accounted()


def test_a_key_that_is_revoked_between_two_batches(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3})
    job.server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 401, "skip": 1}]})
    through_all_tasks(job, "BLLM-020")
    assert len(job.answers()) == 3 and job.letters() == [], "what the first batch brought is read"
    job.server.set_scenario({})
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 6
    assert [b["total"] for b in cleared.server.batches()] == [3, 3]
    cleared.assert_accounted()


def test_a_refusal_after_a_clear_lets_what_is_in_flight_be_read(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    job.server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 403}]})
    cleared = job.clear(texts={**TEXTS, "t-9": "one more"})
    cleared.step(Until.ENDED, submitting=True)
    job.server.release()
    through_all_tasks(cleared, "BLLM-020")
    assert len(cleared.answers()) == 6


def test_answers_that_are_counted_but_whose_file_is_named_late(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"results": {"late": 3}})
    assert job.run().counts["answered"] == 6
    assert job.creates() == 1 and job.server.summary()["charged"] == 6
    job.assert_accounted()


def test_a_few_answers_whose_file_is_never_named_are_missing(bench: Callable[..., Bench]) -> None:
    """After a while the rows are what they are in the provider's files."""
    few = dict(list(TEXTS.items())[:3])
    job = bench(texts=few, settings=replace(QUICK, gone_after=0.0))
    job.server.set_scenario({"rows": [{"match": {}, "fault": "missing", "times": 1}]})
    assert job.run().counts["answered"] == 3
    assert job.creates() == 2 and job.server.summary()["charged"] == 3


def test_answers_whose_file_is_never_named_are_not_paid_for_again_without_a_person(
    bench: Callable[..., Bench],
) -> None:
    """They are counted, as if the file were named and gone."""
    job = bench(texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    job.server.set_scenario({"rows": [{"match": {}, "fault": "missing", "times": 1}]})
    through_all_tasks(job, "BLLM-031")
    assert job.creates() == 1 and job.letters() == []


class Describing:
    """A way to the provider on which the descriptions of batches are changed.

    :param change: of a batch that has ended.
    """

    def __init__(self, backend: Any, change: Callable[[RemoteBatch], RemoteBatch]) -> None:
        self._backend, self._change = backend, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        remote: RemoteBatch = await self._backend.retrieve(batch_id)
        return self._change(remote) if remote.status.terminal else remote


@pytest.mark.parametrize("counts", [{}, {"total": 6, "completed": 0, "failed": 0}], ids=["none", "zero"])
def test_a_batch_that_is_done_and_shows_neither_files_nor_answers_is_looked_at_again(
    counts: dict[str, int], bench: Callable[..., Bench]
) -> None:
    """Its description may lag behind: its rows are not missing yet."""
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    bare = replace(
        job, around_backend=lambda backend: Describing(backend, lambda b: replace(b, files=(), counts=counts))
    )
    progress = bare.step(Until.RECONCILED)
    assert not progress.done and progress.reason == "results_late"
    assert job.run().counts["answered"] == 6 and job.creates() == 1
    job.assert_accounted()


@pytest.mark.parametrize("counts", [{}, {"total": 6, "completed": 0, "failed": 0}], ids=["none", "zero"])
def test_a_named_file_that_is_not_there_for_a_moment_is_asked_for_again_however_little_is_counted(
    counts: dict[str, int], bench: Callable[..., Bench]
) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"batches": [{"fault": "expire", "after": 0.5, "times": 1}]})
    job.until(Until.ENDED, submitting=True)
    job.server.set_scenario({"calls": [{"on": "download", "fault": "error", "status": 404, "times": 2}]})
    uncounted = replace(
        job, around_backend=lambda backend: Describing(backend, lambda b: replace(b, counts=counts))
    )
    progress = uncounted.step(Until.RECONCILED)
    assert not progress.done and progress.reason == "results_late"
    assert uncounted.run().counts["answered"] == 6
    assert job.server.summary()["charged"] == 6, "what the expired batch answered is not asked for again"


@pytest.mark.parametrize("failed", ["number 2.", "number [0-2].", "number [0-4]."])
def test_an_error_file_does_not_make_a_page_a_file_of_answers(
    failed: str, bench: Callable[..., Bench]
) -> None:
    """However many rows are in it."""
    job = bench(texts=TEXTS)
    faulty = [number for number in range(6) if re.search(failed, TEXTS[f"t-{number}"])]
    rules = [{"match": {"contains": f"number {n}."}, "fault": "bad_request"} for n in faulty]
    job.server.set_scenario({"rows": rules})
    job.until(Until.ENDED, submitting=True)

    class Page(Describing):
        async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
            await self._backend.download(batch, file, local)
            if file.kind == "output":
                local.write_bytes(b'{"error": {"message": "storage is busy"}}\n')

    meddled = replace(job, around_backend=lambda backend: Page(backend, lambda batch: batch))
    with pytest.raises(TransferError, match="holds no row of it"):
        meddled.step(Until.RECONCILED)
    assert job.run().counts["answered"] == 6 - len(faulty) and job.creates() == 1
    job.assert_accounted()


def test_a_server_that_counts_what_failed_as_answered_needs_no_file_of_answers(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    job.server.set_scenario({"rows": [{"match": {}, "fault": "bad_request"}]})
    counts = {"total": 6, "completed": 6, "failed": 6}
    counting = replace(
        job, around_backend=lambda backend: Describing(backend, lambda b: replace(b, counts=counts))
    )
    assert counting.run().counts["dead"] == 6 and job.creates() == 1


def test_a_halt_in_a_re_drive_keeps_its_letters(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    fault: dict[str, Any] = {"match": {"contains": "number 2."}, "fault": "bad_request"}
    job.server.set_scenario({"rows": [fault]})
    job.run()
    job.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
    assert job.call(lambda e: e.redrive(actor="ann", reason="", mark="1")) == 1
    job.step(Until.SETTLED)
    job.server.cancel_by_hand(job.batches()[1].provider_batch_id or "")
    halted = job.until(Until.SETTLED)
    assert halted.halt_code == "BLLM-032" and len(job.answers()) == 5
    assert [(x.custom_id, x.state) for x in job.letters()] == [("t-2", LetterState.REDRIVING)]
    job.server.set_scenario({})
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 6
    assert [x.state for x in cleared.letters()] == [LetterState.RESOLVED]
    cleared.assert_accounted()
