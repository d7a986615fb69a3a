"""What servers that nobody here wrote have sent, byte for byte (``peers/``; see docs/peers.md)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.core.jsonl import iter_lines
from airflow_batch_llm.core.model import BatchError, RemoteStatus, ResultFile, Row, Usage
from airflow_batch_llm.core.verdicts import DEFAULT_DISPOSITIONS, Disposition, Verdict
from airflow_batch_llm.exceptions import NotFound
from tests.unit.backends.conftest import Bench
from tests.unit.backends.scripted_server import Reply

PEERS = Path(__file__).parent / "peers"


def rows(name: str) -> list[Row]:
    return [decode_row(line) for _, line in iter_lines([(PEERS / name).read_bytes()])]


def sent(name: str, status: int = 200) -> Reply:
    return Reply(status, (PEERS / name).read_bytes(), {"content-type": "application/json"})


def test_ogx_puts_the_answer_into_a_string_and_ends_its_file_without_a_line_end() -> None:
    assert rows("ogx_output.jsonl") == [
        Row("r-1", Verdict.OK, text="echo: hi", finish_reason="stop", model="chat/m-1", usage=Usage(3, 4))
    ]


def test_ogx_names_the_status_of_a_failed_row_in_its_text_only() -> None:
    failed = rows("ogx_error.jsonl")
    assert [(row.wire_id, row.verdict.value) for row in failed] == [
        ("r-1", "server_error"),
        ("r-2", "bad_request"),
        ("r-3", "rate_limited"),
        ("r-4", "bad_request"),
        ("r-5", "server_error"),
    ]
    retried = [row.wire_id for row in failed if DEFAULT_DISPOSITIONS[row.verdict] is Disposition.RETRY]
    assert retried == ["r-1", "r-3", "r-5"]


def test_ogx_refuses_a_batch_line_by_line_although_they_share_the_fault(bench: Bench) -> None:
    bench.server.script = [sent("ogx_failed.json")]
    batch = bench.run(lambda backend: backend.retrieve("batch_1d3411ea25eb4c4a"), "generic")
    assert (batch.status, batch.files, batch.expires_at) == (RemoteStatus.FAILED, (), None)
    text = "Model 'm-1' does not exist or is not supported"
    assert batch.errors == (BatchError("model_not_found", 1, "body.model", text),)


@pytest.mark.parametrize(
    ("row", "hours", "status"),
    [("generic", 24.5, "cancelling"), ("generic", 25.5, "cancelled"), ("openai", 1000, "cancelling")],
)
def test_a_cancel_that_ogx_never_ends_has_ended_when_the_window_is_long_over(
    bench: Bench, mocker: MockerFixture, row: str, hours: float, status: str
) -> None:
    mocker.patch("airflow_batch_llm.backends.openai.time.time", return_value=1_795_979_424 + hours * 3600)
    bench.server.script = [sent("ogx_cancelling.json")]
    batch = bench.run(lambda backend: backend.retrieve("batch_02ad791536e34389"), row)
    assert (batch.status.value, batch.raw_status) == (status, "cancelling")


def test_aibrix_lets_a_batch_wait_in_a_status_of_its_own(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server.script = [sent("aibrix_scheduling.json")]
    with caplog.at_level(logging.WARNING):
        batch = bench.run(lambda backend: backend.retrieve("4ecd724e"), "generic")
    assert (batch.status, batch.raw_status, batch.files) == (RemoteStatus.PENDING, "scheduling", ())
    assert not caplog.records, "a status that is known is not told as unknown"


def test_aibrix_calls_an_expired_batch_completed_and_names_a_file_that_it_does_not_have(
    bench: Bench, tmp_path: Path
) -> None:
    bench.server.script = [sent("aibrix_expired.json")]
    batch = bench.run(lambda backend: backend.retrieve("27c58d3f"), "generic")
    assert batch.status is RemoteStatus.DONE and batch.counts == {
        "total": 20000,
        "completed": 19723,
        "failed": 0,
    }
    (file,) = batch.files
    assert file == ResultFile("output", "e1a2f8c2-3713-38ef-aade-8fc268d66791")
    bench.server.script = [sent("aibrix_no_content.json", 404), sent("aibrix_no_content.json", 404)]
    with pytest.raises(NotFound):
        bench.run(lambda backend: backend.download(batch, file, tmp_path / "output.jsonl"), "generic")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["ogx_no_input.json", "aibrix_no_input.json"])
def test_a_batch_whose_upload_was_not_found_says_so(bench: Bench, name: str) -> None:
    bench.server.script = [sent(name)]
    (error,) = bench.run(lambda backend: backend.retrieve("any"), "generic").errors
    assert (error.line, error.param) == (None, "input_file_id")


def test_aibrix_names_the_line_that_it_refuses_in_its_text_only(bench: Bench) -> None:
    bench.server.script = [sent("aibrix_line.json")]
    (error,) = bench.run(lambda backend: backend.retrieve("bf75ef22"), "generic").errors
    assert (error.code, error.line, error.param) == ("validation_error", 2, None)


def test_aibrix_refuses_to_cancel_what_has_ended(bench: Bench) -> None:
    bench.server.script = [sent("aibrix_no_cancel.json", 409), sent("aibrix_expired.json")]
    batch = bench.run(lambda backend: backend.cancel("27c58d3f"), "generic")
    assert batch.status is RemoteStatus.DONE
