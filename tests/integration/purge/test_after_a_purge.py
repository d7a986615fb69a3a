"""Jobs go on after a purge or an erasure: cleared anew, judged again, re-driven, settled once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Rerun, Until
from tests.integration.cli.conftest import SQLITE, Command
from tests.integration.purge.conftest import WHO
from tests.job_bench import Bench

pytestmark = [SQLITE, pytest.mark.usefixtures("provider")]

TEXTS = {"t-1": "one", "t-2": "two", "t-3": "bad three"}


def fails(what: str, fault: str) -> dict[str, Any]:
    return {"rows": [{"match": {"contains": what}, "fault": fault}]}


def no_two(output: Any, row: dict[str, Any]) -> str | None:
    return "two is not wanted" if "two" in output else None


def test_a_job_that_was_purged_and_asked_anew_is_judged_again(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS, judge=Judge(validate=no_two), policy=RowRetry(max_rounds=0))
    assert job.run().counts["dead"] == 1
    assert command("purge", "--job", job.key.job_id, *WHO)[0] == 0
    again = job.clear(rerun=Rerun.FRESH)
    assert again.run().counts["dead"] == 1
    milder = again.retry(judge=Judge())
    assert milder.call(lambda engine: engine.rejudge()) == 1
    assert milder.until(Until.SETTLED).counts["answered"] == 3


def test_a_row_that_died_before_a_purge_and_dies_again_can_be_re_driven(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=1))
    job.server.set_scenario(fails("bad", "server_error"))
    job.run()
    (before,) = job.letters()
    assert (before.code, len(before.attempts)) == ("server_error", 2)
    assert command("purge", "--job", job.key.job_id, *WHO)[0] == 0
    again = job.clear(rerun=Rerun.FRESH)
    again.server.set_scenario(fails("bad", "bad_request"))
    again.run()
    (letter,) = again.letters(LetterState.OPEN)
    assert letter.verdict == "bad_request" and not letter.exhausted and len(letter.attempts) == 1
    assert letter.request_path != before.request_path
    again.server.set_scenario({})
    assert again.call(lambda e: e.redrive(actor="ann", reason="", mark="m")) == 1
    assert again.until(Until.SETTLED).counts["answered"] == 3


def test_a_row_that_was_erased_and_is_asked_anew_has_its_id_in_its_letter(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.server.set_scenario(fails("bad", "server_error"))
    job.run()
    assert command("purge", "--custom-id", "t-3", *WHO)[0] == 0
    assert "t-3" not in {letter.custom_id for letter in job.letters()}
    again = job.clear(rerun=Rerun.FRESH)
    again.run()
    assert set(again.open_letters()) == {"t-3"}
    again.server.set_scenario({})
    assert again.call(lambda e: e.redrive(actor="ann", reason="", mark="m")) == 1
    assert again.until(Until.SETTLED).counts["answered"] == 3


def test_a_row_that_shared_the_answer_of_one_that_left_can_be_erased_and_the_job_settles_again(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts={"t-1": "same", "t-2": "same"}, reuse=Reuse("job"))
    job.run()
    later = job.clear(texts={"t-2": "same"})
    later.run()
    assert command("purge", "--custom-id", "t-2", *WHO)[0] == 0
    assert later.until(Until.SETTLED).counts["answered"] == 1
    assert later.answers() == []
