"""Runs on one connection whose account is at fault: one is red, the others wait without a worker slot."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.core.model import HoldOrigin
from airflow_batch_llm.hooks.state import open_ledger
from tests.integration.tasks.desk import SUBMIT, TASKS, Traffic, Warehouse, desk_dag
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer


def refuses(on: str) -> dict[str, Any]:
    return {"calls": [{"on": on, "fault": "error", "status": 401}]}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials come a second apart."""
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__PROBE_INTERVAL_MIN", "1")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__PROBE_INTERVAL_MAX", "1")


def test_a_second_run_waits_deferred_until_the_key_is_mended(
    runs: Runs, server: LocalServer, warehouse: Warehouse, capfd: pytest.CaptureFixture[str]
) -> None:
    server.set_scenario(refuses("create"))
    red = runs.run(desk_dag("held_first"))
    assert runs.states(red)[SUBMIT] == "failed" and "BLLM-020" in str(runs.error_of(SUBMIT))
    (hold,) = open_ledger().holds()
    assert (hold.conn_id, hold.origin) == ("llm_batch", HoldOrigin.CALL)
    runs.processes.clear()
    runs.after(SUBMIT, lambda: server.set_scenario({}))
    green = runs.run(desk_dag("held_second"))
    waited, *_, done = runs.of(SUBMIT)
    assert (waited.state, waited.error) == ("deferred", None)
    assert waited.trigger_kwargs["batches"] == [] and waited.trigger_kwargs["not_before"] is not None
    assert done.state == "success" and green.state == "success"
    assert len(warehouse.labels()) == 6 and open_ledger().holds() == []
    assert "waiting for 0 batches (connection_held)" in "".join(capfd.readouterr())
    # The first run only lacked the key: a clear sends what it staged.
    assert runs.rerun(desk_dag("held_first"), red, *TASKS) == "success"


def test_a_key_that_is_refused_while_batches_run_is_told_once_and_a_clear_goes_on(
    runs: Runs, server: LocalServer, warehouse: Warehouse, traffic: Traffic
) -> None:
    server.set_scenario({"pace": {"statuses": ["in_progress"]}})
    runs.after(SUBMIT, lambda: server.set_scenario(refuses("poll")))
    dag = desk_dag("held_reading")
    red = runs.run(dag)
    assert runs.states(red)[SUBMIT] == "failed" and "BLLM-020" in str(runs.error_of(SUBMIT))
    assert [hold.batch_id for hold in open_ledger().holds()] == [None]
    server.set_scenario({})
    assert runs.rerun(dag, red, *TASKS) == "success"
    assert open_ledger().holds() == [] and traffic.creates == 1 and len(warehouse.labels()) == 6


def test_a_run_whose_batches_cannot_be_looked_at_waits_where_another_has_told_it(
    runs: Runs, server: LocalServer, warehouse: Warehouse, traffic: Traffic
) -> None:
    def refused_to_another_job_too() -> None:
        open_ledger().hold_connection(
            "llm_batch", code="BLLM-020", origin=HoldOrigin.CALL, job_id="another", reason="", probe_at=0.0
        )
        server.set_scenario(refuses("poll"))

    server.set_scenario({"pace": {"statuses": ["in_progress"]}})
    runs.after(SUBMIT, refused_to_another_job_too)
    # Woken after several failures in a row, it looks by itself, meets the fault too, and goes on waiting.
    runs.after(SUBMIT, lambda: server.set_scenario({}))
    run = runs.run(desk_dag("held_elsewhere"))
    assert run.state == "success" and len(warehouse.labels()) == 6
    assert [process.state for process in runs.of(SUBMIT)] == ["deferred", "deferred", "success"]
    assert traffic.creates == 1 and open_ledger().holds() == []
