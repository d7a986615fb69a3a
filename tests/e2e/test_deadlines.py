"""Times that pass while a job waits: Airflow's own time-out of the defer, and the job's."""

from __future__ import annotations

from sqlalchemy import text

from tests.e2e.runs import DEAD_LETTER, SUBMIT, Jobs, Run
from tests.e2e.together import at_once


def let_the_defer_time_out(run: Run) -> None:
    """Bring the end of the deferral, days away, to now; the scheduler does the rest.

    :raises AssertionError: the task is not deferred.
    """
    with run.jobs.airflow_db.begin() as connection:
        changed = connection.execute(
            text(
                "UPDATE task_instance SET trigger_timeout = now() WHERE dag_id = :dag AND run_id = :run"
                " AND task_id = :task AND state = 'deferred'"
            ),
            {"dag": run.dag_id, "run": run.run_id, "task": SUBMIT},
        )
    assert changed.rowcount == 1


@at_once
def test_a_defer_that_times_out_in_airflow_is_no_failure(jobs: Jobs) -> None:
    run = jobs.start("rows_cancelled", ["North", "South"])
    first = run.waits()
    let_the_defer_time_out(run)
    run.has(lambda: (task := run.task(SUBMIT)) and task.trigger not in (None, first.trigger), "another defer")
    assert "the defer timed out in Airflow" in run.log(SUBMIT)
    assert run.ends() == "success"
    assert run.failures(SUBMIT) == 0
    assert run.cancel_calls() == 0
    assert len(run.batches()) == 1
    assert run.landed() == run.ids(0, 1)


def give_time(jobs: Jobs, dag_id: str, seconds: int) -> None:
    """Set the job_timeout of a DAG; the tasks that start from now on have it."""
    (jobs.folder / f"{dag_id}.seconds").write_text(str(seconds))


@at_once
def test_past_the_jobs_own_time_what_was_answered_lands_and_a_clear_sends_the_rest(jobs: Jobs) -> None:
    give_time(jobs, "rows_collected", 30)
    run = jobs.start("rows_collected", ["North", "South"])
    assert run.is_over() == "success"
    assert run.letters() == {"open": 1}
    assert run.landed() == run.ids(0)
    assert [status for _, status in run.batches()] == ["cancelled"]

    give_time(jobs, "rows_collected", 3600)
    run.clear()
    assert run.ends() == "success"
    assert run.letters() == {"resolved": 1}
    assert run.landed() == run.ids(0, 1)
    assert sorted(run.executed().values()) == [1, 1]


@at_once
def test_past_the_jobs_own_time_with_on_deadline_fail_a_clear_goes_on_with_the_same_batch(jobs: Jobs) -> None:
    give_time(jobs, "rows_left", 30)
    run = jobs.start("rows_left", ["North", "South"])
    assert run.is_over() == "failed"
    assert run.states() == [*["success"] * 3, "failed"]
    assert run.halted() == "BLLM-043"
    assert "BLLM-043" in run.log(DEAD_LETTER)
    assert [status for _, status in run.batches()] == ["in_progress"]

    give_time(jobs, "rows_left", 3600)
    run.clear()
    assert run.ends() == "success"
    assert run.landed() == run.ids(0, 1)
    assert len(run.batches()) == 1
    assert run.cancel_calls() == 0
    assert sorted(run.executed().values()) == [1, 1]
