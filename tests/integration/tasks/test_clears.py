"""Clears and automatic retries, by Airflow's own mechanics: what is sent again, and what never is."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import (
    DEAD_LETTER,
    RECONCILE,
    RETRY,
    SCHEMA,
    SUBMIT,
    TASKS,
    Books,
    Traffic,
    Warehouse,
    desk_dag,
)
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

ONE_FAILS = {"match": {"contains": "number 3."}, "fault": "server_error"}


def test_a_clear_of_the_group_sends_what_changed_and_nothing_else(
    runs: Runs, traffic: Traffic, warehouse: Warehouse
) -> None:
    dag = desk_dag("clear_all")
    run = runs.run(dag)
    assert traffic.sent == 6
    before = warehouse.labels()

    traffic.forget()
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert not traffic.anything
    assert Books.of(run).job.revision == 2
    assert warehouse.labels() == before

    # The simulated model goes by the words of the text.
    new = next(label for label in ("bug", "billing") if label != before[4])
    warehouse.execute("UPDATE tickets SET body = ? WHERE id = 4", [f"It is about {new}."])
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert (traffic.creates, traffic.sent) == (1, 1)
    assert warehouse.labels() == {**before, 4: new}
    books = Books.of(run)
    assert books.job.counts["rows"] == books.job.counts["answered"] == 6


def test_a_run_that_was_deleted_and_made_anew_sends_what_changed_and_nothing_else(
    runs: Runs, traffic: Traffic, warehouse: Warehouse
) -> None:
    dag = desk_dag("made_anew")
    run = runs.run(dag)
    before = warehouse.labels()
    traffic.forget()
    runs.delete(run)
    assert runs.run(dag, run.run_id) == run
    assert run.state == "success" and not traffic.anything
    assert Books.of(run).job.revision == 2
    assert warehouse.labels() == before

    runs.delete(run)
    warehouse.execute("UPDATE tickets SET body = 'another text' WHERE id = 4")
    runs.run(dag, run.run_id)
    assert run.state == "success" and (traffic.creates, traffic.sent) == (1, 1)
    assert Books.of(run).job.counts["answered"] == 6

    traffic.forget()
    assert runs.rerun(dag, run, *TASKS) == "success", "and it can be cleared like any other"
    assert not traffic.anything and Books.of(run).job.revision == 4


def test_submit_cleared_alone_is_refused_before_it_pays(
    runs: Runs, traffic: Traffic, warehouse: Warehouse
) -> None:
    dag = desk_dag("clear_submit")
    run = runs.run(dag)
    traffic.forget()
    warehouse.execute("UPDATE tickets SET body = 'another text' WHERE id = 4")
    runs.rerun(dag, run, SUBMIT)
    assert runs.states(run)[SUBMIT] == "failed"
    error = runs.error_of(SUBMIT)
    assert isinstance(error, AirflowFailException)
    assert "BLLM-034" in str(error) and "clear with downstream" in str(error) and DEAD_LETTER in str(error)
    assert not traffic.anything
    assert Books.of(run).job.revision == 1
    # The advice of the message works.
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert traffic.sent == 1


def test_a_clear_that_finds_no_row_any_more_leaves_nothing_open(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    server.set_scenario({"rows": [{"match": {"contains": "number 5."}, "fault": "content_filter"}]})
    dag = desk_dag("clear_to_nothing", max_dead_letter_ratio=0.5)
    run = runs.run(dag)
    books = Books.of(run)
    assert set(books.open_codes()) == {"5"}
    traffic.forget()
    warehouse.execute("DELETE FROM tickets")
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert set(runs.states(run).values()) == {"skipped"}
    assert not traffic.anything
    assert books.job.state is JobState.SETTLED
    assert (books.job.counts["rows"], books.job.counts["withdrawn"]) == (0, 6)
    assert {letter.state for letter in books.letters()} == {LetterState.DISCARDED}


def test_reconcile_cleared_alone_judges_again_and_never_demotes(
    runs: Runs, traffic: Traffic, warehouse: Warehouse
) -> None:
    def dag(**enum: Any) -> Any:
        labels = {"type": "string", **enum}
        schema = {**SCHEMA, "properties": {"label": labels}}
        return desk_dag("clear_reconcile", output_schema=schema, max_dead_letter_ratio=1.0)

    # The server fills the schema it is sent; "maxLength" is what the answers do not keep to.
    first = dag(enum=["billing", "bug", "other"], maxLength=4)
    run = runs.run(first)
    books = Books.of(run)
    answered = books.job.counts["answered"]
    assert 0 < answered < 6, "some answers fit into four letters and some do not"
    assert set(books.open_codes().values()) == {"schema_mismatch"}
    assert {letter.verdict for letter in books.letters()} == {Verdict.INVALID_OUTPUT}
    traffic.forget()

    wider = dag(enum=["billing", "bug", "other"])
    runs.sync(wider)
    assert runs.rerun(wider, run, RECONCILE, RETRY, DEAD_LETTER) == "success"
    assert not traffic.anything
    assert len(warehouse.labels()) == 6
    assert books.job.counts["answered"] == 6
    assert {letter.state for letter in books.letters()} == {LetterState.RESOLVED}

    runs.sync(first)
    assert runs.rerun(first, run, RECONCILE, RETRY, DEAD_LETTER) == "success"
    assert not traffic.anything
    assert books.job.counts["answered"] == 6 and len(warehouse.labels()) == 6


def test_retry_cleared_alone_gives_exhausted_rows_another_chance(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    bad = {"match": {"contains": "number 5."}, "fault": "bad_request", "code": "invalid_value"}
    server.set_scenario({"rows": [ONE_FAILS, bad]})
    dag = desk_dag("clear_retry", max_dead_letter_ratio=0.5)
    run = runs.run(dag)
    books = Books.of(run)
    assert set(books.open_codes()) == {"3", "5"}
    # Slow enough for the cleared task to defer and be resumed.
    server.set_scenario({"pace": {"statuses": ["validating", "in_progress"]}})
    traffic.forget()
    assert runs.rerun(dag, run, RETRY) == "success"
    assert (traffic.creates, traffic.sent) == (1, 1), "the deterministic death is not sent again"
    assert sorted(warehouse.labels()) == [1, 2, 3, 4, 6]
    assert books.job.state is JobState.SETTLED
    assert books.open_codes() == {"5": "invalid_value"}
    states = {letter.custom_id: letter.state for letter in books.letters()}
    assert states == {"3": LetterState.RESOLVED, "5": LetterState.OPEN}


def test_dead_letter_cleared_alone_changes_nothing(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    server.set_scenario({"rows": [ONE_FAILS]})
    dag = desk_dag("clear_dead_letter", max_dead_letter_ratio=0.5)
    run = runs.run(dag)
    books = Books.of(run)
    before = (books.letters(), dict(books.job.counts), warehouse.execute("SELECT * FROM labels ORDER BY id"))
    traffic.forget()
    assert runs.rerun(dag, run, DEAD_LETTER) == "success"
    assert not traffic.anything
    counts = {**books.job.counts, "landed": before[1]["landed"]}
    after = (books.letters(), counts, warehouse.execute("SELECT * FROM labels ORDER BY id"))
    assert after == before


@pytest.mark.parametrize("rerun", ["missing", "failed", "fresh"])
def test_what_a_clear_sends_again_is_what_rerun_says(
    runs: Runs, traffic: Traffic, server: LocalServer, rerun: str
) -> None:
    bad = {"match": {"contains": "number 5."}, "fault": "bad_request", "code": "invalid_value"}
    server.set_scenario({"rows": [ONE_FAILS, bad]})
    dag = desk_dag(f"rerun_{rerun}", rerun=rerun, max_dead_letter_ratio=0.5)
    run = runs.run(dag)
    server.set_scenario({})
    traffic.forget()
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert traffic.sent == {"missing": 1, "failed": 2, "fresh": 6}[rerun]
    assert set(Books.of(run).open_codes()) == ({"5"} if rerun == "missing" else set())


def test_an_automatic_retry_of_submit_never_reads_the_source_again(
    runs: Runs,
    traffic: Traffic,
    warehouse: Warehouse,
    server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    set_llm(monkeypatch, server, extra={"max_requests": 2})
    # The first try stages three batches and sends none: the upload fails for as long as the try lasts.
    server.set_scenario({"calls": [{"on": "upload", "fault": "error", "status": 503, "times": 3}]})
    runs.after(SUBMIT, lambda: warehouse.execute("UPDATE tickets SET body = 'rewritten'"))
    run = runs.run(desk_dag("retry_submit"))
    states = [process.state for process in runs.of(SUBMIT)]
    assert states[0] == "up_for_retry" and states[-1] == "success"
    assert runs.tries(run)[SUBMIT] == 2
    assert (traffic.creates, traffic.sent) == (3, 6)
    assert Books.of(run).job.revision == 1
    assert run.state == "success" and sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6]
    staged = [path.read_text() for path in (tmp_path / "ws").rglob("*.jsonl")]
    assert staged and not any("rewritten" in text for text in staged)


def test_a_retry_after_a_lost_reply_creates_no_second_batch(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, server: LocalServer
) -> None:
    server.set_scenario(
        {
            "calls": [
                {"on": "create", "fault": "lost_reply", "times": 1},
                {"on": "list", "fault": "error", "status": 503, "times": 3},
            ]
        }
    )
    run = runs.run(desk_dag("lost_reply"))
    assert runs.tries(run)[SUBMIT] == 2
    assert run.state == "success" and len(warehouse.labels()) == 6
    assert (traffic.creates, traffic.sent) == (1, 6)


def test_a_job_with_a_key_of_its_own_is_guarded_like_any_other(
    runs: Runs, traffic: Traffic, warehouse: Warehouse
) -> None:
    dag = desk_dag("job_key", job_key="tickets", task_args={"retries": 0, "retry_delay": timedelta(0)})
    run = runs.run(dag)
    books = Books.of(run, submit_task_id="tickets")
    assert books.job.state is JobState.SETTLED
    traffic.forget()
    runs.rerun(dag, run, SUBMIT)
    assert "BLLM-034" in str(runs.error_of(SUBMIT)) and not traffic.anything
