"""Workers that die right after the provider accepted a batch, before they know that it did.

The server closes the connection in place of its reply and then never answers the first look for the batch:
so the task hangs between the two, with a batch that is paid for and that the ledger has no id of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil

from example_dags.demo.batch_server import BatchServer
from example_dags.demo.facts import rows
from example_dags.demo.rest import wait_for
from tests.e2e.runs import PATIENCE, SUBMIT, Jobs, has_table
from tests.e2e.together import at_once

LOST_REPLY = {
    "calls": [
        {"on": "create", "fault": "lost_reply", "times": 1},
        {"on": "list", "fault": "timeout", "times": 1},
    ]
}


@contextmanager
def doubtful_server(jobs: Jobs, conn_id: str) -> Iterator[Jobs]:
    """Start a server that loses the reply to one create call, and give what starts runs on it."""
    with BatchServer(jobs.folder / conn_id) as server:
        server.put_scenario(LOST_REPLY)
        jobs.stack.client.put_connection(conn_id, server.connection_fields())
        yield replace(jobs, server=server, conn_id=conn_id)


def accepted(server: BatchServer) -> list[int]:
    """Return the status of every reply to a create call, 0 for none."""
    found = rows(server.database, "SELECT status FROM request WHERE method='POST' AND path='/v1/batches'")
    return [int(status) for (status,) in found]


def dies_once_accepted(jobs: Jobs, kill: Callable[[psutil.Process], None]) -> None:
    """Start a run, ``kill`` its task's process where the reply was lost, and see that one batch is paid."""
    # A ledger younger than the run would have the provider asked for batches before anything is sent.
    ledger = jobs.places.ledger
    wait_for(lambda: has_table(ledger, "batch_llm_job") or None, "the ledger", PATIENCE)
    run = jobs.start("rows_kept", ["North", "South"])
    run.has(lambda: accepted(jobs.server), "a create call")
    assert accepted(jobs.server) == [0]
    task = run.task(SUBMIT)
    assert task is not None and task.state == "running" and task.try_number == 1
    kill(psutil.Process(task.pid))

    assert run.ends() == "success"
    assert run.tries(SUBMIT) > 1
    assert accepted(jobs.server) == [0], "one create call was ever made"
    assert len(run.batches()) == 1
    assert sorted(run.executed().values()) == [1, 1]
    assert run.landed() == run.ids(0, 1)


@at_once
def test_a_task_killed_after_the_provider_accepted_is_tried_again_and_finds_its_batch(jobs: Jobs) -> None:
    with doubtful_server(jobs, "llm_lost_task") as its:
        dies_once_accepted(its, lambda task: task.kill())


@at_once
def test_a_worker_that_is_gone_with_its_task_pays_once_all_the_same(jobs: Jobs) -> None:
    def kill_worker_and_task(task: psutil.Process) -> None:
        worker = task.parent()
        assert worker is not None and worker.pid in jobs.stack.components["scheduler"].members()
        assert worker.pid != jobs.stack.components["scheduler"].pid
        worker.kill()  # first the one that would report the other's death
        task.kill()

    with doubtful_server(jobs, "llm_lost_worker") as its:
        dies_once_accepted(its, kill_worker_and_task)
