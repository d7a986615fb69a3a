"""The stack itself: a real Airflow comes up, defers and goes away."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from example_dags.demo.rest import AirflowApiError, AirflowClient, wait_for
from example_dags.demo.stack import AirflowStack

DAG_ID = "probe_deferrable"
NIGHT = (datetime(2026, 1, 15, 2, tzinfo=UTC), datetime(2026, 1, 16, 2, tzinfo=UTC))


@pytest.fixture
def awaited(tmp_path: Path) -> Path:
    """A file that is not there yet; the probe's trigger fires when it is."""
    return tmp_path / "awaited"


def start_probe(stack: AirflowStack, awaited: Path, *, night: tuple[datetime, datetime] | None = None) -> str:
    stack.client.wait_dag(DAG_ID)
    stack.client.unpause(DAG_ID)
    return stack.client.trigger_run(
        DAG_ID, interval=night, conf={"path": str(awaited)}, run_id=f"test__{uuid.uuid4().hex}"
    )


def test_all_dag_files_import(stack: AirflowStack) -> None:
    for dag_id in (DAG_ID, "nightly_ticket_labels", "redrive_dead_letters"):
        stack.client.wait_dag(dag_id)
    assert stack.client.import_errors() == {}


def test_a_wrong_password_gets_no_token(stack: AirflowStack) -> None:
    with pytest.raises(AirflowApiError, match="401"):
        AirflowClient(stack.url, "admin", "guess").token()


def test_a_deferred_task_holds_no_process_and_ends_with_the_given_interval(
    stack: AirflowStack, awaited: Path
) -> None:
    run_id = start_probe(stack, awaited, night=NIGHT)
    waiting = stack.client.wait_task(DAG_ID, run_id, "wait", ["deferred"])
    scheduler = stack.components["scheduler"]
    wait_for(lambda: waiting["pid"] not in scheduler.members() or None, "the task process to end", 10)
    awaited.touch()
    assert stack.client.wait_run(DAG_ID, run_id) == "success"
    assert stack.client.xcoms(DAG_ID, run_id, "wait")["return_value"] == {
        "start": NIGHT[0].isoformat(),
        "end": NIGHT[1].isoformat(),
        "path": str(awaited),
    }
