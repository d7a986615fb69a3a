"""A process killed with SIGKILL at any point of the engine loses no row and pays for none twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_batch_llm.core.drafts import Answer, LandingInfo
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.spec import Settings
from tests.integration.engine.kills import die_at, die_at_new_points, fault_points, was_killed
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(5)}
#: A short lease, so that what is in doubt is resolved soon.
SHORT = Settings(create_timeout=1.0, lease_margin=0.5, look_apart=0.1, queue_wait=0.1)

#: Met only where a job or batch is past its time, a connection is held, a batch was accepted twice, refused
#: before it was made or found without a mark, or one is judged again: killed at there.
ELSEWHERE = {
    "deadline.before_given_up": "test_on_deadline.py",
    "hold.after_made": "test_holds.py",
    "hold.probe_taken": "test_holds.py",
    "doubt.before_adopted": "test_unmarked_kills.py",
    "doubt.after_adopted": "test_unmarked_kills.py",
    "doubt.before_confirmed": "test_unmarked_kills.py",
    "doubt.after_confirmed": "test_unmarked_kills.py",
    "doubt.before_disowned": "test_unmarked_kills.py",
    "doubt.after_disowned": "test_unmarked_kills.py",
    "observe.before_cancel": "test_time_limits.py",
    "refused.before_outcomes": "test_refused_lines.py",
    "refused.before_closed": "test_refused_lines.py",
    "refused.after_closed": "test_refused_lines.py",
    "submit.after_duplicate": "test_zombies.py",
    "rejudge.before_reconciled": "test_judging_again.py",
    "reuse.looked_up": "test_reuse_kills.py",
    "reuse.source_read": "test_reuse_kills.py",
    "reuse.before_recorded": "test_reuse_kills.py",
}


class Sink:
    """Lands nowhere, but reads all answers."""

    each_round = False
    deletes_withdrawn = False

    def check(self) -> None: ...

    def land(self, answers: Iterable[Answer], info: LandingInfo) -> int:
        return len(list(answers))


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Bench:
    """Two batches of which one has a row that fails once and one that fails for good."""
    made = bench(texts=TEXTS, options={"max_requests": 3}, settings=SHORT, sink=Sink())
    faults = [
        {"match": {"contains": "number 1."}, "fault": "server_error", "times": 1},
        {"match": {"contains": "number 3."}, "fault": "bad_request", "code": "invalid_value"},
    ]
    made.server.set_scenario({"rows": faults})
    return made


@pytest.mark.parametrize("point", [point for point in fault_points() if point not in ELSEWHERE])
def test_nothing_is_lost_or_paid_twice_after_a_kill_at(point: str, job: Bench) -> None:
    assert was_killed(replace(job, fault=die_at(point)).run)
    later = job.retry()
    done = later.run()
    assert done.state is JobState.SETTLED and done.revision == 1
    assert done.counts["answered"] == 4 and done.counts["landed"] == 4
    assert later.open_letters() == {"t-3": "invalid_value"}
    later.assert_accounted()
    # Both batches of round 0 and the one of round 1 were created once: asking was enough.
    assert later.creates() == len(later.server.batches()) == 3
    assert Counter(c["status"] for c in later.server.charges()) == {200: 4, 500: 1, 400: 1}
    assert len(later.plan_folders()) == 2, "what the killed process had begun to write is gone"


def test_nothing_is_lost_where_each_process_dies_at_the_next_point(job: Bench, tmp_path: Path) -> None:
    """Dozens of processes, each killed a little later than the one before, see one job through."""
    deaths = tmp_path / "deaths"
    fault = die_at_new_points(deaths)
    died = 0
    while was_killed(replace(job, first_try=not died, fault=fault).run):
        died += 1
    assert died == len(deaths.read_text().split()) == len(fault_points()) - len(ELSEWHERE)
    job.assert_accounted()
    assert job.job().state is JobState.SETTLED
    assert job.creates() == len(job.server.batches()) == 3


def test_every_fault_point_of_the_engine_is_killed_at_somewhere() -> None:
    assert len(fault_points()) == len(set(fault_points()))
    assert set(ELSEWHERE) <= set(fault_points())
