"""Everything else that is asked of the provider: files, results, lists, cancels, deletions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.backends.gemini import GeminiBackend
from airflow_batch_llm.backends.gemini_objects import display_name
from airflow_batch_llm.core.ids import META_JOB, META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RemoteStatus
from airflow_batch_llm.exceptions import (
    AuthError,
    InDoubt,
    NotFound,
    ProviderError,
    Refused,
    TransferError,
    Unreachable,
)
from tests.unit.backends.gemini.conftest import Bench, Reply, operation

ROWS = [b'{"key":"a-1","response":{}}', b'{"key":"a-2","response":{}}', b'{"key":"a-3","response":{}}']
FORBIDDEN = Reply(403, {"error": {"code": 403, "status": "PERMISSION_DENIED"}})
GONE = Reply(404, {"error": {"code": 404, "status": "NOT_FOUND"}})


def ended(good: int = 3, **changes: Any) -> dict[str, Any]:
    stats = {"requestCount": "3", "successfulRequestCount": str(good)}
    return operation("BATCH_STATE_SUCCEEDED", done=True, metadata={"batchStats": stats}, **changes)


IN_FILE = ended(response={"responsesFile": "files/batch-b1"})


# -- uploads ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "wait"), [("PROCESSING", 5.0), ("ACTIVE", None), ("STATE_UNSPECIFIED", None), (None, None)]
)
def test_an_upload_is_ready_when_its_state_says_so(
    bench: Bench, state: str | None, wait: float | None
) -> None:
    bench.plays(Reply(200, {"name": "files/f1", "state": state}))
    assert bench.run(lambda backend: backend.ready("files/f1")) == wait
    assert bench.sent() == [("GET", "/v1beta/files/f1")]


def test_an_upload_that_could_not_be_read_is_refused(bench: Bench) -> None:
    bench.plays(Reply(200, {"name": "files/f1", "state": "FAILED"}))
    with pytest.raises(Refused) as told:
        bench.run(lambda backend: backend.ready("files/f1"))
    assert told.value.reason == "file_failed"


@pytest.mark.parametrize("reply", [FORBIDDEN, GONE])
def test_an_upload_that_is_gone_is_forbidden_or_unknown(bench: Bench, reply: Reply) -> None:
    bench.plays(reply)
    with pytest.raises(NotFound):
        bench.run(lambda backend: backend.ready("files/f1"))


@pytest.mark.parametrize("reply", [Reply(200, {}), FORBIDDEN, GONE])
def test_a_file_that_is_gone_already_is_fine(bench: Bench, reply: Reply) -> None:
    bench.plays(reply)
    bench.run(lambda backend: backend.delete_file("files/f1"))
    assert bench.sent() == [("DELETE", "/v1beta/files/f1")]


# -- results ---------------------------------------------------------------------------------------
def fetched(bench: Bench, local: Path) -> bytes:
    async def call(backend: GeminiBackend) -> None:
        batch = await backend.retrieve("batches/b1")
        (file,) = batch.files
        await backend.download(batch, file, local)

    bench.run(call)
    return local.read_bytes()


def results(*rows: bytes) -> Reply:
    return Reply(200, b"\n".join(rows) + b"\n")


def test_results_are_fetched_from_the_batchs_file(bench: Bench, tmp_path: Path) -> None:
    bench.plays(Reply(200, IN_FILE), Reply(200, IN_FILE), results(*ROWS))
    assert fetched(bench, tmp_path / "raw.jsonl").splitlines() == ROWS
    assert bench.sent()[-1] == ("GET", "/download/v1beta/files/batch-b1:download?alt=media")


def test_results_in_the_batch_itself_become_lines(bench: Bench, tmp_path: Path) -> None:
    rows = [{"metadata": {"key": f"a-{n}"}, "response": {"text": "\ud83d"}} for n in range(3)]
    shown = ended(response={"inlinedResponses": {"inlinedResponses": rows}})
    bench.plays(Reply(200, shown), Reply(200, shown))
    lines = fetched(bench, tmp_path / "raw.jsonl").splitlines()
    assert [json.loads(line)["metadata"]["key"] for line in lines] == ["a-0", "a-1", "a-2"]
    assert json.loads(lines[0])["response"] == {"text": "\ufffd"}


def test_a_cut_at_the_end_of_a_line_is_read_again(bench: Bench, tmp_path: Path) -> None:
    bench.plays(
        Reply(200, IN_FILE),
        *[Reply(200, IN_FILE), results(*ROWS[:2])],
        *[Reply(200, IN_FILE), results(*ROWS)],
    )
    assert fetched(bench, tmp_path / "raw.jsonl").splitlines() == ROWS


def test_a_row_that_is_cut_off_is_no_row(bench: Bench, tmp_path: Path) -> None:
    cut = Reply(200, b"\n".join(ROWS)[:-4])
    whole = Reply(200, b"\n".join(ROWS))  # the last line needs no end
    bench.plays(Reply(200, IN_FILE), Reply(200, IN_FILE), cut, Reply(200, IN_FILE), whole)
    assert fetched(bench, tmp_path / "raw.jsonl").splitlines() == ROWS


def test_rows_that_three_reads_lack_alike_are_truly_missing(bench: Bench, tmp_path: Path) -> None:
    bench.plays(Reply(200, IN_FILE), *[Reply(200, IN_FILE), results(*ROWS[:2])] * 3)
    assert fetched(bench, tmp_path / "raw.jsonl").splitlines() == ROWS[:2]


def test_reads_that_end_elsewhere_each_time_are_no_result(bench: Bench, tmp_path: Path) -> None:
    reads = [results(*ROWS[:2]), results(*ROWS[:1]), results(ROWS[1])] * 2
    bench.plays(Reply(200, IN_FILE), *[one for read in reads for one in (Reply(200, IN_FILE), read)])
    with pytest.raises(TransferError):
        fetched(bench, tmp_path / "raw.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_results_that_went_away_are_told(bench: Bench, tmp_path: Path) -> None:
    bench.plays(Reply(200, IN_FILE), Reply(200, ended()))
    with pytest.raises(NotFound):
        fetched(bench, tmp_path / "raw.jsonl")
    bench.plays(Reply(200, IN_FILE), Reply(200, IN_FILE), GONE)
    with pytest.raises(NotFound):
        fetched(bench, tmp_path / "raw.jsonl")


# -- a batch ---------------------------------------------------------------------------------------
def test_a_batch_that_the_provider_denies_is_not_found(bench: Bench) -> None:
    bench.plays(GONE)
    with pytest.raises(NotFound):
        bench.run(lambda backend: backend.retrieve("batches/b1"))


@pytest.mark.parametrize("name", ["", "batches/", "batch_123", "models/x", "batches/../files/x"])
def test_an_id_of_another_protocol_is_not_asked_for(bench: Bench, name: str) -> None:
    bench.plays(GONE)
    with pytest.raises(ProviderError):
        bench.run(lambda backend: backend.retrieve(name))
    assert all(path.count("/") == 3 for _, path in bench.sent())


def test_a_cancel_shows_the_batch_after_it(bench: Bench) -> None:
    bench.plays(Reply(200, {}), Reply(200, operation("BATCH_STATE_CANCELLED")))
    assert bench.run(lambda backend: backend.cancel("batches/b1")).status is RemoteStatus.CANCELLED
    assert bench.sent() == [("POST", "/v1beta/batches/b1:cancel"), ("GET", "/v1beta/batches/b1")]


def test_a_cancel_of_what_has_ended_shows_how(bench: Bench) -> None:
    refusal = Reply(400, {"error": {"code": 400, "status": "FAILED_PRECONDITION"}})
    bench.plays(refusal, Reply(200, IN_FILE))
    assert bench.run(lambda backend: backend.cancel("batches/b1")).status is RemoteStatus.DONE
    bench.plays(refusal, Reply(200, operation()))
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.cancel("batches/b1"))


def test_results_are_deleted_with_their_batch_once_it_has_ended(bench: Bench) -> None:
    bench.plays(Reply(200, IN_FILE), Reply(200, {}))
    bench.run(lambda backend: backend.delete_file("batches/b1"))
    assert bench.sent() == [("GET", "/v1beta/batches/b1"), ("DELETE", "/v1beta/batches/b1")]


def test_a_batch_that_runs_is_not_deleted_and_one_that_is_gone_is_fine(bench: Bench) -> None:
    bench.plays(Reply(200, operation()))
    with pytest.raises(Refused) as told:
        bench.run(lambda backend: backend.delete_file("batches/b1"))
    assert told.value.reason == "not_ended"
    bench.plays(GONE)
    bench.run(lambda backend: backend.delete_file("batches/b1"))
    assert {method for method, _ in bench.sent()} == {"GET"}


# -- lists -----------------------------------------------------------------------------------------
def listed(number: int, token: str = "other") -> dict[str, Any]:
    name = display_name({META_TOKEN: token, META_JOB: "j", META_ORIGIN: "o"})
    created = f"2026-11-29T10:{59 - number:02}:00Z"
    return operation(metadata={"displayName": name, "createTime": created}) | {"name": f"batches/b{number}"}


def test_a_batch_is_found_by_its_token_on_a_later_page(bench: Bench) -> None:
    foreign = {"name": "operations/o1", "metadata": {}}
    first = {"operations": [listed(1), foreign, operation()], "nextPageToken": "p/2"}
    bench.plays(Reply(200, first), Reply(200, {"operations": [listed(2, "mine")]}))
    (found,) = bench.run(lambda backend: backend.find("mine"))
    assert found.id == "batches/b2"
    assert [path for _, path in bench.sent()] == [
        "/v1beta/batches?pageSize=100",
        "/v1beta/batches?pageSize=100&pageToken=p%2F2",
    ]


def test_a_list_of_nothing_has_an_end(bench: Bench) -> None:
    bench.plays(Reply(200, {}), Reply(200, {"operations": [], "nextPageToken": ""}))
    assert bench.run(lambda backend: backend.find("mine")) == []
    assert bench.run(lambda backend: backend.find_origin("mine")) == []


def test_a_list_that_repeats_itself_proves_nothing(bench: Bench) -> None:
    page = {"operations": [listed(1)], "nextPageToken": "again"}
    bench.plays(Reply(200, page), Reply(200, {**page, "operations": []}), Reply(200, page))
    with pytest.raises(InDoubt):
        bench.run(lambda backend: backend.find("mine"))


def test_the_newest_come_first_and_no_page_more_than_asked(bench: Bench) -> None:
    bench.plays(Reply(200, {"operations": [listed(1), listed(2), listed(3)], "nextPageToken": "x"}))
    found = bench.run(lambda backend: backend.list_recent(stop_at=lambda batch: batch.id == "batches/b2"))
    assert [batch.id for batch in found] == ["batches/b1", "batches/b2"]


def test_the_probe_lists_and_says_what_is_wrong(bench: Bench) -> None:
    bench.plays(Reply(200, {}))
    assert "accepts the key" in bench.run(lambda backend: backend.probe())
    assert bench.sent() == [("GET", "/v1beta/batches?pageSize=1")]
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    bench.plays(Reply(400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "details": [info]}}]))
    with pytest.raises(AuthError):
        bench.run(lambda backend: backend.probe())
    bench.plays(GONE)
    with pytest.raises(Refused, match="api_version"):
        bench.run(lambda backend: backend.probe())


def test_the_delay_in_a_reply_is_waited_before_the_next_try(bench: Bench) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}]
    bench.plays(Reply(429, {"error": {"code": 429, "details": details}}), Reply(200, operation()))
    bench.run(lambda backend: backend.retrieve("batches/b1"))
    assert bench.waits == [7.0]


# -- as connections make it ------------------------------------------------------------------------
@pytest.mark.parametrize("tail", ["", "/", "/v1beta", "/v1", "/v1beta/", "/v1alpha"])
def test_a_version_in_the_address_is_taken_off(tail: str) -> None:
    backend = make_backend("gemini", base_url=f"https://host/gemini{tail}", api_key="k", options={})
    assert backend.address == "host/gemini"
    assert (backend.inline, backend.marks_batches, backend.lists_batches) == (False, True, True)


def test_inline_batches_are_planned_small_enough_for_one_call() -> None:
    limits = make_backend("gemini", base_url=None, api_key="k", options={"inline": True}).limits
    shortest = len(b'{"key":"","request":{"contents":[{"role":"user","parts":[{"text":""}]}]}}\n') + 44
    rows = min(limits.max_requests, limits.max_bytes // shortest)
    assert limits.max_bytes + 13 * rows + 300 < 20_000_000
    options = {"inline": True, "max_requests": 5}
    small = make_backend("gemini", base_url=None, api_key="k", options=options).limits
    assert (small.max_requests, small.max_line_bytes) == (5, limits.max_bytes)


def test_a_bearer_token_goes_in_its_own_header(bench: Bench) -> None:
    bench.plays(Reply(200, {}))
    backend = make_backend("gemini", base_url=bench.root, api_key="token", options={"auth": "bearer"})

    async def probe(_: GeminiBackend) -> None:
        await backend.probe()
        await backend.aclose()

    bench.run(probe)
    headers = bench.received[0].headers
    assert headers["authorization"] == "Bearer token" and "x-goog-api-key" not in headers


@pytest.mark.parametrize(
    "page",
    [
        {"error": {"code": 13}},
        {"operations": "none"},
        {"message": "hello"},
        {"operations": [{"name": "models/m/batches/b1", "metadata": {}}]},
    ],
)
def test_a_reply_that_is_no_list_is_not_an_empty_one(page: Any, bench: Bench) -> None:
    """What it did not show would count as not there, and be sent again."""
    bench.plays(*[Reply(200, page)] * 3)
    with pytest.raises(Unreachable):
        bench.run(lambda backend: backend.find("t1"))


def test_an_empty_list_may_be_an_empty_object(bench: Bench) -> None:
    bench.plays(Reply(200, {}))
    assert bench.run(lambda backend: backend.find("t1")) == []
