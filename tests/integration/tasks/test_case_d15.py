"""D15: the worker is killed, XCom is wiped, people clear: one batch is paid for, and then what changed."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from airflow.exceptions import AirflowException

from airflow_batch_llm import BatchLLMSubmitOperator, RowPrompt
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.hooks.state import open_ledger
from airflow_batch_llm.operators import base
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.tasks.desk import SUBMIT, TASKS, Books, Traffic, Warehouse, desk_dag
from tests.integration.tasks.runs import Run, Runs
from tests.local_server import LocalServer


def kill_first_try(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Run the first process of the submit task in a process of its own, which is killed at ``point``."""
    execute = BatchLLMSubmitOperator.execute

    def killed(operator: BatchLLMSubmitOperator, context: Any) -> Any:
        def dies() -> None:
            base.Tools = partial(Tools, fault=die_at(point))  # type: ignore[misc, assignment]
            execute(operator, context)

        monkeypatch.setattr(BatchLLMSubmitOperator, "execute", execute)
        assert was_killed(dies)
        raise AirflowException("the worker was lost")

    monkeypatch.setattr(BatchLLMSubmitOperator, "execute", killed)


def let_leases_end() -> None:
    """Let the time of create calls that are in doubt be over."""
    with open_ledger().engine.begin() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql("UPDATE batch_llm_batch SET lease_until = lease_until - 100000")


def wipe_xcom(run: Run) -> None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(XComModel).where(XComModel.run_id == run.run_id))


@pytest.mark.parametrize("point", ["submit.before_create", "submit.after_create", "submit.after_submitted"])
def test_d15_three_tries_pay_once_and_a_fourth_for_what_changed(
    point: str,
    runs: Runs,
    traffic: Traffic,
    warehouse: Warehouse,
    server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIND_INTERVAL", "0.1")
    server.set_scenario({"pace": {"statuses": ["in_progress"] * 3}})
    kill_first_try(monkeypatch, point)
    runs.after(SUBMIT, let_leases_end)
    dag = desk_dag(f"d15_{point.partition('.')[2]}")
    # Try 1 is killed, try 2 finds what it left behind.
    run = runs.run(dag)
    assert run.state == "success" and runs.tries(run)[SUBMIT] == 2
    assert [process.state for process in runs.of(SUBMIT)][0] == "up_for_retry"
    assert (traffic.creates, traffic.sent) == (1, 6)
    before = warehouse.labels()
    assert len(before) == 6

    # Try 3: cleared, with the same input and without any XCom.
    wipe_xcom(run)
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert runs.tries(run)[SUBMIT] == 3
    assert (traffic.creates, traffic.sent) == (1, 6)
    assert warehouse.labels() == before

    # Try 4: cleared, with one prompt changed: it alone is sent, and its old answer is not given again.
    new = next(label for label in ("bug", "billing") if label != before[2])
    warehouse.execute("UPDATE tickets SET body = ? WHERE id = 2", [f"It is about {new}."])
    wipe_xcom(run)
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert (traffic.creates, traffic.sent) == (2, 7)
    assert warehouse.labels() == {**before, 2: new}
    job = Books.of(run).job
    assert (job.revision, job.counts["rows"], job.counts["answered"]) == (3, 6, 6)


@pytest.mark.parametrize(
    ("changes", "sent"),
    [
        pytest.param({"prompt": RowPrompt("Give a label to: {{ row.body }}")}, 6, id="another prompt"),
        pytest.param({"retries_of_rows": 2}, 0, id="another policy"),
    ],
)
def test_d15_what_counts_as_changed_is_what_the_model_is_asked(
    changes: dict[str, Any], sent: int, runs: Runs, traffic: Traffic, request: pytest.FixtureRequest
) -> None:
    from airflow_batch_llm import RowRetry

    if rounds := changes.pop("retries_of_rows", None):
        changes["row_retry"] = RowRetry(max_rounds=rounds)
    name = f"d15_changed_{len(request.node.name)}_{next(iter(changes))}"
    run = runs.run(desk_dag(name))
    assert traffic.sent == 6
    traffic.forget()
    other = desk_dag(name, **changes)
    runs.sync(other)
    assert runs.rerun(other, run, *TASKS) == "success"
    assert traffic.sent == sent


def shape(value: Any) -> Any:
    """A value without its numbers, and with its texts' lengths only."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shape(member) for member in value]
    return len(value) if isinstance(value, str) else type(value).__name__


def test_d15_xcom_does_not_grow_with_the_rows(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = desk_dag("d15_xcom", sink=None)
    few = runs.run(dag)
    warehouse.fill({n: f"ticket number {n}." for n in range(7, 1501)})
    many = runs.run(dag)
    assert runs.xcom(many, SUBMIT)["counts"]["rows"] == 1500
    sizes = []
    for task_id in TASKS:
        small, large = runs.xcom(few, task_id), runs.xcom(many, task_id)
        # The same names and texts of the same lengths: only numbers differ. Of 100,000 rows none has more
        # than six digits.
        assert shape(small) == shape(large)
        sizes.append(len(json.dumps(large)))
    assert max(sizes) < 4096 < 48 * 1024
    assert {name.partition("/")[0] for name in runs.xcoms(many)} == set(TASKS)
