"""A connection that is given another server while a run has batches out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.core.model import BatchState
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import (
    DEAD_LETTER,
    RECONCILE,
    RETRY,
    SUBMIT,
    TASKS,
    Books,
    Traffic,
    Warehouse,
    desk_dag,
)
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("other-server"), api_key="other-key") as server:
        yield server


def test_the_task_that_waits_fails_at_once_and_goes_on_when_the_server_is_back(
    runs: Runs,
    server: LocalServer,
    other: LocalServer,
    warehouse: Warehouse,
    traffic: Traffic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.set_scenario({"pace": {"statuses": ["in_progress"]}})
    runs.after(SUBMIT, lambda: set_llm(monkeypatch, other))
    dag = desk_dag("changed_server")
    red = runs.run(dag)
    error = runs.error_of(SUBMIT)
    assert isinstance(error, AirflowFailException) and "BLLM-001" in str(error)
    assert "'llm_batch'" in str(error) and "its address was" in str(error)
    assert [process.state for process in runs.of(SUBMIT)] == ["deferred", "failed"]
    assert runs.tries(red)[SUBMIT] == 1 and other.requests("POST") == []
    server.set_scenario({})
    server.release()
    set_llm(monkeypatch, server)
    assert runs.rerun(dag, red, *TASKS) == "success"
    assert traffic.creates == 1 and len(warehouse.labels()) == 6


def test_what_cannot_be_had_any_more_is_abandoned_by_command_and_sent_to_the_new_server(
    runs: Runs,
    other: LocalServer,
    warehouse: Warehouse,
    traffic: Traffic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change_once_it_has_ended() -> None:
        if runs.of(SUBMIT)[-1].state == "success":
            set_llm(monkeypatch, other)
        else:
            runs.after(SUBMIT, change_once_it_has_ended)

    runs.after(SUBMIT, change_once_it_has_ended)
    dag = desk_dag("server_is_gone")
    red = runs.run(dag)
    assert "BLLM-001" in str(runs.error_of(RECONCILE)) and other.requests("POST") == []
    books = Books.of(red)
    (batch,) = books.ledger.batches(books.job.job_id)
    assert batch.state is BatchState.ENDED
    abandon = ["abandon", books.job.job_id, batch.batch_id, "--reason", "the server is gone"]
    assert main(abandon) != 0
    assert main([*abandon, "--yes-pay-again"]) == 0
    assert runs.rerun(dag, red, RECONCILE, RETRY, DEAD_LETTER) == "success"
    assert traffic.creates == 1 and len(other.requests("POST", "/v1/batches")) == 1
    assert len(warehouse.labels()) == 6
