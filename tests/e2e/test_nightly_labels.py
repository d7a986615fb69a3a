"""The main job on a real Airflow: scheduler, dag-processor, triggerer, api-server."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from example_dags.demo.batch_server import BatchServer
from example_dags.demo.facts import Night, Places, collect, rows
from example_dags.demo.report import checks
from example_dags.demo.rest import wait_for
from example_dags.demo.stack import AirflowStack

DAG_ID = "nightly_ticket_labels"
GROUP = "label_tickets"
TASKS = [f"{GROUP}.{task}" for task in ("submit", "reconcile", "retry", "dead_letter")]
Interval = tuple[datetime, datetime]


@pytest.fixture(autouse=True)
def unpaused(stack: AirflowStack) -> None:
    for dag_id in (DAG_ID, "redrive_dead_letters"):
        stack.client.wait_dag(dag_id)
        stack.client.unpause(dag_id)


@pytest.fixture
def scenario(batch_server: BatchServer) -> Iterator[Any]:
    yield batch_server.put_scenario
    batch_server.put_scenario({})
    release(batch_server)


def release(server: BatchServer) -> None:
    """Let every batch that is held go on."""
    admin(server, "POST", "release")


def admin(server: BatchServer, method: str, path: str, **params: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.key}"}
    url = f"{server.url}/admin/{path}"
    return httpx.request(method, url, headers=headers, params=params).raise_for_status()


def sent_after_answer(server: BatchServer) -> int:
    summary: dict[str, int] = admin(server, "GET", "charges", summary="1").json()
    return summary["sent_after_answer"]


def tickets(places: Places, interval: Interval) -> list[str]:
    found = rows(
        places.warehouse,
        "SELECT id FROM tickets WHERE updated_at >= ? AND updated_at < ? ORDER BY id",
        tuple(moment.isoformat() for moment in interval),
    )
    return [row[0] for row in found]


def assert_accounted(places: Places, run_id: str, interval: Interval) -> None:
    """Results and dead letters, counted by SQL and from the files, are the tickets; no id twice."""
    facts = collect(places, Night(DAG_ID, run_id, *interval))
    for check in checks(facts):
        assert check.holds, str(check)
    job = rows(places.ledger, "SELECT job_id FROM batch_llm_job WHERE run_id = ?", (run_id,))
    assert len(job) == 1
    dead = rows(
        places.ledger,
        "SELECT custom_id FROM batch_llm_dead_letter WHERE job_id = ? AND state = 'open'",
        job[0],
    )
    landed = rows(places.warehouse, "SELECT id FROM ticket_labels WHERE _run_id = ?", (run_id,))
    together = sorted([row[0] for row in dead] + [row[0] for row in landed])
    assert together == tickets(places, interval)


def only_run(stack: AirflowStack, run_type: str) -> str:
    return str(
        wait_for(
            lambda: next(iter(stack.client.runs(DAG_ID, run_type=run_type)), None), f"a {run_type} run", 60
        )["dag_run_id"]
    )


def test_the_scheduled_run_finds_the_rows_of_the_last_night(
    stack: AirflowStack, places: Places, nights: list[Interval], batch_server: BatchServer
) -> None:
    run_id = only_run(stack, "scheduled")
    assert stack.client.wait_run(DAG_ID, run_id) == "success"
    assert stack.client.task_states(DAG_ID, run_id) == dict.fromkeys(TASKS, "success")
    run = stack.client.run(DAG_ID, run_id)
    interval = tuple(
        datetime.fromisoformat(run[name].replace("Z", "+00:00")).astimezone(UTC)
        for name in ("data_interval_start", "data_interval_end")
    )
    assert interval == nights[-1]
    assert len(tickets(places, nights[-1])) > 50
    assert_accounted(places, run_id, nights[-1])
    assert sent_after_answer(batch_server) == 0


def test_a_backfill_of_three_nights_labels_each_nights_tickets(
    stack: AirflowStack, places: Places, nights: list[Interval], batch_server: BatchServer
) -> None:
    scheduled = only_run(stack, "scheduled")
    stack.client.wait_run(DAG_ID, scheduled)
    before = len(batch_server.batches())
    backfill = stack.client.create_backfill(
        DAG_ID, nights[0][0], nights[-1][0], max_active_runs=2, reprocess="completed"
    )
    stack.client.wait_backfill(backfill, timeout=300)
    runs = [
        run
        for run in stack.client.runs(DAG_ID)
        if run["run_type"] == "backfill" or run["dag_run_id"] == scheduled
    ]
    assert len(runs) == 3 and {run["state"] for run in runs} == {"success"}
    by_start = {
        datetime.fromisoformat(run["data_interval_start"].replace("Z", "+00:00")): run for run in runs
    }
    for night in nights:
        assert_accounted(places, by_start[night[0]]["dag_run_id"], night)
    # The night that was done already was run again, and nothing of it was sent.
    assert len(batch_server.batches()) == before + 2
    assert sent_after_answer(batch_server) == 0


def test_a_waiting_task_is_deferred_and_holds_no_process(
    stack: AirflowStack, places: Places, nights: list[Interval], batch_server: BatchServer, scenario: Any
) -> None:
    scenario({"pace": {"seconds": 600}})
    # Another interval of the same tickets: a run of its own, a job of its own.
    interval = (nights[0][0] + timedelta(minutes=1), nights[1][1])
    run_id = stack.client.trigger_run(DAG_ID, interval=interval, run_id="waits__1")
    waiting = stack.client.wait_task(DAG_ID, run_id, TASKS[0], ["deferred"])
    scheduler = stack.components["scheduler"]
    wait_for(lambda: waiting["pid"] not in scheduler.members() or None, "the task process to end", 20)
    busy = [pid for pid in scheduler.members() if run_id in " ".join(psutil.Process(pid).cmdline())]
    assert busy == []
    assert stack.client.wait_task(DAG_ID, run_id, TASKS[0], ["deferred"])["state"] == "deferred"
    release(batch_server)
    assert stack.client.wait_run(DAG_ID, run_id) == "success"
    for task in TASKS:
        for key, value in stack.client.xcoms(DAG_ID, run_id, task).items():
            assert len(json.dumps(value)) < 4096, (task, key)


def test_a_clear_of_the_whole_group_sends_only_what_changed(
    stack: AirflowStack, places: Places, nights: list[Interval], batch_server: BatchServer
) -> None:
    interval = (nights[0][0] + timedelta(minutes=2), nights[1][0])
    run_id = stack.client.trigger_run(DAG_ID, interval=interval, run_id="cleared__1")
    assert stack.client.wait_run(DAG_ID, run_id) == "success"
    sent = len(batch_server.batches())

    stack.client.clear(DAG_ID, run_id)
    assert stack.client.wait_run(DAG_ID, run_id) == "success"
    assert len(batch_server.batches()) == sent, "an unchanged night was sent again"

    changed = tickets(places, interval)[3]
    _append(places.warehouse, changed, " Please answer by phone.")
    stack.client.clear(DAG_ID, run_id)
    assert stack.client.wait_run(DAG_ID, run_id) == "success"
    newest, *_ = batch_server.batches()
    assert len(batch_server.batches()) == sent + 1
    assert newest["request_counts"]["total"] == 1
    assert sent_after_answer(batch_server) == 0
    landed = rows(
        places.warehouse,
        "SELECT id FROM ticket_labels WHERE _run_id = ? AND _revision = 3",
        (run_id,),
    )
    assert changed in [row[0] for row in landed]


def test_dead_letters_are_re_driven_and_nothing_answered_is_sent_again(
    stack: AirflowStack, places: Places, nights: list[Interval], batch_server: BatchServer, scenario: Any
) -> None:
    interval = (nights[1][0] + timedelta(minutes=3), nights[1][1])
    wanted = tickets(places, interval)
    # Other tests label the same tickets; this one starts from an empty table.
    with sqlite3.connect(places.warehouse) as db:
        db.execute("DROP TABLE IF EXISTS ticket_labels")
    scenario(
        {
            "rows": [
                {
                    "match": {"fraction": 0.1, "by": "prompt", "salt": "a"},
                    "fault": "server_error",
                    "times": 1,
                },
                {"match": {"fraction": 0.05, "by": "prompt", "salt": "b"}, "fault": "content_filter"},
            ]
        }
    )
    run_id = stack.client.trigger_run(DAG_ID, interval=interval, run_id="redriven__1")
    assert stack.client.wait_run(DAG_ID, run_id) == "success"
    assert_accounted(places, run_id, interval)
    first = letters(places, run_id)
    assert first and set(first.values()) == {"open"}

    scenario({})
    redrive = stack.client.trigger_run(
        "redrive_dead_letters",
        conf={"dag_id": DAG_ID, "run_id": run_id, "task_id": TASKS[0], "reason": "the filter was relaxed"},
    )
    assert stack.client.wait_run("redrive_dead_letters", redrive) == "success"
    assert letters(places, run_id) == dict.fromkeys(first, "resolved")
    assert_accounted(places, run_id, interval)
    landed = rows(places.warehouse, "SELECT id FROM ticket_labels WHERE _run_id = ?", (run_id,))
    assert sorted(row[0] for row in landed) == wanted
    assert sent_after_answer(batch_server) == 0


def letters(places: Places, run_id: str) -> dict[str, str]:
    found = rows(
        places.ledger, "SELECT custom_id, state FROM batch_llm_dead_letter WHERE run_id = ?", (run_id,)
    )
    return dict(found)


def _append(warehouse: Path, ticket: str, text: str) -> None:
    with sqlite3.connect(warehouse) as db:
        db.execute("UPDATE tickets SET body = body || ? WHERE id = ?", (text, ticket))
