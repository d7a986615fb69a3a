"""Nothing in memory grows with the job."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

from airflow_batch_llm.core.drafts import Draft
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
