"""Batches without marks whose owner is hard to tell: held by another job of ours, without rows, too late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_batch_llm.core.by_hand import abandon_results, adopt, what_runs
from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import TransferError
from tests.integration.engine.strangers import SLOW, Street, in_doubt, step_until, street, unmarked_server
from tests.integration.engine.test_unmarked_batches import Without, only, provisional

__all__ = ["street", "unmarked_server"]

#: Results that are empty although they are answered with 200.
EMPTY: dict[str, Any] = {"on": "download", "fault": "cut", "at": 0.0}


def test_what_another_job_was_taken_for_may_be_ours_all_the_same(street: Street) -> None:
    """A person's wrong word, and a list that lags, leave ours to the other job; nothing is sent anew."""
    first = in_doubt(street, "lost_reply", run_id="first")
    theirs = str(only(street.stranger()).provider_batch_id)
    first.call(lambda e: adopt(e.tools, first.job(), only(first), theirs, actor="ann", reason="it is"))
    second = in_doubt(street, "dropped", ledger=first.ledger, run_id="second")
    lagging = replace(second, around_backend=lambda backend: Without(backend, theirs))
    step_until(lagging, lambda: only(second).provisional)
    street.server.release(theirs)
    step_until(first, lambda: only(first).state is BatchState.SUBMITTING)
    for _ in range(4):
        progress = first.step(Until.ENDED)
        assert progress.reason == "candidates"
        first.wait(progress)
    street.run_free()
    for bench in (first, second):
        assert bench.until(Until.SETTLED).counts["answered"] == street.rows
        bench.assert_accounted()
    assert (only(first).attempt, only(second).attempt) == (1, 2) and street.creates() == 4


def test_a_wrong_word_takes_from_no_job_what_it_was_taken_for(street: Street) -> None:
    first = in_doubt(street, "lost_reply", run_id="first")
    step_until(first, lambda: only(first).provisional)
    ours = str(only(first).provider_batch_id)
    second = in_doubt(street, "dropped", ledger=first.ledger, run_id="second")
    second.call(lambda e: adopt(e.tools, second.job(), only(second), ours, actor="ann", reason="it is"))
    assert only(first).provisional and only(second).provisional
    street.run_free()
    for bench in (second, first):
        assert bench.until(Until.SETTLED).counts["answered"] == street.rows
        bench.assert_accounted()
    assert (only(first).attempt, only(second).attempt) == (1, 2) and street.creates() == 3


def test_one_that_has_ended_and_shows_none_of_its_rows_yet_is_looked_at_again(street: Street) -> None:
    job = in_doubt(street, "lost_reply")
    street.server.release()
    street.server.set_scenario({"calls": [{**EMPTY, "times": 3}]})
    progress = job.step(Until.ENDED)
    assert progress.reason == "candidates" and only(job).not_ours == ()
    job.wait(progress)
    assert job.until(Until.SETTLED).counts["answered"] == street.rows and street.creates() == 1


def test_results_of_others_that_cannot_be_read_hinder_no_look_for_ours(street: Street) -> None:
    job = in_doubt(street, "lost_reply")
    theirs = str(only(street.stranger()).provider_batch_id)
    street.run_free()

    class Torn(Without):
        async def download(self, batch: Any, file: Any, local: Any) -> None:
            if batch.id == theirs:
                raise TransferError("breaks off")
            await self._backend.download(batch, file, local)

    torn = replace(job, around_backend=lambda backend: Torn(backend, ""))
    assert torn.until(Until.SETTLED).counts["answered"] == street.rows and street.creates() == 2
    job.assert_accounted()


def test_what_was_adopted_provisionally_and_never_shows_rows_is_a_persons_matter(street: Street) -> None:
    """Sent again, it would be paid for twice where it was ours; kept, it would be somebody else's."""
    job = in_doubt(street, "lost_reply", settings=replace(SLOW, gone_after=0.05))
    step_until(job, lambda: only(job).provisional)
    street.server.release()
    street.server.set_scenario({"calls": [EMPTY]})
    halted = job.until(Until.SETTLED)
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-031")
    assert street.creates() == 1 and only(job).files == () and only(job).provisional
    assert not list(job.folder.rglob("raw/*")) and street.touched(only(job).provider_batch_id) == []


def test_ours_is_found_when_what_it_was_taken_for_is_gone_and_was_given_up(street: Street) -> None:
    job = in_doubt(street, "lost_reply", settings=replace(SLOW, gone_after=0.05))
    (ours,) = [batch["id"] for batch in street.server.batches()]
    stranger = street.stranger()
    theirs = str(only(stranger).provider_batch_id)
    lagging = replace(job, around_backend=lambda backend: Without(backend, ours))
    step_until(lagging, lambda: only(job).provider_batch_id == theirs)
    street.run_free()
    stranger.until(Until.SETTLED)
    stranger.call(lambda engine: engine.tools.backend.delete_file(theirs))
    assert job.until(Until.SETTLED).halt_code == "BLLM-031" and only(job).state is BatchState.LOST
    abandon_results(job.ledger, job.workspace, job.job(), only(job), actor="ann", reason="not ours")
    assert job.ledger.resume_job(job.job(), actor="ann", reason="go on", deadline_at=None) is not None
    assert job.until(Until.SETTLED).counts["answered"] == street.rows and street.creates() == 2
    job.assert_accounted()


def test_nobody_who_waits_for_an_accepted_job_cancels_what_may_be_somebody_elses(street: Street) -> None:
    """The waiting task cancels what it waits for when a person ends it."""
    job, stranger = provisional(street)
    waiting = job.call(lambda engine: what_runs(engine.tools, job.job()))
    assert waiting is not None
    assert waiting.provisional == waiting.provider_batches == (only(stranger).provider_batch_id,)


def test_what_others_begin_after_all_create_calls_were_over_is_not_waited_for(street: Street) -> None:
    job, _ = provisional(street)
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_llm_batch SET lease_until = lease_until - 10800")
    late = street.stranger("late")
    street.server.release(only(job).provider_batch_id)
    step_until(job, lambda: only(job).attempt == 2)
    assert only(job).provider_batch_id not in (None, only(late).provider_batch_id)
    street.run_free()
    assert job.until(Until.SETTLED).counts["answered"] == street.rows
    street.assert_only_looked_at(late)
