"""What tells a retry of the submitting task from a clear, and a clear from a run that was made anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import Job, JobKey
from airflow_batch_llm.operators.tries import Try, mark_of, note_try, tries_with
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite


@dataclass
class Task:
    """A submitting task: its tries come to the ledger as the operator brings them there."""

    ledger: SqlLedger
    key: JobKey
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def job(self) -> Job | None:
        return self.ledger.get_job(self.key.job_id)

    def start(self, number: int, max_tries: int, id_: str) -> bool:
        """Start a try; says whether the source is read."""
        this, job = Try(number, max_tries, id_), self.job
        mark = mark_of(job, this)
        facts: dict[str, Any] = {
            "conn_id": "llm", "provider": "openai", "endpoint": "/v1", "model": "m", "deadline_at": None,
        }  # fmt: skip
        seen = {"submit": mark, "tries": tries_with(job, this)}
        if job is None:
            self.ledger.create_job(self.key, seen=seen, **facts)
            return True
        if job.seen["submit"] == mark:
            note_try(self.ledger, job, this)
            return False
        earlier = [*job.seen.get("earlier_submits", ()), job.seen["submit"]]
        assert mark not in earlier, "taken for an earlier clear"
        seen["earlier_submits"] = earlier
        self.ledger.begin_revision(job, seen=seen, fresh=False, **facts)
        return True

    def succeed(self, number: int) -> None:
        job = self.job
        assert job is not None
        self.ledger.mark_seen(job, {"submit_done": [job.seen["submit"], number]})


@pytest.fixture
def task(tmp_path: Path) -> Task:
    ledger = open_default_sqlite(tmp_path / "ledger.db")
    return Task(ledger, JobKey(ledger.namespace(), "d", "r", "t"))


def test_a_retry_goes_on_with_what_was_read(task: Task) -> None:
    assert task.start(1, 3, "a")
    assert not task.start(2, 3, "b")
    assert not task.start(2, 3, "b"), "the same try, after a defer"
    assert not task.start(3, 3, "c")


def test_a_clear_reads_the_source_again_once(task: Task) -> None:
    task.start(1, 3, "a")
    task.succeed(1)
    assert task.start(2, 4, "b")
    assert not task.start(3, 4, "c")


def test_a_clear_is_noticed_where_max_tries_stays_the_same(task: Task) -> None:
    task.start(1, 3, "a")
    task.succeed(1)
    assert task.start(2, 3, "b")
    task.succeed(2)
    assert task.start(3, 3, "c")
    assert not task.start(4, 3, "d")


def test_a_run_that_was_deleted_and_made_anew_reads_the_source_again_once(task: Task) -> None:
    task.start(1, 3, "a")
    task.start(2, 3, "b")
    task.succeed(2)
    assert task.start(1, 3, "x")
    assert not task.start(1, 3, "x")
    assert not task.start(2, 3, "y")
    assert not task.start(3, 3, "z")


def test_so_does_one_whose_first_try_never_came_to_an_end(task: Task) -> None:
    task.start(1, 3, "a")
    assert task.start(1, 3, "x")


def test_a_run_made_anew_can_be_cleared_and_made_anew_again(task: Task) -> None:
    task.start(1, 3, "a")
    task.succeed(1)
    assert task.start(2, 4, "b")
    task.succeed(2)
    assert task.start(1, 3, "x")
    assert not task.start(2, 3, "x2")
    task.succeed(2)
    assert task.start(3, 4, "y"), "the mark of a clear of the first run is not taken for it"
    task.succeed(3)
    assert task.start(4, 4, "z")
    task.succeed(4)
    assert task.start(1, 3, "k")
    assert task.start(2, 4, "l"), "cleared before it succeeded"


def test_a_process_of_the_deleted_run_that_still_runs_begins_nothing(task: Task) -> None:
    task.start(1, 3, "a")
    task.start(2, 3, "b")
    assert task.start(1, 3, "x")
    assert not task.start(2, 3, "b")
    assert not task.start(1, 3, "a")
    assert not task.start(2, 3, "x2")


def test_a_job_that_remembers_no_try_goes_on_as_it_was(task: Task) -> None:
    task.start(1, 3, "")
    assert not task.start(1, 3, "a")
    assert not task.start(2, 3, "")


def test_only_the_latest_tries_are_remembered(task: Task) -> None:
    task.start(1, 99, "a")
    for number in range(2, 90):
        assert not task.start(number, 99, f"try-{number}")
    assert task.job is not None and len(task.job.seen["tries"]) == 50
