"""Rows of a megabyte each: staging holds a few of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.spec import Until
from tests.job_bench import Bench

LONG = 1_000_000


def test_long_rows_are_staged_a_few_at_a_time(bench: Callable[..., Bench]) -> None:
    read, waiting = 0, []

    def drafts() -> Iterator[Draft]:
        nonlocal read
        for line in range(1, 41):
            read += 1
            body = {"messages": [{"role": "user", "content": f"{line} " + "x" * LONG}]}
            yield Draft(line, f"t-{line}", body, row={"id": line}, key={"id": line})

    def look(point: str) -> None:
        if point == "stage.rows":
            waiting.append(read - sum(waiting))

    job = bench(drafts=drafts, fault=look)
    job.step(Until.ENDED, submitting=True)

    assert sum(waiting) == job.job().counts["rows"] == 40
    assert max(waiting) < 15


def test_short_rows_are_staged_by_the_thousand(bench: Callable[..., Bench]) -> None:
    points: list[str] = []
    job = bench(texts={f"t-{n}": "short" for n in range(1500)}, fault=points.append)

    job.step(Until.ENDED, submitting=True)

    assert points.count("stage.rows") == 2
    assert job.job().counts["rows"] == 1500
