"""The one-task form: the same job as the group's, in one task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_batch_llm import BatchLLMOperator
from tests.integration.tasks.desk import Books, Traffic, Warehouse, group_values
from tests.integration.tasks.runs import Runs

TASK = "label"


def one_task_dag(dag_id: str, **values: Any) -> DAG:
    """Return the desk's job as one task."""
    arguments = {**group_values(), "retries": 1, "retry_delay": timedelta(0), **values}
    arguments |= {"task_id": arguments.pop("group_id")}
    arguments.pop("task_args")
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        BatchLLMOperator(**arguments)
    return dag


@pytest.mark.parametrize("deferrable", [True, False])
def test_rows_become_labels(runs: Runs, traffic: Traffic, warehouse: Warehouse, deferrable: bool) -> None:
    run = runs.run(one_task_dag(f"one_task_{deferrable}", deferrable=deferrable))
    assert run.state == "success"
    assert sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6]
    assert (traffic.creates, traffic.sent) == (1, 6)
    told = runs.xcom(run, TASK)
    assert told["counts"]["answered"] == 6
