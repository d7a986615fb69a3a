"""``hand-in`` at a real server: what it says, what it refuses, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_batch_llm.core.by_hand import ONE_TASK
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.spec import Until
from tests.integration.cli.conftest import SQLITE, Command, printed_json
from tests.integration.engine.handing_in import CUT, FORGOTTEN, download, keep_lines
from tests.job_bench import QUICK, Bench

pytestmark = [SQLITE, pytest.mark.usefixtures("provider")]

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(4)}
WHO = ("--reason", "as ann says", "--actor", "ann")


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Bench:
    """A job whose batch has ended, and whose results nobody can fetch."""
    made = bench(texts=TEXTS)
    made.until(Until.ENDED, submitting=True)
    made.server.set_scenario(CUT)
    return made


def output(job: Bench, folder: Path) -> Path:
    return download(job, job.batches()[0], folder, then=CUT)[0].local


def test_it_says_what_it_took_and_what_reads_it(job: Bench, command: Command, tmp_path: Path) -> None:
    whole = output(job, tmp_path)
    ours, theirs = whole.read_bytes().splitlines(keepends=True)[0], b'{"custom_id":"other","error":"x"}\n'
    whole.write_bytes(whole.read_bytes() + ours + theirs)
    words = ("hand-in", job.key.job_id, "1-0-0", "--output", str(whole), *WHO)
    status, out, _ = command(*words)
    assert status == 0 and out.splitlines() == [
        f"Batch {job.key.job_id}-1-0-0: 4 of its 4 rows are in. 1 rows of other batches are not read. 1 rows "
        "are there more than once. Tasks of the job that still run read them by themselves. If they have "
        "ended, clear task labels.reconcile with downstream of DAG tickets, run "
        f"{job.run_id}, not submit."
    ]
    again = printed_json(command, *words)
    assert (again["state"], again["changed"], again["rows"]["taken"]) == ("ended", False, 4)
    assert job.until(Until.SETTLED).counts["answered"] == 4
    status, _, err = command(*words)
    assert status == 6 and "has been read" in err


def test_rows_that_would_be_paid_again_are_counted_and_asked_about(
    job: Bench, command: Command, tmp_path: Path
) -> None:
    part = output(job, tmp_path)
    keep_lines(download(job, job.batches()[0], tmp_path, then=CUT)[0], slice(0, 3))
    words = ("hand-in", job.key.job_id, "1-0-0", "--output", str(part), *WHO)
    status, out, err = command(*words)
    assert (status, out) == (6, "") and "1 rows of batch" in err and "--yes-pay-again" in err
    part.write_bytes(part.read_bytes() + b'{"custom_id"')
    status, _, err = command(*words, "--yes-pay-again")
    assert status == 6 and "4 lines, and line 4 cannot be read as results of openai" in err
    facts = printed_json(command, *words, "--yes-pay-again", "--as-is")
    assert facts["rows"] == {
        "taken": 3, "missing": 1, "paid_again": 1, "foreign": 0, "repeated": 0, "unreadable": 1
    }  # fmt: skip
    assert (facts["fetched"], facts["not_fetched"], facts["changed"]) == ([], {}, True)


def test_files_are_needed_and_must_be_there(job: Bench, command: Command, tmp_path: Path) -> None:
    for words, told in (((), "--output and --errors"), (("--errors", str(tmp_path / "no")), "is no file")):
        with pytest.raises(SystemExit) as ended:
            command("hand-in", job.key.job_id, "1-0-0", *words, *WHO)
        assert ended.value.code == 2, told
    empty = tmp_path / "empty"
    empty.touch()
    status, _, err = command("hand-in", job.key.job_id, "1-0-0", "--output", str(empty), *WHO)
    assert status == 6 and "0 lines, and none is a row of batch" in err
    assert command("hand-in", job.key.job_id, "1-0-7", "--output", str(empty), *WHO)[0] == 4


def test_a_halted_job_is_resumed_first(bench: Callable[..., Bench], command: Command, tmp_path: Path) -> None:
    job = bench(texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    job.until(Until.ENDED, submitting=True)
    (file,) = download(job, job.batches()[0], tmp_path, then=FORGOTTEN)
    assert job.until(Until.SETTLED).state is JobState.HALTED
    for words in (("resume",), ("show",)):
        said = command(words[0], job.key.job_id, *(WHO if words[0] == "resume" else ()))
        assert "batch-llm hand-in" in said[1] + said[2]
    words = ("hand-in", job.key.job_id, "1-0-0", "--output", str(file.local), *WHO)
    assert printed_json(command, *words)["next"].startswith(f"Now batch-llm resume {job.key.job_id[:12]}")
    assert command("resume", job.key.job_id, *WHO)[0] == 0
    assert job.until(Until.SETTLED).counts["answered"] == 4 and job.creates() == 1


def test_a_job_of_one_task_has_only_that_to_clear(job: Bench, command: Command, tmp_path: Path) -> None:
    assert job.ledger.mark_seen(job.job(), {ONE_TASK: True, "owner": "label"}) is not None
    words = ("hand-in", job.key.job_id, "1-0-0", "--output", str(output(job, tmp_path)), *WHO)
    told = printed_json(command, *words)["next"]
    assert told.endswith(f"clear task label of DAG tickets, run {job.run_id}.")
