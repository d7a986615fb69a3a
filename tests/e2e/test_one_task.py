"""A whole job in one task, on a whole Airflow: as the group of four."""

from __future__ import annotations

from tests.e2e.runs import FAILS_ONCE, FILTERED, Jobs
from tests.e2e.together import at_once

ASK = "ask"


@at_once
def test_one_task_that_is_cleared_while_it_waits_finds_the_same_batch_and_cancels_nothing(jobs: Jobs) -> None:
    run = jobs.start("rows_one_task", ["North", "South"])
    first = run.waits(ASK)
    before = run.batches()
    run.clear(ASK)
    run.waits(ASK, after_try=first.try_number)
    run.trigger_let_batches_go_on(ASK)
    assert run.batches() == before and len(before) == 1
    assert run.ends() == "success"
    assert run.cancel_calls() == 0
    assert len(run.batches()) == 1
    assert sorted(run.executed().values()) == [1, 1]
    assert run.landed() == run.ids(0, 1)


@at_once
def test_one_task_that_ended_and_is_cleared_sends_only_what_may_be_answered_now(jobs: Jobs) -> None:
    run = jobs.start("rows_one_task", ["North", "South", FAILS_ONCE, FILTERED])
    assert run.ends() == "success"
    assert run.letters() == {"open": 2}
    assert run.landed() == run.ids(0, 1)

    run.clear(ASK)
    assert run.ends() == "success"
    assert run.letters() == {"resolved": 1, "open": 1}
    assert run.landed() == run.ids(0, 1, 2)
    assert sorted(run.executed().values()) == [1, 1, 1, 2]
    assert run.sent_after_answer() == 0


@at_once
def test_rows_of_a_function_wait_in_the_triggerer_and_land(jobs: Jobs) -> None:
    run = jobs.start("rows_of_a_function", ["North", "South", "East"])
    assert run.waits(ASK).pid is not None
    assert run.ends() == "success"
    assert len(run.batches()) == 1
    assert run.landed() == run.ids(0, 1, 2)
