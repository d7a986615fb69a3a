"""Schemas and sinks at work in whole jobs, without Airflow's tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.sinks import SqlSink
from tests.integration.engine.conftest import bench, ledger, running_server, server
from tests.job_bench import Bench

__all__ = ["bench", "ledger", "running_server", "server"]

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(3)}
OBJECT = answer_schema({"type": "object"})


@pytest.fixture
def monday(bench: Callable[..., Bench], sqlite_database: str) -> Bench:
    """A settled job whose answers are no JSON, although JSON was asked for."""
    sink = SqlSink(sqlite_database, "answers", key=["id"], create=True).resolve({})
    job = bench(texts=TEXTS, run_id="monday", judge=Judge(OBJECT), policy=RowRetry(max_rounds=0), sink=sink)
    job.run()
    return job


def test_what_is_wrong_with_an_answer_reaches_its_dead_letter(monday: Bench) -> None:
    letters = monday.letters(LetterState.OPEN)

    assert sorted(letter.custom_id for letter in letters) == sorted(TEXTS)
    assert {(letter.code, letter.message) for letter in letters} == {("not_json", "$: json_invalid")}


def test_an_older_run_that_is_settled_once_more_leaves_the_rows_of_a_newer_one(
    monday: Bench, bench: Callable[..., Bench], sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    tuesday = bench(texts={"t-1": "ticket number 1."}, run_id="tuesday", sink=monday.sink)
    tuesday.run()
    assert sql("SELECT id, _run_id FROM answers") == [("t-1", "tuesday")]

    wider = replace(monday, judge=Judge())
    wider.until(Until.RECONCILED)
    wider.call(lambda engine: engine.rejudge())
    settled = wider.until(Until.SETTLED)

    assert (settled.counts["answered"], settled.counts["landed"]) == (3, 2)
    assert sql("SELECT id, _run_id FROM answers ORDER BY id") == [
        ("t-0", "monday"),
        ("t-1", "tuesday"),
        ("t-2", "monday"),
    ]
    written = dict(sql("SELECT _run_id, min(_job_created_at) FROM answers GROUP BY _run_id"))
    assert written == {"monday": wider.job().created_at, "tuesday": tuesday.job().created_at}
