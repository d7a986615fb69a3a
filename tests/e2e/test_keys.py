"""Keys that change while a job waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from example_dags.demo.batch_server import BatchServer
from example_dags.demo.facts import rows
from tests.e2e.runs import SUBMIT, TASKS, Jobs, Run
from tests.e2e.together import at_once

HELD = {"pace": {"seconds": 3600}}


def refused(server: BatchServer) -> bool:
    """Say whether the server has refused a key."""
    return bool(rows(server.database, "SELECT 1 FROM request WHERE status = 401"))


@contextmanager
def own_server(jobs: Jobs, conn_id: str) -> Iterator[Jobs]:
    """Start a server that holds its batches, and give what starts runs on it."""
    with BatchServer(jobs.folder / conn_id) as server:
        server.put_scenario(HELD)
        jobs.stack.client.put_connection(conn_id, server.connection_fields())
        yield replace(jobs, server=server, conn_id=conn_id)


def mend(jobs: Jobs) -> None:
    """Put the server's present key into the connection."""
    jobs.stack.client.put_connection(jobs.conn_id, jobs.server.connection_fields())


def assert_done_with_one_batch(run: Run) -> None:
    """Both rows landed from the one batch that was ever created, and nothing was cancelled."""
    assert run.landed() == run.ids(0, 1)
    assert len(run.batches()) == 1
    assert run.cancel_calls() == 0
    assert sorted(run.executed().values()) == [1, 1]


@at_once
def test_a_key_rotated_while_a_job_waits_fails_nothing(jobs: Jobs) -> None:
    with own_server(jobs, "llm_rotated") as its:
        run = its.start("rows_looked_at_slowly", ["North", "South"])
        run.waits()
        its.server.change_key()
        run.has(lambda: refused(its.server), "a look with the old key")
        mend(its)
        assert run.ends() == "success"
        assert [run.failures(task) for task in TASKS] == [0, 0, 0, 0]
        assert_done_with_one_batch(run)


@at_once
def test_a_key_revoked_while_two_jobs_wait_turns_one_red_and_the_other_goes_on_when_it_is_mended(
    jobs: Jobs,
) -> None:
    with own_server(jobs, "llm_revoked") as its:
        runs = [its.start("rows_cancelled", ["North", "South"]) for _ in range(2)]
        for run in runs:
            run.waits()
        its.server.change_key()
        runs[0].has(lambda: "failed" in [run.state() for run in runs], "a red run")
        mend(its)
        (red,) = [run for run in runs if run.state() == "failed"]
        (waiting,) = [run for run in runs if run is not red]
        assert red.failures(SUBMIT) == 1, "Airflow's retries are not used up on a wrong key"
        assert "BLLM-020" in red.log(SUBMIT, red.tries(SUBMIT))

        assert waiting.ends() == "success"
        assert [waiting.failures(task) for task in TASKS] == [0, 0, 0, 0]
        assert_done_with_one_batch(waiting)
        red.clear()
        assert red.ends() == "success"
        assert_done_with_one_batch(red)


@at_once
def test_with_a_wrong_key_the_first_job_is_red_and_the_second_waits_until_it_is_mended(jobs: Jobs) -> None:
    with own_server(jobs, "llm_wrong") as its:
        its.server.change_key()
        first = its.start("rows_kept", ["North", "South"])
        assert first.ends() == "failed"
        assert first.failures(SUBMIT) == 1
        assert "BLLM-020" in first.log(SUBMIT, first.tries(SUBMIT))

        second = its.start("rows_kept", ["East", "West"])
        second.reaches(SUBMIT, "deferred")
        assert second.batches() == []
        mend(its)
        assert second.ends() == "success"
        assert second.failures(SUBMIT) == 0
        assert_done_with_one_batch(second)
        first.clear()
        assert first.ends() == "success"
        assert_done_with_one_batch(first)
