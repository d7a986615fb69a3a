"""Real faults as small files (``tests/cases``), at the level of the backend: objects and rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.backends.openai_lines import line_encoder
from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.core.jsonl import iter_lines
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, RequestTemplate, Row
from airflow_batch_llm.core.verdicts import DEFAULT_DISPOSITIONS, Disposition, Verdict
from tests.unit.backends.conftest import CASES, Bench
from tests.unit.backends.scripted_server import Reply


def rows(case: str, *names: str) -> dict[str, Row]:
    """Return the rows of a case's result files by id."""
    found: dict[str, Row] = {}
    for name in names:
        for _, line in iter_lines([(CASES / case / name).read_bytes()]):
            row = decode_row(line)
            found[row.wire_id] = row
    return found


def verdicts(found: dict[str, Row]) -> dict[str, str]:
    return {wire_id: row.verdict.value for wire_id, row in found.items()}


def dispositions(found: dict[str, Row]) -> dict[str, Disposition]:
    return {wire_id: DEFAULT_DISPOSITIONS[row.verdict] for wire_id, row in found.items()}


def batch_of(case: str, bench: Bench, **changes: Any) -> RemoteBatch:
    """Retrieve the batch object of a case's first exchange over HTTP."""
    exchange = json.loads((CASES / case / "case.json").read_text())["exchange"][0]
    shown = json.loads(exchange.partition("-> ")[2]) | changes
    bench.server.script = [Reply(200, shown)]
    return bench.run(lambda backend: backend.retrieve(shown["id"]))


def kinds(batch: RemoteBatch) -> list[str]:
    return [file.kind for file in batch.files]


def test_D01_both_files_are_read_in_any_order(bench: Bench) -> None:
    batch = batch_of("D01", bench)
    assert (batch.status, kinds(batch)) == (RemoteStatus.DONE, ["output", "error"])
    found = rows("D01", "output.jsonl", "errors.jsonl")
    assert verdicts(found) == {"r-1": "ok", "r-2": "bad_request", "r-3": "ok"}
    assert (found["r-2"].code, found["r-2"].message) == ("invalid_value", "max_tokens is too large")
    assert found["r-1"].text == "A1"


def test_D01_an_error_file_id_of_nothing_is_no_file(bench: Bench) -> None:
    assert kinds(batch_of("D01", bench, error_file_id="")) == ["output"]


def test_D02_every_row_failed_and_there_is_no_output_file(bench: Bench) -> None:
    assert kinds(batch_of("D02", bench)) == ["error"]
    found = rows("D02", "errors.jsonl")
    assert verdicts(found) == {"r-1": "bad_request", "r-2": "bad_request"}
    assert {row.message for row in found.values()} == {"temperature must be <= 2"}


def test_D03_what_was_paid_before_the_expiry_lands(bench: Bench) -> None:
    batch = batch_of("D03", bench)
    assert (batch.status, kinds(batch)) == (RemoteStatus.EXPIRED, ["output", "error"])
    found = rows("D03", "output.jsonl", "errors.jsonl")
    assert dispositions(found) == {
        "r-1": Disposition.RETRY_FREE,
        "r-2": Disposition.LAND,
        "r-3": Disposition.RETRY_FREE,
    }


def test_D09_the_verdict_is_in_status_and_body() -> None:
    found = rows("D09", "output.jsonl", "errors.jsonl")
    assert verdicts(found) == {
        "r-1": "server_error",
        "r-2": "empty",
        "r-3": "rate_limited",
        "r-4": "server_error",
        "r-5": "too_large",
        "r-6": "timeout",
        "r-7": "ok",
    }
    retried = {wire_id for wire_id, done in dispositions(found).items() if done is Disposition.RETRY}
    assert retried == {"r-1", "r-2", "r-3", "r-4", "r-6"}
    assert dispositions(found)["r-5"] is Disposition.DEAD


def test_D10_marks_line_ends_and_blank_lines_lose_no_row() -> None:
    found = rows("D10", "output.jsonl")
    assert {wire_id: row.text for wire_id, row in found.items()} == {"r-1": "A", "r-2": "B"}
    assert all(row.verdict is Verdict.OK for row in found.values())


def test_D10_lines_made_of_such_an_input_are_clean() -> None:
    encode = line_encoder(RequestTemplate("/v1/chat/completions", "", native=True), DIALECTS["openai"])
    sent = b""
    for _, line in iter_lines([(CASES / "D10" / "input.jsonl").read_bytes()]):
        body = json.loads(line)["body"]
        sent += encode("w", json.dumps(body, indent=1).replace("\n", "\r\n").encode())
    assert sent.endswith(b"}\n")
    assert sent.count(b"\n") == 2
    assert b"\r" not in sent
    assert not sent.startswith(b"\xef\xbb\xbf")


def test_D13_a_reply_of_200_is_not_yet_an_answer() -> None:
    found = rows("D13", "output.jsonl")
    assert verdicts(found) == {"r-1": "filtered", "r-2": "refused", "r-3": "ok", "r-4": "empty"}
    assert found["r-2"].text == "I can't help with that."
    assert found["r-3"].output[0]["function"]["name"] == "out"
    assert dispositions(found)["r-1"] is dispositions(found)["r-2"] is Disposition.DEAD


@pytest.mark.parametrize(
    ("wire_id", "verdict", "disposition"),
    [
        ("r-1", Verdict.OK, Disposition.LAND),
        ("r-2", Verdict.BAD_REQUEST, Disposition.DEAD),
        ("r-3", Verdict.SERVER_ERROR, Disposition.RETRY),
    ],
)
def test_D17_failures_in_the_one_file_are_failures(
    wire_id: str, verdict: Verdict, disposition: Disposition
) -> None:
    found = rows("D17", "output.jsonl")
    assert found[wire_id].verdict is verdict
    assert dispositions(found)[wire_id] is disposition
    assert "r-4" not in found
