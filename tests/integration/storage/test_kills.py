"""A process killed in the middle of a change leaves the row in the old state or in the new one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from sqlalchemy import URL

from airflow_batch_llm.core.model import BatchState, LetterState
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.storage.ledgers import actions, batch_in, letter, new_job, plan, running_job, some

_DIE_BEFORE_THE_EVENT = """
import os, signal, sys
from airflow_batch_llm.storage import ledger_batches, ledger_jobs, ledger_letters
from tests.integration.storage.ledgers import *
ledger = main_ledger()
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
"""

#: What the killed process does, and where it dies: after the UPDATE, before the rest of the transaction.
_DEATHS = {
    "enter_submitting": (
        "ledger_batches.append_event = die",
        "ledger.enter_submitting(ledger.get_batch(sys.argv[3]), revision=1, lease_seconds=60)",
    ),
    "pin_plan": (
        "ledger_jobs._insert_batches = die",
        "ledger.pin_plan(ledger.get_job(sys.argv[3]), plan(batches=3))",
    ),
    "pin_round": (
        "ledger_jobs._insert_batches = die",
        "ledger.pin_round(ledger.get_job(sys.argv[3]), plan('p2'), letters=['w'])",
    ),
    "insert_dead_letters": (
        "ledger_letters.append_event = die",
        "ledger.insert_dead_letters([letter(ledger.get_job(sys.argv[3]), 'w2')])",
    ),
}


def _killed(address: tuple[URL, str | None], what: str, argument: str) -> None:
    place, call = _DEATHS[what]
    program = f"{_DIE_BEFORE_THE_EVENT}{place}\n{call}\n"
    url = address[0].render_as_string(hide_password=False)
    done = subprocess.run([sys.executable, "-c", program, url, address[1] or "", argument], check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_kill_inside_of_a_transition_leaves_the_old_state(
    ledger: SqlLedger, address: tuple[URL, str | None]
) -> None:
    batch = batch_in(ledger, BatchState.UPLOADED)
    before = actions(ledger, batch.job_id)
    _killed(address, "enter_submitting", batch.batch_id)
    assert ledger.get_batch(batch.batch_id) == batch
    assert actions(ledger, batch.job_id) == before
    assert ledger.enter_submitting(batch, revision=1, lease_seconds=60) is not None


def test_a_kill_while_a_plan_is_pinned_leaves_no_plan_and_no_batch(
    ledger: SqlLedger, address: tuple[URL, str | None]
) -> None:
    job = new_job(ledger)
    _killed(address, "pin_plan", job.job_id)
    assert ledger.get_job(job.job_id) == job
    assert ledger.batches(job.job_id) == []
    assert actions(ledger, job.job_id) == ["job_created"]
    assert ledger.pin_plan(job, plan()) is not None


def test_a_kill_while_a_round_is_pinned_leaves_its_letters_open(
    ledger: SqlLedger, address: tuple[URL, str | None]
) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters([letter(job, "w")])
    _killed(address, "pin_round", job.job_id)
    assert ledger.get_job(job.job_id) == job
    assert [x.state for x in ledger.dead_letters(job.job_id)] == [LetterState.OPEN]
    assert len(ledger.batches(job.job_id)) == 1


def test_a_kill_while_letters_are_inserted_leaves_none_of_that_chunk(
    ledger: SqlLedger, address: tuple[URL, str | None]
) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters([letter(job, "w")])
    _killed(address, "insert_dead_letters", job.job_id)
    assert [x.wire_id for x in ledger.dead_letters(job.job_id)] == ["w"]


_FOREVER = """
import sys
from tests.integration.storage.ledgers import *
ledger = main_ledger()
batch = ledger.get_batch(sys.argv[3])
while True:
    batch = some(ledger.enter_submitting(batch, revision=1, lease_seconds=60))
    print("in", flush=True)
    batch = some(ledger.leave_submitting(batch, reason="r"))
    print("out", flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 5, 8])
def test_a_kill_at_any_moment_leaves_state_attempt_and_events_of_one_story(
    ledger: SqlLedger, address: tuple[URL, str | None], lines: int
) -> None:
    batch = batch_in(ledger, BatchState.UPLOADED)
    arguments = [address[0].render_as_string(hide_password=False), address[1] or "", batch.batch_id]
    with subprocess.Popen(
        [sys.executable, "-c", _FOREVER, *arguments], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(lines):
            assert child.stdout.readline()
        child.kill()
        child.communicate()
    left = some(ledger.get_batch(batch.batch_id))
    story = actions(ledger, batch.job_id)
    entered, came_out = story.count("submitting"), story.count("submitting_left")
    assert entered >= (lines + 1) // 2
    assert left.attempt == entered
    assert left.state is (BatchState.SUBMITTING if entered > came_out else BatchState.UPLOADED)
    assert entered - came_out in (0, 1)
