"""A process killed with SIGKILL at any point of a job with reuse loses no row and buys no answer twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Settings
from tests.integration.engine.kills import die_at, die_at_new_points, fault_points, was_killed
from tests.integration.engine.test_kills import ELSEWHERE, Sink
from tests.job_bench import Bench

#: What an earlier job has bought, and what is new; each also as a row that asks the same.
BOUGHT = {f"t-{n}": f"ticket number {n}." for n in range(3)}
TEXTS = {
    **BOUGHT,
    **{f"same-{n}": f"ticket number {n}." for n in range(5)},
    **{f"t-{n}": f"ticket number {n}." for n in range(3, 7)},
}
SHORT = Settings(create_timeout=1.0, lease_margin=0.5, look_apart=0.1, queue_wait=0.1)
#: Points that no job without a clear or a fault of the provider meets.
NEVER_HERE = {point for point, where in ELSEWHERE.items() if where != "test_reuse_kills.py"}


def came_of(job: Bench) -> dict[str, tuple[str, str]]:
    return {a.custom_id: (a.origin, a.output) for a in job.answers()}


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Bench:
    """The second night: three of seven requests are bought, one fails once, one for good."""
    bench(texts=BOUGHT, reuse=Reuse("task")).settle()
    made = bench(texts=TEXTS, reuse=Reuse("task"), options={"max_requests": 3}, settings=SHORT, sink=Sink())
    faults = [
        {"match": {"contains": "number 4."}, "fault": "server_error", "times": 1},
        {"match": {"contains": "number 5."}, "fault": "bad_request", "code": "invalid_value"},
    ]
    made.server.set_scenario({"rows": faults})
    return made


#: Where what is reused or shared is decided, written or counted.
OURS = [point for point in fault_points() if point.split(".")[0] in ("stage", "reuse", "settle", "publish")]


def assert_as_if_nobody_died(job: Bench) -> None:
    done = job.job()
    assert done.state is JobState.SETTLED and done.revision == 1
    assert done.counts["answered"] == done.counts["landed"] == 11
    assert Counter(origin for origin, _ in came_of(job).values()) == {
        "reused": 3, "paid": 3, "duplicate": 5
    }  # fmt: skip
    assert job.open_letters() == {"t-5": "invalid_value"}
    assert all(job.texts[row] in output for row, (_, output) in came_of(job).items())
    job.assert_accounted()
    paid = Counter(c["body_sha256"] for c in job.server.charges() if c["status"] == 200)
    assert set(paid.values()) == {1} and len(paid) == 6


@pytest.mark.parametrize("point", OURS)
def test_nothing_is_lost_or_bought_twice_after_a_kill_at(point: str, job: Bench) -> None:
    assert was_killed(replace(job, fault=die_at(point)).settle)
    later = job.retry()
    later.settle()
    assert_as_if_nobody_died(later)


def test_nothing_is_lost_where_each_process_dies_at_the_next_point(job: Bench, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    fault = die_at_new_points(deaths)
    died = 0
    while was_killed(replace(job, first_try=not died, fault=fault).settle):
        died += 1
    assert died == len(set(fault_points()) - NEVER_HERE)
    assert_as_if_nobody_died(job)
    # Another night finds all of it, but for what had failed.
    again = replace(job, run_id=f"{job.run_id}-next")
    again.server.set_scenario({})
    again.settle()
    assert len([c for c in again.server.charges() if c["status"] == 200]) == 7
