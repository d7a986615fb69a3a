"""``batch-llm resume`` and a clear of the later tasks bring a halted run to its end."""

from __future__ import annotations

import pytest

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.core.model import JobState
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import (
    DEAD_LETTER,
    RECONCILE,
    RETRY,
    TASKS,
    Books,
    Traffic,
    Warehouse,
    desk_dag,
)
from tests.integration.tasks.runs import Run, Runs
from tests.local_server import LocalServer

LATER = {
    "dead_letter": (DEAD_LETTER,),
    "retry": (RETRY, DEAD_LETTER),
    "reconcile": (RECONCILE, RETRY, DEAD_LETTER),
}


def resumed(run: Run, *words: str) -> None:
    assert main(["resume", Books.of(run).job_id, "--reason", "mended", "--actor", "ann", *words]) == 0


@pytest.mark.parametrize("first", LATER)
def test_a_clear_of_the_later_tasks_sends_what_a_refused_batch_left(
    runs: Runs, server: LocalServer, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    set_llm(monkeypatch, server, extra={"max_requests": 2})
    code = "billing_hard_limit_reached"
    refusal = {"on": "create", "fault": "error", "status": 400, "code": code, "skip": 1}
    server.set_scenario({"calls": [refusal]})
    dag = desk_dag(f"resumed_{first}")
    run = runs.run(dag)
    assert runs.states(run) == {**dict.fromkeys(TASKS, "success"), DEAD_LETTER: "failed"}
    server.set_scenario({})
    traffic = Traffic(server)
    resumed(run)
    assert runs.rerun(dag, run, *LATER[first]) == "success"
    assert traffic.sent == 4 and sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6]
    assert Books.of(run).job.state is JobState.SETTLED and Books.of(run).job.revision == 1


def test_rows_that_the_account_held_up_are_sent_again_by_the_retry_task(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    fault = {"match": {"custom_id": ".*", "every": 2}, "fault": "insufficient_quota"}
    server.set_scenario({"rows": [fault]})
    dag = desk_dag("resumed_rows")
    run = runs.run(dag)
    assert "(BLLM-021" in str(runs.error_of(DEAD_LETTER))
    answered = len(warehouse.labels())
    assert 0 < answered < 6 and Books.of(run).letters() == []
    server.set_scenario({})
    traffic = Traffic(server)
    resumed(run)
    assert runs.rerun(dag, run, RETRY, DEAD_LETTER) == "success"
    assert traffic.sent == 6 - answered and len(warehouse.labels()) == 6
