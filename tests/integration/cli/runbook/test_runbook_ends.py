"""A run that is red for any reason of the runbook ends green by exactly what the runbook says."""

from __future__ import annotations

import pytest

from airflow_batch_llm.core.by_hand import acceptance_of
from airflow_batch_llm.core.model import JobState
from tests.integration.cli.runbook.red import CANCELLED_BY_COMMAND, REDS, REFUSED_AT_ONCE, Red
from tests.integration.cli.runbook.stage import Stage
from tests.integration.cli.runbook.ways import Clear, Way, told_to_be_red, ways
from tests.integration.tasks.desk import SUBMIT, TASKS

WAYS = ways()
#: Told by another section's code: the job is halted for a reason of its own.
ALIAS = "BLLM-030"


def make_red(stage: Stage, red: Red) -> None:
    red.make(stage)
    assert stage.run is not None and stage.runs.states(stage.run)[red.task] == "failed"
    assert red.code in str(stage.runs.error_of(red.task))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_way_out_brings_the_run_to_its_end(stage: Stage, way: Way) -> None:
    red = REDS[way.red]
    make_red(stage, red)
    answered, landed = stage.answered(), set(stage.warehouse.labels())
    red.mend(stage)
    before = len(stage.traffic.charges)
    assert stage.follow(way) == "success"

    books = stage.books()
    assert books.job.state is JobState.SETTLED and books.job.counts["pending"] == 0
    rows, dead = books.job.counts["rows"], books.job.counts["dead"]
    assert books.job.counts["answered"] + dead == rows == 6
    accepted = acceptance_of(books.job)
    assert (accepted is not None) == any(isinstance(s, list) and "accept" in s for s in way.steps)
    assert accepted is None or accepted.letters >= sum(1 for _ in books.open_codes())
    assert landed <= set(stage.warehouse.labels())
    assert len(stage.warehouse.labels()) == books.job.counts["answered"]
    sent = {charge["custom_id"] for charge in stage.traffic.charges[before:]}
    assert not sent & answered, "what has an answer is never sent again"
    assert way.pays_again or not stage.paid_twice()


def test_every_code_that_makes_a_run_red_has_a_way_out_and_a_test() -> None:
    codes = {red.partition(" ")[0] for red in REDS}
    assert told_to_be_red() - {ALIAS} <= codes
    assert {way.red for way in WAYS} == set(REDS)


@pytest.mark.parametrize("refusal", REFUSED_AT_ONCE)
def test_a_submit_task_that_was_refused_at_once_is_cleared(
    stage: Stage, refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.server.set_scenario({"calls": [REFUSED_AT_ONCE[refusal]]})
    stage.start()
    assert refusal[:8] in str(stage.runs.error_of(SUBMIT)) and stage.traffic.sent == 0
    capsys.readouterr()
    stage.command(["show", "JOB"])
    told = capsys.readouterr().out
    assert "nothing was accepted (" in told and f"then clear task {SUBMIT} with downstream" in told
    stage.server.set_scenario({})
    assert stage.clear(Clear("submit", True)) == "success"
    assert len(stage.warehouse.labels()) == 6 and not stage.paid_twice()


def test_a_job_that_was_cancelled_by_command_is_accepted(stage: Stage) -> None:
    make_red(stage, CANCELLED_BY_COMMAND)
    stage.server.set_scenario({})
    assert len(stage.warehouse.labels()) == 3
    stage.command(["accept", "JOB", "--reason", "enough"])
    assert stage.clear(Clear("dead_letter", False)) == "success"
    assert len(stage.books().open_codes()) == 3 and stage.traffic.creates == 1


def test_more_dead_letters_than_were_accepted_are_red_again(stage: Stage) -> None:
    make_red(stage, REDS["BLLM-040"])
    stage.command(["accept", "JOB", "--reason", "one is all right"])
    assert stage.clear(Clear("dead_letter", False)) == "success"
    assert stage.run is not None
    stage.warehouse.execute("UPDATE tickets SET body = 'number 2. again' WHERE id = 3")
    assert stage.runs.rerun(stage.dag, stage.run, *TASKS) == "failed"
    assert "BLLM-040" in str(stage.runs.error_of("label.dead_letter"))
