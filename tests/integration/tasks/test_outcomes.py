"""What the run's colour says: empty sources, dead letters, all rows failed."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_batch_llm import SqlSink
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.hooks.state import open_workspace
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import (
    DEAD_LETTER,
    RECONCILE,
    SUBMIT,
    TASKS,
    Books,
    Traffic,
    Warehouse,
    desk_dag,
)
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer


@pytest.fixture
def no_tickets(warehouse: Warehouse) -> None:
    warehouse.execute("DELETE FROM tickets")


@pytest.mark.usefixtures("no_tickets")
def test_an_empty_source_skips_the_group(runs: Runs, traffic: Traffic) -> None:
    run = runs.run(desk_dag("empty_skip", on_empty="skip"))
    assert set(runs.states(run).values()) == {"skipped"}
    assert run.state == "success"
    assert not traffic.anything


@pytest.mark.usefixtures("no_tickets")
def test_an_empty_source_fails_the_group_where_asked_to(runs: Runs, traffic: Traffic) -> None:
    run = runs.run(desk_dag("empty_fail", on_empty="fail"))
    error = runs.error_of(SUBMIT)
    assert isinstance(error, AirflowFailException) and "BLLM-014" in str(error)
    assert runs.tries(run)[SUBMIT] == 1
    assert run.state == "failed"
    assert not traffic.anything


@pytest.mark.usefixtures("no_tickets")
def test_an_empty_source_is_a_settled_job_where_asked_to(runs: Runs, traffic: Traffic) -> None:
    run = runs.run(desk_dag("empty_success", on_empty="success"))
    assert set(runs.states(run).values()) == {"success"}
    job = Books.of(run).job
    assert job.state is JobState.SETTLED
    assert {job.counts[name] for name in ("rows", "answered", "dead", "pending")} == {0}
    assert runs.xcom(run, DEAD_LETTER)["state"] == "settled"
    assert not traffic.anything


def test_all_rows_failed_is_red_after_everything_was_published(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    server.set_scenario(
        {
            "rows": [
                {"match": {"contains": "number 1."}, "fault": "bad_request", "code": "unsupported_value"},
                {"fault": "bad_request", "code": "invalid_value"},
            ]
        }
    )
    run = runs.run(desk_dag("all_failed", max_dead_letter_ratio=1.0))
    assert runs.states(run) == {**dict.fromkeys(TASKS, "success"), DEAD_LETTER: "failed"}
    assert run.state == "failed"
    error = runs.error_of(DEAD_LETTER)
    assert isinstance(error, AirflowFailException)
    assert "BLLM-041" in str(error) and "invalid_value (5), unsupported_value (1)" in str(error)
    # The provider says the same of all of them and quotes none: that helps to mend the cause.
    assert "rows say: " in str(error)
    assert runs.tries(run)[DEAD_LETTER] == 1
    books = Books.of(run)
    assert books.job.state is JobState.SETTLED
    assert len(books.open_codes()) == 6
    workspace = open_workspace()
    assert workspace.exists(f"{workspace.job_root(books.job.key)}/results/1/_manifest.json")
    assert warehouse.labels() == {}


@pytest.mark.parametrize(("ratio", "state"), [(0.0, "failed"), (0.15, "failed"), (0.5, "success")])
def test_dead_letters_are_red_above_the_ratio_allowed(
    runs: Runs,
    server: LocalServer,
    warehouse: Warehouse,
    capfd: pytest.CaptureFixture[str],
    ratio: float,
    state: str,
) -> None:
    server.set_scenario(
        {"rows": [{"match": {"contains": "number 2."}, "fault": "bad_request", "code": "invalid_value"}]}
    )
    run = runs.run(desk_dag(f"ratio_{int(ratio * 100)}", max_dead_letter_ratio=ratio))
    assert run.state == state
    assert sorted(warehouse.labels()) == [1, 3, 4, 5, 6]
    assert Books.of(run).open_codes() == {"2": "invalid_value"}
    if state == "failed":
        error = runs.error_of(DEAD_LETTER)
        assert isinstance(error, AirflowFailException)
        assert "BLLM-040" in str(error) and "1 of 6" in str(error) and "invalid_value (1)" in str(error)
    else:
        assert runs.xcom(run, DEAD_LETTER)["dead_letters"] == {"invalid_value": 1}
    assert runs.xcom(run, RECONCILE)["verdicts"] == {"ok": 5, "bad_request": 1}
    books = Books.of(run)
    workspace = open_workspace()
    out = "".join(capfd.readouterr())
    assert f"job {books.job_id} revision 1: 1 batches read; rows by verdict: ok 5, bad_request 1" in out
    assert (
        f"job {books.job_id} revision 1: 6 rows, 5 answered, 1 dead letters (commonest codes: "
        "invalid_value (1)), 0 withdrawn, 5 landed"
    ) in out
    assert workspace.url(f"{workspace.job_root(books.job.key)}/results/1") in out
    assert f"target_run_id='{run.run_id}', target_task_id='label.submit')" in out


def test_a_halt_after_a_batch_was_accepted_lets_what_is_paid_be_read(
    runs: Runs, server: LocalServer, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_llm(monkeypatch, server, extra={"max_requests": 2})
    refusal = {
        "on": "create",
        "fault": "error",
        "status": 400,
        "code": "billing_hard_limit_reached",
        "skip": 1,
    }
    server.set_scenario({"calls": [refusal]})
    run = runs.run(desk_dag("halted"))
    assert runs.states(run) == {**dict.fromkeys(TASKS, "success"), DEAD_LETTER: "failed"}
    assert "BLLM-030" in str(runs.error_of(DEAD_LETTER)) and "(BLLM-021)" in str(runs.error_of(DEAD_LETTER))
    assert sorted(warehouse.labels()) == [1, 2]
    books = Books.of(run)
    assert books.job.state is JobState.HALTED and books.letters() == []
    # The cause is mended; a clear of the group sends what is pending and nothing else.
    server.set_scenario({})
    traffic = Traffic(server)
    assert runs.rerun(desk_dag("halted"), run, *TASKS) == "success"
    assert traffic.sent == 4 and sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("call", ["retrieve", "upload"])
def test_an_outage_after_a_batch_was_accepted_does_not_fail_submit(
    runs: Runs, server: LocalServer, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    set_llm(monkeypatch, server, extra={"max_requests": 3})
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MAX", "0.1")
    # Longer than one call with its own retries: the engine itself meets it.
    outage = {"on": call, "fault": "error", "status": 503, "skip": 1, "times": 3}
    server.set_scenario({"pace": {"statuses": ["in_progress"]}, "calls": [outage]})
    run = runs.run(desk_dag(f"outage_{call}", task_args={"retries": 0}))
    assert runs.states(run)[SUBMIT] == "success"
    assert run.state == "success" and len(warehouse.labels()) == 6


def test_a_skipped_run_leaves_the_partition_as_it_is(runs: Runs, warehouse: Warehouse) -> None:
    sink = SqlSink(
        "warehouse", "labels", key=["id"], mode="replace_partition", partition={"desk": "a"}, create=True
    )
    dag = desk_dag("kept_partition", sink=sink)
    assert runs.run(dag).state == "success"
    before = warehouse.labels()
    warehouse.execute("DELETE FROM tickets")
    again = runs.run(dag)
    assert runs.states(again)[SUBMIT] == "skipped"
    assert warehouse.labels() == before != {}
