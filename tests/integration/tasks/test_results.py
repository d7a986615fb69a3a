"""Results as other tasks meet them: judge passes over a job, over a mapped group, and asset events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_batch_llm import (
    BatchLLMOperator,
    ResultsSource,
    RowPrompt,
    RowRetry,
    SqlSource,
    batch_llm_group,
    read_results,
)
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.exceptions import ConfigurationError, ResultsError
from tests.integration.tasks.desk import DEAD_LETTER, SUBMIT, Books, Traffic, Warehouse, group_values
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

START = datetime(2026, 1, 1, tzinfo=UTC)
BAD = {"rows": [{"match": {"contains": "number 3"}, "fault": "bad_request"}]}


def one_task(task_id: str, source: Any, prompt: str, **values: Any) -> BatchLLMOperator:
    return BatchLLMOperator(
        task_id=task_id, llm_conn_id="llm_batch", source=source, prompt=RowPrompt(prompt), retries=0,
        row_retry=RowRetry(max_rounds=0), **values,
    )  # fmt: skip


TICKETS = SqlSource("warehouse", "SELECT id, body, 'green' AS team FROM tickets ORDER BY id", key=["id"])


def judged_dag(dag_id: str, **source: Any) -> DAG:
    """A job, and a second one that judges its answers."""
    with DAG(dag_id, schedule=None, start_date=START) as dag:
        first = one_task("answer", TICKETS, "{{ row.body }}", carry=["team"], max_dead_letter_ratio=1)
        judge = ResultsSource(first.output, **source)
        one_task("judge", judge, "{{ row.output }} of {{ row.id }} {{ row.team }}{{ row.verdict }}")

        @task
        def count(told: dict[str, Any]) -> list[int]:
            return [len(list(read_results(told, dead=dead))) for dead in (False, True)]

        count(first.output)
    return dag


def test_a_judge_pass_runs_after_the_job_and_sees_answers_key_and_carried_columns(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    server.set_scenario(BAD)
    dag = judged_dag("judge_answers", include_dead=True)
    assert dag.task_dict["judge"].upstream_task_ids == {"answer"}
    run = runs.run(dag)
    assert run.state == "success"
    judged = {row["custom_id"]: row for row in read_results(runs.xcom(run, "judge"))}
    answered = {row["custom_id"]: row for row in read_results(runs.xcom(run, "answer"), dead=True)}
    assert sorted(judged) == sorted(answered) == [str(n) for n in range(1, 7)]
    assert runs.xcom(run, "count") == [5, 6], "a task reads them, too"
    by_names = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": "answer"}
    assert len(list(read_results(**by_names))) == 5
    assert judged["1"]["output"].endswith(f"{answered['1']['output']} of 1 greenok")
    assert judged["3"]["output"].endswith(" of 3 greenbad_request"), "dead rows are in the denominator"


def test_the_answers_of_a_mapped_group_are_laid_end_to_end(runs: Runs, warehouse: Warehouse) -> None:
    with DAG("judge_mapped", schedule=None, start_date=START) as dag:
        answers = BatchLLMOperator.partial(
            task_id="answer",
            llm_conn_id="llm_batch",
            prompt=RowPrompt("{{ row.body }}"),
            source=TICKETS,
            retries=0,
        ).expand(model=["m-1", "m-2"])
        one_task("judge", ResultsSource(answers.output, key=["map_index", "custom_id"]), "{{ row.output }}")
    run = runs.run(dag)
    assert run.state == "success"
    keys = [row["key"] for row in read_results(runs.xcom(run, "judge"))]
    assert keys == [{"map_index": m, "custom_id": str(n)} for m in (0, 1) for n in range(1, 7)]


def test_rows_of_several_jobs_need_a_key_that_tells_them_apart(runs: Runs, traffic: Traffic) -> None:
    with DAG("judge_unkeyed", schedule=None, start_date=START) as dag:

        @task
        def refs() -> list[str]:
            return ["a" * 32, "b" * 32]

        one_task("judge", ResultsSource(refs()), "{{ row.output }}")
    run = runs.run(dag)
    assert run.state == "failed" and not traffic.anything
    assert "BLLM-017" in str(runs.error_of("judge")) and "key=['map_index'" in str(runs.error_of("judge"))


def test_a_job_that_has_not_settled_is_refused_before_anything_is_sent(
    runs: Runs, server: LocalServer, traffic: Traffic, warehouse: Warehouse
) -> None:
    run = runs.run(judged_dag("judge_early"))
    book = Books.of(run, "answer")
    job = book.job
    again = book.ledger.begin_revision(
        job, conn_id=job.conn_id, provider=job.provider, endpoint=job.endpoint, model=job.model, seen={},
        deadline_at=None, fresh=False,
    )  # fmt: skip
    assert again is not None and again.state is JobState.STAGING
    traffic.forget()
    dag = judged_dag("judge_early")
    assert runs.rerun(dag, run, "judge") == "failed"
    error = runs.error_of("judge")
    assert isinstance(error, AirflowFailException) and "is staging: its results are read when" in str(error)
    assert not traffic.anything


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ResultsSource(), "takes a task's output"),
        (lambda: ResultsSource("a" * 32, dag_id="d"), "takes a task's output"),
        (lambda: ResultsSource(dag_id="d", run_id="r"), "takes a task's output"),
        (lambda: ResultsSource({"a", "b"}), "a set has no order"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused_when_the_dag_is_parsed(
    make: Callable[[], Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make()


@pytest.mark.parametrize(
    ("value", "told"), [(None, "returned nothing"), (7, "a int names"), ([7], "reference 1")]
)
def test_what_names_no_job_is_refused_when_the_task_runs(value: Any, told: str) -> None:
    with pytest.raises(ResultsError, match=told):
        ResultsSource("{{ x }}").resolve({"render": lambda _: value})
    assert ResultsSource("{{ x }}").resolve({"render": lambda _: []}).drafts


def test_columns_that_stand_for_something_else_keep_apart() -> None:
    from airflow_batch_llm.results.finding import Place
    from airflow_batch_llm.sources.results import _columns

    row = {
        "custom_id": "a",
        "output": "x",
        "model": "m",
        "origin": "paid",
        "key": {"model": "k"},
        "carry": {"output": 1},
    }
    columns = _columns(Place(None, "results/1"), row)  # type: ignore[arg-type]
    assert (columns["model"], columns["key_model"]) == ("m", "k")
    assert (columns["output"], columns["carry_output"]) == ("x", 1)


# -- asset events ----------------------------------------------------------------------------------
LABELS, COPY = Asset("labels_table"), Asset("labels_copy")


def asset_extras(name: str) -> list[dict[str, Any]]:
    """Return what the events of an asset say, in order."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent.extra).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        return list(session.scalars(query.where(AssetModel.name == name).order_by(AssetEvent.id)))


def test_the_asset_event_of_a_job_carries_its_counts(
    runs: Runs, server: LocalServer, warehouse: Warehouse
) -> None:
    server.set_scenario(BAD)
    with DAG("asset_group", schedule=None, start_date=START) as dag:
        batch_llm_group(**{**group_values(), "max_dead_letter_ratio": 1, "row_retry": RowRetry(max_rounds=0)})
        dag.task_dict[DEAD_LETTER].outlets = [LABELS, COPY, AssetAlias("any_labels")]
    run = runs.run(dag)
    told = runs.xcom(run, DEAD_LETTER)
    extras = asset_extras("labels_table")
    assert run.state == "success" and extras == asset_extras("labels_copy")
    assert extras == [
        {
            "job_id": Books.of(run, SUBMIT).job_id,
            "rows": 6,
            "answered": 5,
            "dead": 1,
            "reused": 0,
            "results": told["results"],
        }
    ]


def test_a_red_job_makes_no_asset_event(runs: Runs, server: LocalServer, warehouse: Warehouse) -> None:
    server.set_scenario(BAD)
    with DAG("asset_red", schedule=None, start_date=START) as dag:
        one_task("label", TICKETS, "{{ row.body }}", outlets=[Asset("red_labels")])
    assert runs.run(dag).state == "failed" and asset_extras("red_labels") == []
