"""D02: every row failed, the batch is ``completed`` all the same and has no output file."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_batch_llm import OpenAIBatchFile, batch_llm_group
from airflow_batch_llm.core.model import JobKey, JobState
from airflow_batch_llm.hooks.state import open_ledger
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider

MESSAGE = "temperature must be <= 2"


@pytest.mark.parametrize("absent", [None, "", {}])
def test_d02_all_rows_die_with_their_message_and_are_not_sent_again(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    absent: Any,
) -> None:
    d02 = case("D02")
    server = provider(d02.replay(output_file_id=absent))
    bench = job(server, d02.input)
    settled = bench.run()
    assert settled.state is JobState.SETTLED
    assert bench.answers() == []
    assert {x.custom_id: x.message for x in bench.letters()} == {"r-1": MESSAGE, "r-2": MESSAGE}
    assert server.sent() == [["say 1", "say 2"]]
    assert set(server.statuses()) == {200}
    bench.assert_accounted(["r-1", "r-2"])


def test_d02_the_run_is_red_and_the_error_says_what_the_rows_say(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    sync_dag: Callable[[DAG], DAG],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    d02 = case("D02")
    server = provider(d02.replay())
    account = {"conn_type": "batch_llm", "host": server.url, "password": server.api_key}
    monkeypatch.setenv("AIRFLOW_CONN_REPLAY", json.dumps(account | {"extra": {"dialect": "openai"}}))
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY", "0")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN", "0.05")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{tmp_path}/ws")
    errors: list[str] = []
    with DAG("case_d02", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        batch_llm_group(
            group_id="ask",
            llm_conn_id="replay",
            source=OpenAIBatchFile(str(d02.input)),
            task_args={
                "retries": 0,
                "on_failure_callback": lambda context: errors.append(str(context["exception"])),
            },
        )
    run = sync_dag(dag).test()
    assert str(run.state) == "failed"
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert states == {
        "ask.submit": "success",
        "ask.reconcile": "success",
        "ask.retry": "success",
        "ask.dead_letter": "failed",
    }
    (error,) = errors
    assert MESSAGE in error and "2 rows" in error
    ledger = open_ledger()
    key = JobKey(ledger.namespace(), "case_d02", run.run_id, "ask.submit")
    letters = list(ledger.dead_letters(key.job_id))
    assert {letter.custom_id: letter.message for letter in letters} == {"r-1": MESSAGE, "r-2": MESSAGE}
