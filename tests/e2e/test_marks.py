"""What a person marks while the job waits: tasks failed or successful, the run failed."""

from __future__ import annotations

from tests.e2e.runs import DEAD_LETTER, RECONCILE, SUBMIT, Jobs, Run
from tests.e2e.together import at_once

FOUR = ["North", "South", "East", "West"]


def is_cancelled(run: Run) -> None:
    """Wait until the run's one batch is cancelled at the provider."""
    run.has(lambda: [status for _, status in run.batches()] == ["cancelled"], "a cancelled batch")


def assert_all_answered(run: Run, *, batches: int) -> None:
    """All four rows landed, each executed once, in so many batches; none is dead or missing."""
    assert run.landed() == run.ids(0, 1, 2, 3)
    assert sorted(run.executed().values()) == [1, 1, 1, 1]
    assert len(run.batches()) == batches
    assert not run.letters()


@at_once
def test_marked_failed_with_cancel_on_kill_the_batch_is_cancelled_and_clears_send_the_rest(
    jobs: Jobs,
) -> None:
    run = jobs.start("rows_cancelled", FOUR)
    run.waits()
    run.mark(SUBMIT, "failed")
    is_cancelled(run)
    assert run.ends() == "failed"
    assert run.states() == ["failed", *["upstream_failed"] * 3]
    assert sum(run.executed().values()) == 2

    run.clear()
    assert run.ends() == "failed"
    assert run.halted() == "BLLM-032"
    assert "BLLM-032" in run.log(DEAD_LETTER, run.tries(DEAD_LETTER))
    assert run.landed() == run.ids(0, 1), "what was paid before the batch was cancelled"

    run.clear()
    assert run.ends() == "success"
    assert_all_answered(run, batches=2)


@at_once
def test_marked_failed_without_cancel_on_kill_the_batch_goes_on_and_a_clear_reads_it(jobs: Jobs) -> None:
    run = jobs.start("rows_kept", FOUR)
    run.waits()
    run.mark(SUBMIT, "failed")
    run.trigger_let_batches_go_on()
    assert run.ends() == "failed"
    assert run.cancel_calls() == 0
    run.has(lambda: run.batches()[0][1] == "completed", "the end of the batch")

    run.clear()
    assert run.ends() == "success"
    assert run.cancel_calls() == 0
    assert_all_answered(run, batches=1)


@at_once
def test_marked_successful_the_next_task_waits_for_the_batches_and_nothing_is_missing(jobs: Jobs) -> None:
    run = jobs.start("rows_kept", FOUR)
    run.waits()
    run.mark(SUBMIT, "success")
    run.waits(RECONCILE)
    assert run.cancel_calls() == 0
    assert run.ends() == "success"
    assert run.states() == ["success"] * 4
    assert_all_answered(run, batches=1)


@at_once
def test_marked_successful_with_cancel_on_kill_what_was_answered_is_read_and_the_job_halts(
    jobs: Jobs,
) -> None:
    run = jobs.start("rows_cancelled", FOUR)
    run.waits()
    run.mark(SUBMIT, "success")
    is_cancelled(run)
    assert run.ends() == "failed"
    assert run.states() == [*["success"] * 3, "failed"]
    assert run.halted() == "BLLM-032"
    assert run.landed() == run.ids(0, 1)
    assert not run.letters(), "rows that were not executed are pending, not dead"

    run.clear()
    assert run.ends() == "success"
    assert_all_answered(run, batches=2)


@at_once
def test_a_later_task_that_waits_is_marked_and_cancels_like_the_first(jobs: Jobs) -> None:
    run = jobs.start("rows_cancelled", FOUR)
    first = run.waits()
    run.clear(SUBMIT)  # not a mark: the batch goes on
    run.waits(after_try=first.try_number)
    run.mark(SUBMIT, "skipped")
    is_cancelled(run)


@at_once
def test_a_run_marked_failed_cancels_its_batch_only_with_cancel_on_kill(jobs: Jobs) -> None:
    kept, cancelled = jobs.start("rows_kept", FOUR), jobs.start("rows_cancelled", FOUR)
    for run in (kept, cancelled):
        run.waits()
        run.mark_run("failed")
    is_cancelled(cancelled)
    kept.trigger_let_batches_go_on()
    assert kept.cancel_calls() == 0
    assert [run.ends() for run in (kept, cancelled)] == ["failed", "failed"]

    kept.clear()
    assert kept.ends() == "success"
    assert_all_answered(kept, batches=1)
