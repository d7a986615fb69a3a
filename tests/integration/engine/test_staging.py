"""The source is read once, one plan is pinned, and nothing of any other reading gets into the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import CustomIdError, TakenOver, WorkspaceError
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.engine.processes import Interrupted, looks_for
from tests.job_bench import Bench, drafts_of

FIRST = {f"t-{n}": f"first reading of {n}" for n in range(7)}
#: The same rows in another order and with other texts, as a source without ORDER BY may return them.
SECOND = {f"t-{n}": f"second reading of {n}" for n in reversed(range(7))}


def prompts(bench: Bench) -> list[str]:
    """What was pinned: the texts of all planned requests."""
    tools = bench.tools()
    found = []
    for batch in bench.batches():
        with tools.workspace.open(f"{tools.root}/{batch.path}") as file:
            found += [line.decode() for line in file]
    return found


@pytest.mark.parametrize("tries", [2, 4])
def test_tries_at_once_pin_one_plan_whole(
    tries: int, bench: Callable[..., Bench], any_ledger: SqlLedger
) -> None:
    together = threading.Barrier(tries, timeout=60)
    base = bench(ledger=any_ledger, options={"max_requests": 3})

    def one_try(texts: dict[str, str]) -> Bench:
        def read() -> Iterator[Draft]:
            drafts = drafts_of(texts)
            yield from drafts[:4]
            together.wait()  # all tries are in the middle of their reading
            yield from drafts[4:]

        return replace(base, texts=texts, drafts=read)

    found = [one_try([FIRST, SECOND][n % 2]) for n in range(tries)]
    threads = [
        threading.Thread(target=b.until, args=[Until.ENDED], kwargs={"submitting": True}) for b in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job = found[0].job()
    assert job.revision == 1 and base.actions().count("plan_pinned") == 1
    pinned = prompts(base)
    assert len(pinned) == 7 and len(base.batches()) == 3
    assert len({("first" in line) for line in pinned}) == 1, "a plan holds one reading and no other"
    assert base.plan_folders() == {f"plan-{job.plan_id}"}, "the losers removed what they wrote"
    done = found[0].run()
    assert done.counts["answered"] == 7 and base.creates() == 3
    found[0].assert_accounted()


@pytest.mark.parametrize("point", ["stage.rows", "stage.before_describe", "stage.before_pin"])
def test_a_try_that_reads_otherwise_after_a_kill_is_the_only_one(
    point: str, bench: Callable[..., Bench]
) -> None:
    killed = bench(texts=FIRST, options={"max_requests": 3}, fault=die_at(point))
    assert was_killed(killed.run)
    again = killed.retry(texts=SECOND, fault=lambda point: None)
    again.run()
    assert again.reads == 1
    assert len(prompts(again)) == 7 and all("second" in line for line in prompts(again))
    assert again.plan_folders() == {f"plan-{again.job().plan_id}"}
    again.assert_accounted()
    assert again.creates() == 3


def test_once_pinned_the_source_is_never_read_again(bench: Callable[..., Bench]) -> None:
    killed = bench(texts=FIRST, options={"max_requests": 3}, fault=die_at("stage.after_pin"))
    assert was_killed(killed.run)
    again = killed.retry(texts=SECOND, fault=lambda point: None)
    again.run()
    assert again.reads == 0
    assert len(prompts(again)) == 7 and all("first" in line for line in prompts(again))
    again.assert_accounted()


def test_a_reading_that_breaks_off_leaves_nothing(bench: Callable[..., Bench]) -> None:
    def broken() -> Iterator[Draft]:
        yield from drafts_of(FIRST)
        raise ConnectionError("the database went away")

    b = bench(texts=FIRST, drafts=broken)
    with pytest.raises(ConnectionError):
        b.step(Until.ENDED, submitting=True)
    assert b.job().state is JobState.STAGING and b.plan_folders() == set()
    done = b.retry(drafts=None).run()
    assert done.counts["answered"] == 7 and done.revision == 1


def test_an_id_that_repeats_is_refused_even_where_the_source_numbers_no_lines(
    bench: Callable[..., Bench],
) -> None:
    def unnumbered() -> Iterator[Draft]:
        for draft in [*drafts_of(FIRST), *drafts_of({"t-3": "once more"})]:
            draft.line = 0
            yield draft

    b = bench(texts=FIRST, drafts=unnumbered)
    with pytest.raises(CustomIdError, match="repeats"):
        b.step(Until.ENDED, submitting=True)
    assert b.creates() == 0


def test_a_try_of_before_a_clear_cannot_take_the_job_back(bench: Callable[..., Bench]) -> None:
    old = bench(texts=FIRST)
    old.run()
    new = old.clear(texts=SECOND)
    new.run()
    with pytest.raises(TakenOver):
        old.step(Until.ENDED, submitting=True)
    assert old.job().revision == 2
    assert new.run().counts["answered"] == 7 and new.creates() == 2
    # A DAG with fewer retries than before: the mark of a clear may well be lower.
    lower = replace(new, mark=1, texts=FIRST)
    assert lower.run().revision == 3
    assert lower.creates() == 2, "the first texts have their answers still"
    assert len(lower.answers()) == 7


def test_a_try_of_before_a_clear_cannot_stage_for_it(bench: Callable[..., Bench]) -> None:
    """The old try is about to stage when the task is cleared; the clear's own reading is what counts."""
    old = bench(texts=FIRST)
    new = old.clear(texts=SECOND)

    def clear_in_between(point: str) -> None:
        if point == "stage.before_pin":
            thread = threading.Thread(target=new.until, args=[Until.ENDED], kwargs={"submitting": True})
            thread.start()
            thread.join()

    replace(old, fault=clear_in_between).step(Until.ENDED, submitting=True)
    assert new.job().revision == 2 and new.creates() == 1
    assert all("second" in line for line in prompts(new))
    new.run()
    new.assert_accounted()


def test_a_try_of_before_a_clear_does_not_read_the_source_for_it(bench: Callable[..., Bench]) -> None:
    """Its own plan is asked otherwise (model, schema, rerun) than the clear that has begun."""
    old = bench(texts=FIRST)

    def cannot_read() -> Iterator[Draft]:
        raise ConnectionError

    def clear() -> None:
        with pytest.raises(ConnectionError):
            old.clear(drafts=cannot_read).step(Until.ENDED, submitting=True)

    meddled = replace(old, ledger=Interrupted(old.ledger, after=looks_for("submitting"), act=clear))
    with pytest.raises(TakenOver):
        meddled.step(Until.ENDED, submitting=True)
    assert meddled.reads == 0 and old.job().state is JobState.STAGING and old.job().revision == 2


def test_a_clear_is_not_overlooked_while_somebody_else_changes_the_job(bench: Callable[..., Bench]) -> None:
    old = bench(texts=FIRST)
    old.run()

    class Busy:
        """A ledger in which the job changes just before the clear is written."""

        def __init__(self) -> None:
            self.left = 2

        def __getattr__(self, name: str) -> Any:
            return getattr(old.ledger, name)

        def begin_revision(self, job: Any, **facts: Any) -> Any:
            if self.left:
                self.left -= 1
                old.ledger.mark_seen(old.job(), {"redrive:somebody": self.left})
            return old.ledger.begin_revision(job, **facts)

    done = old.clear(ledger=Busy(), texts=SECOND).run()
    assert done.revision == 2 and old.creates() == 2


def test_rows_that_are_not_those_that_were_pinned_are_noticed(bench: Callable[..., Bench]) -> None:
    b = bench(texts=FIRST)
    b.until(Until.RECONCILED, submitting=True)
    rows = b.root / f"plan-{b.job().plan_id}" / "rows.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join([*lines[:-1], lines[0]]))
    with pytest.raises(WorkspaceError, match=r"rows\.jsonl"):
        b.until(Until.SETTLED)
    assert not (b.root / "results").exists()
