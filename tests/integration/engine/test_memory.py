"""Nothing in memory grows with the job."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.stage import stage
from tests.job_bench import Bench, drafts_of

_BATCH = 1_500


def rows(number: int) -> Iterator[Draft]:
    for n in range(number):
        (draft,) = drafts_of({f"ticket-{n:08d}": f"ticket number {n}"})
        draft.line = n + 1
        yield draft


def peak_of_staging(job: Bench) -> int:
    """Bytes of Python's own memory at the most, while a job is staged."""

    async def measured(engine: object) -> int:
        tools, order = job.tools(), job.order()
        from airflow_batch_llm.core.opening import open_job

        opened = await open_job(tools, order)
        tracemalloc.start()
        try:
            stage(tools, order, opened)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak: int = job.call(measured)
    return peak


def test_staging_needs_no_more_memory_for_eight_times_the_rows(bench: Callable[..., Bench]) -> None:
    few, many = 3_000, 24_000
    small = bench(drafts=lambda: rows(few), options={"max_requests": _BATCH})
    large = bench(drafts=lambda: rows(many), options={"max_requests": _BATCH})
    peaks = [peak_of_staging(small), peak_of_staging(large)]
    assert small.job().counts["rows"] == few and large.job().counts["rows"] == many
    assert len(large.batches()) == many // _BATCH
    assert peaks[1] < peaks[0] + 2_000_000, peaks
    # A clear also compares the rows with those of before.
    again = [peak_of_staging(small.clear()), peak_of_staging(large.clear())]
    assert again[1] < again[0] + 2_000_000, again


def fits(output: Any, row: dict[str, Any]) -> None:
    """Look at the row, so that rows with other columns do not share an answer."""


def test_rows_without_a_request_of_their_own_need_no_more_memory_for_more_of_them(
    bench: Callable[..., Bench],
) -> None:
    """One answer of an earlier job is that of every row: checked for each, or shared by all."""

    def alike(number: int) -> Iterator[Draft]:
        for draft in rows(number):
            draft.body = {"messages": [{"role": "user", "content": "always the same"}]}
            draft.carry = {"line": draft.line}
            yield draft

    few, many = 5_500, 11_000
    for judge in (Judge(), Judge(validate=fits)):
        first = bench(drafts=lambda: alike(1), reuse=Reuse("task"), judge=judge, task_id=judge.fingerprint)
        first.settle()
        small = replace(first, run_id="small", drafts=lambda: alike(few))
        large = replace(first, run_id="large", drafts=lambda: alike(many))
        staging = [peak_of_staging(small), peak_of_staging(large)]
        assert staging[1] < staging[0] + 2_000_000, staging
        assert large.job().counts == {
            "rows": many, "reused": many if judge.validate else 1, "batches": 0,
            **({} if judge.validate else {"duplicates": many - 1}),
        }  # fmt: skip
        settling = [peak_of_settling(small), peak_of_settling(large)]
        assert settling[1] < settling[0] + 2_000_000, settling
        assert large.job().counts["answered"] == many


def peak_of_settling(job: Bench) -> int:
    """Bytes of Python's own memory at the most, while a job is settled."""
    tracemalloc.start()
    try:
        job.settle()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
