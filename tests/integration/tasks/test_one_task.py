"""The one-task form: the same job as the group's, with the same verdicts, in one task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_batch_llm import BatchLLMOperator, RowPrompt
from airflow_batch_llm.cli.main import main
from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.hooks.state import open_workspace
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import DEAD_LETTER, Books, Traffic, Warehouse, desk_dag, group_values
from tests.integration.tasks.runs import Run, Runs
from tests.local_server import LocalServer

TASK = "label"
ONE_IS_BAD = {"match": {"contains": "number 2."}, "fault": "bad_request", "code": "invalid_value"}
ONE_FAILS_ONCE = {"match": {"contains": "number 3."}, "fault": "server_error", "times": 1}


def one_task_dag(dag_id: str, **values: Any) -> DAG:
    """Return a DAG with the desk's job as one task; ``values`` go to the operator."""
    arguments = {**group_values(), "retries": 1, "retry_delay": timedelta(0), **values}
    del arguments["group_id"], arguments["task_args"]
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        BatchLLMOperator(task_id=TASK, **arguments)
    return dag


def books_of(run: Run) -> Books:
    return Books.of(run, TASK)


def decide(run: Run, *words: str) -> None:
    command, *rest = words
    assert main([*command.split(), books_of(run).job_id, *rest, "--reason", "r", "--actor", "ann"]) == 0


def test_it_ends_as_the_group_does_whether_it_waits_deferred_or_not(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    ended = []
    for form, dag, task, last in (
        ("group", desk_dag("same_group", max_dead_letter_ratio=0.5), "label.submit", DEAD_LETTER),
        ("deferred", one_task_dag("same_deferred", max_dead_letter_ratio=0.5), TASK, TASK),
        ("blocking", one_task_dag("same_blocking", max_dead_letter_ratio=0.5, deferrable=False), TASK, TASK),
    ):
        server.set_scenario({"rows": [ONE_IS_BAD, ONE_FAILS_ONCE]})
        traffic = Traffic(server)
        run = runs.run(dag)
        books, told = Books.of(run, task), runs.xcom(run, last)
        assert told.pop("job_id") == books.job_id
        workspace = open_workspace()
        assert told.pop("results") == workspace.url(f"{workspace.job_root(books.job.key)}/results/1"), form
        ended.append((run.state, told, books.open_codes(), traffic.creates, traffic.sent, warehouse.labels()))
        warehouse.execute("DELETE FROM labels")
    assert ended[0] == ended[1] == ended[2]
    state, told, codes, creates, sent, labels = ended[0]
    assert (state, creates, sent, sorted(labels)) == ("success", 2, 7, [1, 3, 4, 5, 6])
    assert codes == {"2": "invalid_value"} and told["dead_letters"] == {"invalid_value": 1}


@pytest.mark.parametrize("deferrable", [True, False])
def test_the_log_tells_once_what_was_read_and_sent(
    runs: Runs, warehouse: Warehouse, capfd: pytest.CaptureFixture[str], deferrable: bool
) -> None:
    run = runs.run(one_task_dag(f"one_task_log_{deferrable}", deferrable=deferrable))
    assert run.state == "success"
    out = "".join(capfd.readouterr())
    assert out.count(f"job {books_of(run).job_id}, revision 1: 6 rows read, 6 sent, 0 kept, 0 reused") == 1


def test_rows_that_were_never_sent_are_told_apart_from_what_a_redrive_sends(
    runs: Runs, warehouse: Warehouse, capfd: pytest.CaptureFixture[str]
) -> None:
    prompt = RowPrompt("{{ row.body }}{% if row.id == 2 %}{{ row.id + row.body }}{% endif %}")
    run = runs.run(one_task_dag("one_task_never_sent", prompt=prompt, max_dead_letter_ratio=0.5))
    assert run.state == "success" and books_of(run).open_codes() == {"2": "prompt_failed"}
    out = "".join(capfd.readouterr())
    assert "1 rows were never sent, and a re-drive leaves them alone" in out
    job = books_of(run).job_id[:12]
    assert f"`batch-llm dead-letters redrive {job} --all --reason …`" in out
    assert f"`batch-llm accept {job} --reason …`" in out

    assert main(["dead-letters", "redrive", books_of(run).job_id, "--all", "--reason", "r"]) == 6
    assert "mended in the source or the prompt, and sent by a clear" in capfd.readouterr().err


def test_red_comes_after_everything_was_published_and_a_clear_sends_only_what_is_missing(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    server.set_scenario({"rows": [{**ONE_IS_BAD, "fault": "server_error", "code": "server_error"}]})
    dag = one_task_dag("one_task_red")
    run = runs.run(dag)
    assert run.state == "failed" and runs.tries(run) == {TASK: 1}
    error = runs.error_of(TASK)
    assert isinstance(error, AirflowFailException)
    assert "BLLM-040" in str(error) and "1 of 6" in str(error) and "server_error (1)" in str(error)
    assert sorted(warehouse.labels()) == [1, 3, 4, 5, 6]

    server.set_scenario({})
    traffic = Traffic(server)
    warehouse.fill({7: "ticket number 7."})
    assert runs.rerun(dag, run, TASK) == "success"
    assert traffic.sent == 2 and sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6, 7]
    assert books_of(run).job.revision == 2


def test_a_clear_carries_out_what_was_decided_by_hand_and_the_next_one_reads_the_source(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    server.set_scenario({"rows": [ONE_IS_BAD]})
    dag = one_task_dag("one_task_accepted")
    run = runs.run(dag)
    assert run.state == "failed"
    warehouse.fill({7: "ticket number 7."})
    traffic = Traffic(server)
    decide(run, "accept")
    assert runs.rerun(dag, run, TASK) == "success"
    assert not traffic.anything and books_of(run).job.revision == 1
    assert books_of(run).open_codes() == {"2": "invalid_value"}

    # Nothing was decided since: this one reads the new row. What died for good is not sent unchanged.
    assert runs.rerun(dag, run, TASK) == "failed"
    assert traffic.sent == 1 and sorted(warehouse.labels()) == [1, 3, 4, 5, 6, 7]
    assert books_of(run).job.revision == 2


def test_dead_letters_that_a_person_sends_again_go_out_with_the_next_clear(
    runs: Runs, server: LocalServer, warehouse: Warehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    server.set_scenario({"rows": [ONE_IS_BAD]})
    dag = one_task_dag("one_task_redriven")
    run = runs.run(dag)
    server.set_scenario({})
    traffic = Traffic(server)
    decide(run, "dead-letters redrive", "--all")
    assert f"clear task {TASK} of DAG one_task_redriven" in capsys.readouterr().out
    assert runs.rerun(dag, run, TASK) == "success"
    assert traffic.sent == 1 and sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6]
    assert [letter.state for letter in books_of(run).letters()] == [LetterState.RESOLVED]


def test_a_halted_job_is_red_and_goes_on_when_it_was_resumed(
    runs: Runs, server: LocalServer, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_llm(monkeypatch, server, extra={"max_requests": 2})
    code = "billing_hard_limit_reached"
    server.set_scenario(
        {"calls": [{"on": "create", "fault": "error", "status": 400, "code": code, "skip": 1}]}
    )
    dag = one_task_dag("one_task_halted")
    run = runs.run(dag)
    assert run.state == "failed" and "BLLM-030" in str(runs.error_of(TASK))
    assert sorted(warehouse.labels()) == [1, 2]
    server.set_scenario({})
    traffic = Traffic(server)
    decide(run, "resume")
    assert runs.rerun(dag, run, TASK) == "success"
    assert traffic.sent == 4 and len(warehouse.labels()) == 6
    assert books_of(run).job.state is JobState.SETTLED and books_of(run).job.revision == 1


def test_a_job_that_was_cancelled_while_it_waited_is_read_and_halted_by_its_own_task(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    server.set_scenario({"pace": {"seconds": 600}})
    dag = one_task_dag("one_task_cancelled")
    run = Run("one_task_cancelled", "the_run")
    runs.after(TASK, lambda: decide(run, "cancel"))
    runs.run(dag, run.run_id)
    assert run.state == "failed" and "BLLM-032" in str(runs.error_of(TASK))
    # The task itself has carried the decision out: a clear is a clear.
    server.set_scenario({})
    assert runs.rerun(dag, run, TASK) == "success"
    assert len(warehouse.labels()) == 6 and books_of(run).job.revision == 2


@pytest.mark.parametrize(
    ("on_empty", "task", "state"), [("skip", "skipped", "success"), ("fail", "failed", "failed")]
)
def test_an_empty_source_means_what_on_empty_says(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, on_empty: str, task: str, state: str
) -> None:
    warehouse.execute("DELETE FROM tickets")
    run = runs.run(one_task_dag(f"one_task_empty_{on_empty}", on_empty=on_empty))
    assert (runs.states(run), run.state) == ({TASK: task}, state)
    assert not traffic.anything


def test_fewer_rows_than_wanted_are_an_error_before_anything_is_sent(runs: Runs, traffic: Traffic) -> None:
    run = runs.run(one_task_dag("one_task_few", min_rows=7))
    error = runs.error_of(TASK)
    assert isinstance(error, AirflowFailException)
    assert "6 rows" in str(error) and "min_rows is 7" in str(error)
    assert runs.tries(run) == {TASK: 1} and not traffic.anything
