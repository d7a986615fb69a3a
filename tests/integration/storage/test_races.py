"""Many try the same change at once: exactly one wins, and the events tell the same story."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from sqlalchemy import URL, text, update

from airflow_batch_llm.core.model import BatchState, JobKey, JobState, LetterState, RemoteStatus
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.schema import job as job_table
from tests.integration.storage.ledgers import (
    FACTS,
    actions,
    batch_in,
    job_in,
    letter,
    new_job,
    plan,
    reconciled,
    remote,
    running_job,
    some,
)

T = TypeVar("T")
THREADS = 6


def race(run: Callable[[int], T]) -> list[T]:
    """Run the function in several threads at once and return what each returned."""
    start = threading.Barrier(THREADS)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def one(number: int) -> None:
        start.wait()
        try:
            results[number] = run(number)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return [results[n] for n in range(THREADS)]


S = BatchState
BATCH_RACES: dict[str, tuple[BatchState, Callable[[SqlLedger, Any, int], Any]]] = {
    "uploaded": (S.PLANNED, lambda ledger, b, n: ledger.mark_uploaded(b, f"file-{n}")),
    "submitting": (S.UPLOADED, lambda ledger, b, n: ledger.enter_submitting(b, revision=1, lease_seconds=60)),
    "looked": (S.SUBMITTING, lambda ledger, b, n: ledger.record_look(b)),
    "submitting_left": (S.SUBMITTING, lambda ledger, b, n: ledger.leave_submitting(b, reason="r")),
    "submitted": (S.SUBMITTING, lambda ledger, b, n: ledger.mark_submitted(b, remote(f"batch_{n}"))),
    "put_back": (S.SUBMITTED, lambda ledger, b, n: ledger.put_back(b, reason="r", not_before=None)),
    "ended": (S.SUBMITTED, lambda ledger, b, n: ledger.mark_ended(b, remote(status=RemoteStatus.DONE))),
    "reconciled": (S.ENDED, lambda ledger, b, n: ledger.mark_reconciled(b, reconciled(f"j{n}"))),
    "rejudged": (S.RECONCILED, lambda ledger, b, n: ledger.mark_reconciled(b, reconciled(f"k{n}"))),
    "lost": (S.SUBMITTED, lambda ledger, b, n: ledger.mark_lost(b, "404")),
    "cancel_asked": (S.SUBMITTED, lambda ledger, b, n: ledger.ask_cancel(b, actor=f"a{n}", reason="r")),
}

JOB_RACES: dict[str, tuple[JobState, Callable[[SqlLedger, Any, int], Any]]] = {
    "revision_begun": (
        JobState.SETTLED,
        lambda ledger, j, n: ledger.begin_revision(j, **FACTS, seen={"by": n}, fresh=False),
    ),
    "plan_pinned": (JobState.STAGING, lambda ledger, j, n: ledger.pin_plan(j, plan(f"p{n}", n + 1))),
    "round_pinned": (JobState.RUNNING, lambda ledger, j, n: ledger.pin_round(j, plan(f"p{n}", n + 1))),
    "seen_marked": (JobState.RUNNING, lambda ledger, j, n: ledger.mark_seen(j, {"by": n})),
    "halted": (JobState.RUNNING, lambda ledger, j, n: ledger.halt_job(j, f"c{n}", "r")),
    "resumed": (JobState.HALTED, lambda ledger, j, n: ledger.resume_job(j, actor=f"a{n}", reason="r")),
    "settled": (JobState.RUNNING, lambda ledger, j, n: ledger.settle_job(j, {"by": n})),
}


@pytest.mark.parametrize("action", list(BATCH_RACES))
def test_one_of_many_moves_the_batch(ledger: SqlLedger, action: str) -> None:
    state, move = BATCH_RACES[action]
    batch = batch_in(ledger, state, lease_seconds=-1)
    results = race(lambda n: move(ledger, batch, n))
    (winner,) = [result for result in results if result is not None]
    assert ledger.get_batch(batch.batch_id) == winner
    assert actions(ledger, batch.job_id).count(action) == 1


@pytest.mark.parametrize("action", list(JOB_RACES))
def test_one_of_many_moves_the_job(ledger: SqlLedger, action: str) -> None:
    state, move = JOB_RACES[action]
    job = job_in(ledger, state)
    before = actions(ledger, job.job_id).count(action)
    results = race(lambda n: move(ledger, job, n))
    (winner,) = [result for result in results if result is not None]
    assert ledger.get_job(job.job_id) == winner
    assert actions(ledger, job.job_id).count(action) == before + 1


def test_the_batches_are_those_of_the_plan_that_was_pinned(ledger: SqlLedger) -> None:
    job = new_job(ledger)
    race(lambda n: ledger.pin_plan(job, plan(f"p{n}", 20)))
    pinned = some(ledger.get_job(job.job_id))
    assert {b.plan_id for b in ledger.batches(job.job_id)} == {pinned.plan_id}
    assert len(ledger.batches(job.job_id)) == 20


def test_one_of_many_creates_the_job_and_all_are_given_it(ledger: SqlLedger) -> None:
    key = JobKey(ledger.namespace(), "d", "r", "t")
    results = race(lambda n: ledger.create_job(key, **FACTS, seen={"by": n}))
    assert sum(new for _, new in results) == 1
    assert len({job.seen["by"] for job, _ in results}) == 1
    assert actions(ledger, key.job_id) == ["job_created"]


def test_all_are_given_the_same_namespace(ledger: SqlLedger) -> None:
    assert len(set(race(lambda n: SqlLedger(ledger.engine).namespace()))) == 1


def test_a_duplicate_found_by_many_is_recorded_once(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, S.SUBMITTED)
    results = race(lambda n: ledger.record_duplicate(batch, remote("batch_2"), 2))
    assert len({r.batch_id for r in results}) == 1
    others = race(lambda n: ledger.record_duplicate(batch, remote(f"batch_{n + 3}"), 2))
    assert len({r.batch_id for r in others}) == THREADS
    assert actions(ledger, batch.job_id).count("duplicate") == 1 + THREADS


def test_letters_inserted_by_many_are_counted_once(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    wires = [f"w{n:04}" for n in range(200)]
    orders = [wires, wires[::-1]]
    counts = race(lambda n: ledger.insert_dead_letters(letter(job, w, attempts=n + 1) for w in orders[n % 2]))
    assert sum(counts) == len(wires)
    assert {len(x.attempts) for x in ledger.dead_letters(job.job_id)} == {THREADS}


def test_letters_moved_by_many_move_once(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    wires = [f"w{n:04}" for n in range(2000)]
    ledger.insert_dead_letters(letter(job, w) for w in wires)
    orders = [wires, wires[::-1]]
    moved = race(
        lambda n: ledger.move_dead_letters(
            job.job_id,
            orders[n % 2],
            to=LetterState.REDRIVING,
            expect=[LetterState.OPEN],
            actor=f"a{n}",
            reason="",
        )
    )
    assert sum(moved) == len(wires)


def test_letters_are_taken_by_one_of_two_rounds(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters(letter(job, w) for w in "abc")
    results = race(lambda n: ledger.pin_round(job, plan(f"p{n}"), letters=["abc"[n % 3], "b"]))
    assert sum(result is not None for result in results) == 1


def test_an_entry_into_submitting_waits_for_a_revision_that_is_just_beginning(ledger: SqlLedger) -> None:
    """Without the lock the entry would be judged by what the job was before, and slip in afterwards."""
    dialect = ledger.engine.dialect.name
    if dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    batch = batch_in(ledger, S.UPLOADED)
    results: list[object] = []
    thread = threading.Thread(
        target=lambda: results.append(ledger.enter_submitting(batch, revision=1, lease_seconds=60))
    )
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
        if dialect == "postgresql"
        else "SELECT CAST(variable_value AS INT) FROM information_schema.global_status "
        "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
    )
    with writing(ledger.engine) as connection:
        connection.execute(update(job_table).values(revision=2))
        thread.start()
        seen = 0
        while not seen and thread.is_alive():
            with reading(ledger.engine) as other:
                seen = other.execute(waiting).scalar_one()
        assert seen == 1
    thread.join()
    assert results == [None]
    assert some(ledger.get_batch(batch.batch_id)).state is S.UPLOADED


_ENTER_ALL = """
from tests.integration.storage.ledgers import main_ledger
import sys
ledger = main_ledger()
for batch in ledger.batches(sys.argv[3]):
    if ledger.enter_submitting(batch, revision=1, lease_seconds=60) is not None:
        print(batch.batch_id)
"""


def test_many_processes_share_the_batches_of_a_job_among_them(
    ledger: SqlLedger, address: tuple[URL, str | None]
) -> None:
    job = running_job(ledger, batches=40)
    for batch in ledger.batches(job.job_id):
        some(ledger.mark_uploaded(batch, "f"))
    arguments = [address[0].render_as_string(hide_password=False), address[1] or "", job.job_id]
    started = [
        subprocess.Popen([sys.executable, "-c", _ENTER_ALL, *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    won = [line for process in started for line in process.communicate()[0].split()]
    assert [process.returncode for process in started] == [0] * 3
    assert sorted(won) == sorted(batch.batch_id for batch in ledger.batches(job.job_id))
    assert {batch.attempt for batch in ledger.batches(job.job_id)} == {1}
    entered = Counter(e.batch_id for e in ledger.events(job.job_id) if e.action == "submitting")
    assert set(entered.values()) == {1}
