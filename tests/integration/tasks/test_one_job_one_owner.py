"""Jobs that could be lost sight of: other ledgers, shared keys, changed retries, tasks cleared in between."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task_group
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import text

from airflow_batch_llm import BatchLLMRedriveOperator, SqlSource, batch_llm_group
from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.hooks import state
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.integration.tasks.desk import (
    RETRY,
    SUBMIT,
    TASKS,
    Books,
    Traffic,
    Warehouse,
    desk_dag,
    group_values,
)
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

START = datetime(2026, 1, 1, tzinfo=UTC)
SLOW = {"pace": {"statuses": ["validating", "in_progress"]}}
ONE_FAILS = {"match": {"contains": "number 3."}, "fault": "server_error"}


def test_a_task_that_wakes_up_with_an_empty_ledger_does_not_pay_again(
    runs: Runs, traffic: Traffic, server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.set_scenario(SLOW)
    ledger = {"path": tmp_path / "first.db"}
    monkeypatch.setattr(state, "default_ledger_path", lambda: ledger["path"])

    def the_next_worker_has_a_disk_of_its_own() -> None:
        ledger["path"] = tmp_path / "second.db"
        empty = open_default_sqlite(ledger["path"])
        empty.namespace()
        with empty.engine.begin() as connection:  # made some time after the batch
            later = str(empty.now() + 60)
            connection.execute(
                text("UPDATE batch_llm_meta SET value = :at WHERE name = 'namespace_made_at'"), {"at": later}
            )

    runs.after(SUBMIT, the_next_worker_has_a_disk_of_its_own)
    run = runs.run(desk_dag("lost_ledger"))
    assert run.state == "failed"
    assert "BLLM-033" in str(runs.error_of(SUBMIT))
    assert traffic.creates == 1


def test_two_submitting_tasks_do_not_share_a_job_key(
    runs: Runs, traffic: Traffic, warehouse: Warehouse
) -> None:
    def half(name: str, where: str) -> Any:
        source = SqlSource("warehouse", f"SELECT id, body FROM tickets WHERE {where}", key=["id"])
        return batch_llm_group(**{**group_values(), "group_id": name, "job_key": "labels", "source": source})

    with DAG("shared_key", schedule=None, start_date=START) as dag:
        half("low", "id <= 3") >> half("high", "id > 3")
    run = runs.run(dag)
    assert run.state == "failed"
    error = runs.error_of("high.submit")
    assert isinstance(error, AirflowFailException) and "BLLM-036" in str(error) and "low.submit" in str(error)
    assert traffic.sent == 3


def test_mapped_jobs_with_one_job_key_stay_apart(runs: Runs, traffic: Traffic, tmp_path: Path) -> None:
    files = []
    for part in range(2):
        file = tmp_path / f"part-{part}.jsonl"
        rows = [{"id": f"{part}-{n}", "body": f"ticket {part} {n}"} for n in range(3)]
        file.write_text("\n".join(json.dumps(row) for row in rows))
        files.append({"path": str(file)})
    with DAG("mapped_key", schedule=None, start_date=START) as dag:

        @task_group
        def part(source: Any) -> None:
            values = {**group_values(), "job_key": "labels", "sink": None, "source": source, "key": "id"}
            batch_llm_group(**values)

        part.expand(source=files)
    run = runs.run(dag)
    assert run.state == "success" and traffic.sent == 6


def test_a_clear_is_noticed_although_retries_were_lowered(
    runs: Runs, traffic: Traffic, warehouse: Warehouse
) -> None:
    run = runs.run(desk_dag("lowered", task_args={"retries": 3, "retry_delay": timedelta(0)}))
    for lowered, changed in ((2, 4), (1, 5)):
        warehouse.execute("UPDATE tickets SET body = 'changed' WHERE id = ?", [changed])
        traffic.forget()
        dag = desk_dag("lowered", task_args={"retries": lowered, "retry_delay": timedelta(0)})
        runs.sync(dag)
        assert runs.rerun(dag, run, *TASKS) == "success"
        assert traffic.sent == 1
    assert Books.of(run).job.revision == 3


def test_a_retry_task_cleared_again_while_its_re_drive_waits_settles_the_job(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    server.set_scenario({"rows": [ONE_FAILS]})
    dag = desk_dag("cleared_twice", max_dead_letter_ratio=0.5)
    run = runs.run(dag)
    server.set_scenario(SLOW)
    traffic.forget()
    runs.after(RETRY, lambda: runs.clear(dag, run, RETRY))
    assert runs.rerun(dag, run, RETRY) == "success"
    books = Books.of(run)
    assert books.job.state is JobState.SETTLED
    assert {letter.state for letter in books.letters()} == {LetterState.RESOLVED}
    assert traffic.creates == 1 and sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6]


def redrive_dag(run: Any) -> DAG:
    with DAG("redrive_it", schedule=None, start_date=START) as dag:
        BatchLLMRedriveOperator(
            task_id="redrive",
            target_dag_id=run.dag_id,
            target_run_id=run.run_id,
            target_task_id=SUBMIT,
            reason="the fault is gone",
            sink=group_values()["sink"],
            retries=0,
        )
    return dag


def test_a_re_drive_cleared_while_it_waits_goes_on_with_its_round(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    server.set_scenario({"rows": [ONE_FAILS]})
    run = runs.run(desk_dag("redriven", max_dead_letter_ratio=0.5))
    server.set_scenario(SLOW)
    traffic.forget()
    dag = redrive_dag(run)
    started: list[Any] = []

    def clear_it() -> None:
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        from tests.integration.tasks.runs import Run

        with create_session() as session:
            run_id = session.scalars(select(DagRun.run_id).where(DagRun.dag_id == "redrive_it")).one()
        started.append(run_id)
        runs.clear(dag, Run("redrive_it", run_id), "redrive")

    runs.after("redrive", clear_it)
    assert runs.run(dag).state == "success" and started
    assert traffic.creates == 1
    books = Books.of(run)
    assert books.job.state is JobState.SETTLED and books.job.counts["answered"] == 6


def test_a_single_refused_look_fails_no_task_whose_batch_is_paid(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    server.set_scenario({"calls": [{"on": "retrieve", "fault": "error", "status": 403, "times": 1}], **SLOW})
    run = runs.run(desk_dag("one_403"))
    assert run.state == "success" and runs.tries(run)[SUBMIT] == 1
    assert traffic.creates == 1 and len(warehouse.labels()) == 6


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"prompt": "Label {{ row.body }}"}, "prompt must be RowPrompt or None, not str"),
        ({"row_retry": 3}, "row_retry must be RowRetry or None, not int"),
        ({"sink": "labels"}, "sink must be"),
        ({"job_timeout": 3600}, "job_timeout must be timedelta, not int"),
        ({"max_tokens": "200"}, "max_tokens must be int or None, not str"),
        ({"max_tokens": -5}, "max_tokens is -5"),
        ({"model": 5}, "model must be str or None, not int"),
        ({"llm_conn_id": 5}, "llm_conn_id must be str or None, not int"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused_when_the_dag_is_read(
    wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        desk_dag("wrong", **wrong)
