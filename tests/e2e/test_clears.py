"""Clears: of a waiting task, of each task alone, of all four after red."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.runs import (
    DEAD_LETTER,
    FAILS_ONCE,
    FILTERED,
    RECONCILE,
    RETRY,
    SUBMIT,
    Jobs,
    Run,
)
from tests.e2e.together import at_once

#: Two rows that are answered, one that has used up its attempts, one that died for good.
MIXED = ["North", "South", FAILS_ONCE, FILTERED]


def settled(jobs: Jobs, dag_id: str = "rows_kept") -> Run:
    """Return a green run with two dead letters."""
    run = jobs.start(dag_id, MIXED)
    assert run.ends() == "success"
    assert run.letters() == {"open": 2}
    assert run.landed() == run.ids(0, 1)
    return run


@at_once
def test_a_clear_while_it_waits_finds_the_same_batch_and_cancels_nothing(jobs: Jobs) -> None:
    run = jobs.start("rows_cancelled", ["North", "South"])
    first = run.waits()
    before = run.batches()
    run.clear()
    run.waits(after_try=first.try_number)
    run.trigger_let_batches_go_on()
    assert run.batches() == before and len(before) == 1
    assert run.ends() == "success"
    assert run.cancel_calls() == 0
    assert len(run.batches()) == 1
    assert sorted(run.executed().values()) == [1, 1]
    assert run.landed() == run.ids(0, 1)


@at_once
def test_submit_cleared_alone_refuses_before_it_pays_and_with_downstream_goes_on(jobs: Jobs) -> None:
    run = settled(jobs)
    run.clear(SUBMIT)
    run.reaches(SUBMIT, "failed")
    assert run.states() == ["failed", "success", "success", "success"]
    assert run.ends() == "success", "the last task decides about the run, and it still counts"
    assert run.failures(SUBMIT) == 1, "refused at once, without Airflow's retries"
    assert "BLLM-034" in run.log(SUBMIT, run.tries(SUBMIT))
    assert len(run.batches()) == 1

    run.clear(SUBMIT, downstream=True)
    assert run.ends() == "success"
    assert run.letters() == {"resolved": 1, "open": 1}
    assert run.landed() == run.ids(0, 1, 2)
    assert sorted(run.executed().values()) == [1, 1, 1, 2]
    assert run.sent_after_answer() == 0


@at_once
def test_reconcile_cleared_alone_judges_again_with_the_present_schema(jobs: Jobs) -> None:
    run = jobs.start("rows_judged", ["North", "South"])
    assert run.ends() == "failed"
    assert run.letters() == {"open": 2}
    assert run.landed("words") == []

    module = jobs.stack.dags_folder / "answer_of_a_row.py"
    loosen(module)
    run.clear(RECONCILE)
    run.reaches(RECONCILE, "success")
    assert run.ends() == "failed", "dead_letter has not been cleared"
    run.clear(DEAD_LETTER)
    assert run.ends() == "success"
    assert run.letters() == {"resolved": 2}
    assert run.landed("words") == run.ids(0, 1)
    assert len(run.batches()) == 1
    assert sorted(run.executed().values()) == [1, 1]


def loosen(module: Path) -> None:
    """Let the validator of the schema accept every word."""
    strict = module.read_text()
    loose = strict.replace("len(word) > 0", "False")
    assert loose != strict
    module.write_text(loose)


@at_once
def test_retry_cleared_alone_resolves_a_dead_letter_and_cleared_again_while_it_waits_sends_nothing_more(
    jobs: Jobs,
) -> None:
    run = settled(jobs, "rows_cancelled")
    run.clear(RETRY)
    run.has(lambda: len(run.batches()) == 2, "the re-drive's batch")
    first = run.waits(RETRY)
    run.clear(RETRY)
    run.waits(RETRY, after_try=first.try_number)
    run.trigger_let_batches_go_on(RETRY)
    assert run.ends() == "success"
    assert run.states() == ["success"] * 4
    assert run.letters() == {"resolved": 1, "open": 1}
    assert run.landed() == run.ids(0, 1, 2)
    assert len(run.batches()) == 2
    assert run.cancel_calls() == 0
    assert sorted(run.executed().values()) == [1, 1, 1, 2], "the filtered row is not sent again"


@at_once
def test_dead_letter_cleared_alone_sends_nothing_and_publishes_the_same(jobs: Jobs) -> None:
    run = settled(jobs)
    tries = run.tries(DEAD_LETTER)
    before = run.results(), run.letters(), run.landed(), run.executed()
    run.clear(DEAD_LETTER)
    assert run.ends() == "success"
    assert run.tries(DEAD_LETTER) > tries
    assert (run.results(), run.letters(), run.landed(), run.executed()) == before
    assert len(run.batches()) == 1


@at_once
def test_all_four_cleared_after_red_send_what_had_only_used_up_its_attempts(jobs: Jobs) -> None:
    run = jobs.start("rows_strict", ["North", FAILS_ONCE])
    assert run.ends() == "failed"
    assert run.states() == [*["success"] * 3, "failed"]
    assert run.landed() == run.ids(0), "what was answered lands although the run is red"

    run.clear()
    assert run.ends() == "success"
    assert run.letters() == {"resolved": 1}
    assert run.landed() == run.ids(0, 1)
    assert sorted(run.executed().values()) == [1, 2]
    assert len(run.batches()) == 2
