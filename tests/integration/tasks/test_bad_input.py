"""What bad input gets: a clear error before any money is spent, at once or after retries."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_batch_llm import FileSource, OpenAIBatchFile, RowPrompt, RowsSource, SqlSink, SqlSource
from airflow_batch_llm.exceptions import SourceError
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import RECONCILE, SUBMIT, Traffic, Warehouse, desk_dag
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer


@pytest.fixture
def refusal(runs: Runs, traffic: Traffic) -> Any:
    """Run a DAG that must be refused at once, with nothing sent; gives the message."""

    def refuse(dag: DAG) -> str:
        run = runs.run(dag)
        error = runs.error_of(SUBMIT)
        assert isinstance(error, AirflowFailException)
        assert runs.tries(run)[SUBMIT] == 1
        assert runs.states(run)[SUBMIT] == "failed"
        assert runs.states(run)[RECONCILE] == "upstream_failed"
        assert run.state == "failed"
        assert not traffic.anything
        return str(error)

    return refuse


def test_a_prompt_that_names_a_missing_column_names_column_and_row(refusal: Any) -> None:
    message = refusal(desk_dag("missing_column", prompt=RowPrompt("{{ row.body }} {{ row.customer }}")))
    assert "BLLM-012" in message
    assert "'customer'" in message and "row '1'" in message


def test_an_unknown_connection_fails_at_once(refusal: Any) -> None:
    message = refusal(desk_dag("unknown_llm", llm_conn_id="nowhere"))
    assert "BLLM-001" in message and "'nowhere'" in message


def test_a_connection_of_another_type_fails_at_once(refusal: Any) -> None:
    message = refusal(desk_dag("wrong_type", llm_conn_id="warehouse"))
    assert "BLLM-001" in message and "'sqlite'" in message and "batch_llm" in message


def test_an_unknown_connection_of_the_source_fails_at_once(refusal: Any) -> None:
    source = SqlSource("no_warehouse", "SELECT id, body FROM tickets", key=["id"])
    assert "'no_warehouse'" in refusal(desk_dag("unknown_source", source=source))


def test_duplicate_ids_are_told_with_their_lines(refusal: Any, tmp_path: Path) -> None:
    path = tmp_path / "tickets.jsonl"
    path.write_text('{"id":"a","body":"x"}\n{"id":"b","body":"y"}\n\n{"id":"a","body":"z"}\n')
    message = refusal(desk_dag("duplicates", source=FileSource(str(path), key="id")))
    assert "BLLM-010" in message
    assert "line 4: repeats the custom_id of line 1" in message


def test_a_broken_line_is_told_with_file_and_line(refusal: Any, tmp_path: Path) -> None:
    path = tmp_path / "tickets.jsonl"
    path.write_text('{"id":"a","body":"x"}\n{"id":"b",\n{"id":"c","body":"z"}\n')
    message = refusal(desk_dag("broken_line", source=FileSource(str(path), key="id")))
    assert "BLLM-011" in message and str(path) in message and "line 2" in message


def test_an_invalid_output_schema_is_refused(refusal: Any) -> None:
    message = refusal(desk_dag("bad_schema", output_schema={"type": "nonsense"}, sink=None))
    assert "BLLM-013" in message


def test_an_output_schema_that_cannot_be_imported_is_refused(refusal: Any) -> None:
    message = refusal(desk_dag("no_schema", output_schema="airflow_batch_llm.nowhere:Label", sink=None))
    assert "BLLM-013" in message and "airflow_batch_llm.nowhere" in message


def test_parameters_that_a_batch_lacks_are_refused_as_a_whole(refusal: Any) -> None:
    message = refusal(desk_dag("stream", params={"stream": True}))
    assert "BLLM-023" in message and "stream" in message


def test_a_native_file_for_an_unknown_endpoint_is_refused_as_a_whole(refusal: Any, tmp_path: Path) -> None:
    path = tmp_path / "native.jsonl"
    path.write_text(
        '{"custom_id":"a","method":"POST","url":"/v1/nothing","body":{"model":"m","input":"x"}}\n'
    )
    values = {"source": OpenAIBatchFile(str(path)), "prompt": None, "output_schema": None, "sink": None}
    assert "/v1/nothing" in refusal(desk_dag("unknown_endpoint", **values))


def test_a_missing_table_is_told_before_money_is_spent(refusal: Any) -> None:
    message = refusal(desk_dag("no_table", sink=SqlSink("warehouse", "nowhere", key=["id"])))
    assert "BLLM-060" in message and "nowhere" in message and "create=True" in message


def test_a_sink_key_that_the_source_lacks_is_told_before_money_is_spent(refusal: Any) -> None:
    sink = SqlSink("warehouse", "labels", key=["ticket"], create=True)
    message = refusal(desk_dag("wrong_key_column", sink=sink))
    assert "BLLM-060" in message and "'ticket'" in message


def test_a_table_with_other_columns_is_told_with_the_statement_that_mends_it(
    refusal: Any, warehouse: Warehouse
) -> None:
    warehouse.execute("CREATE TABLE labels (id INTEGER PRIMARY KEY, tag TEXT)")
    message = refusal(desk_dag("other_columns", sink=SqlSink("warehouse", "labels", key=["id"])))
    assert "BLLM-060" in message and "'label'" in message and "ADD COLUMN" in message


def test_a_template_that_does_not_compile_is_told_with_its_line(refusal: Any) -> None:
    message = refusal(desk_dag("broken_template", prompt=RowPrompt("Label:\n{{ row.body | }}")))
    assert "BLLM-012" in message and "line 2" in message


def test_a_schema_that_the_protocol_cannot_express_is_refused_by_name(refusal: Any) -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    message = refusal(desk_dag("list_schema", output_schema=schema, sink=None))
    assert "BLLM-013" in message and "object" in message
    message = refusal(desk_dag("schema_of_vectors", endpoint="embeddings", max_tokens=None, sink=None))
    assert "output schema" in message and "embeddings" in message


@pytest.mark.parametrize(
    ("name", "content"), [("absent.parquet", None), ("text.parquet", b"no Parquet at all")]
)
def test_a_file_that_cannot_be_read_is_told_by_its_path(
    refusal: Any, tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = refusal(desk_dag(f"unreadable_{path.stem}", source=FileSource(str(path), key="id")))
    assert "BLLM-011" in message and str(path) in message


@pytest.mark.parametrize("argument", ["validate", "redact"])
def test_a_function_that_cannot_be_imported_is_refused_by_name(refusal: Any, argument: str) -> None:
    message = refusal(desk_dag(f"no_{argument}", **{argument: "airflow_batch_llm.nowhere:check"}))
    assert argument in message and "airflow_batch_llm.nowhere" in message


def test_a_local_ledger_is_refused_where_workers_may_be_elsewhere(
    refusal: Any, monkeypatch: pytest.MonkeyPatch, warehouse: Warehouse
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    message = refusal(desk_dag("celery"))
    assert "BLLM-002" in message and "CeleryExecutor" in message and "ledger_conn_id" in message


def test_a_local_ledger_serves_where_all_workers_share_the_disk(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, warehouse: Warehouse
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__ALLOW_LOCAL_STATE", "True")
    assert runs.run(desk_dag("shared_disk")).state == "success"
    assert len(warehouse.labels()) == 6


def test_a_list_over_48_kb_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(SourceError, match="48 KB"):
        RowsSource([{"id": n, "body": "x" * 1000} for n in range(60)], key="id")


# -- the provider ----------------------------------------------------------------------------------
def test_a_wrong_key_fails_at_once_with_one_clear_message(
    runs: Runs, traffic: Traffic, monkeypatch: pytest.MonkeyPatch, server: LocalServer
) -> None:
    set_llm(monkeypatch, server, password="not-the-key-at-all")
    run = runs.run(desk_dag("wrong_key"))
    error = runs.error_of(SUBMIT)
    assert isinstance(error, AirflowFailException)
    assert "BLLM-020" in str(error) and "not-the-key-at-all" not in str(error)
    assert len(runs.of(SUBMIT)) == 1 and runs.tries(run)[SUBMIT] == 1
    assert traffic.uploads == 1 and traffic.creates == 0
    assert run.state == "failed"


def test_an_unreachable_url_is_retried(
    runs: Runs, traffic: Traffic, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, server: LocalServer
) -> None:
    set_llm(monkeypatch, server, host=f"http://127.0.0.1:{closed_port()}/v1")
    runs.after(SUBMIT, lambda: set_llm(monkeypatch, server))
    run = runs.run(desk_dag("unreachable"))
    first = runs.of(SUBMIT)[0]
    assert first.state == "up_for_retry"
    assert "BLLM-022" in str(first.error) and not isinstance(first.error, AirflowFailException)
    assert runs.tries(run)[SUBMIT] == 2
    assert run.state == "success"
    assert traffic.creates == 1 and sorted(warehouse.labels()) == [1, 2, 3, 4, 5, 6]


def closed_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
