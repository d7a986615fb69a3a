"""Looking at batches, listing, cancelling and deleting them, and fetching what they bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.backends import find_provider
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, ResultFile
from airflow_batch_llm.exceptions import AuthError, NotFound, Refused, TransferError, Unreachable
from tests.unit.backends.anthropic.conftest import BATCH, Bench, ended, failure
from tests.unit.backends.scripted_server import Reply

OUTPUT = ResultFile("output", "msgbatch_1")
GONE = Reply(404, failure("not_found_error"))


def retrieve(bench: Bench, shown: Any) -> RemoteBatch:
    bench.server.script = [Reply(200, shown)]
    return bench.run(lambda backend: backend.retrieve("msgbatch_1"))


# -- the object ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (BATCH, RemoteStatus.RUNNING),
        (BATCH | {"processing_status": "canceling"}, RemoteStatus.CANCELLING),
        (BATCH | {"processing_status": "daydreaming"}, RemoteStatus.UNKNOWN),
        (BATCH | {"processing_status": None}, RemoteStatus.UNKNOWN),
        (ended(succeeded=2), RemoteStatus.DONE),
        (ended(errored=2), RemoteStatus.DONE),
        (ended(succeeded=1, expired=1), RemoteStatus.EXPIRED),
        (
            ended(succeeded=1, canceled=1) | {"cancel_initiated_at": BATCH["created_at"]},
            RemoteStatus.CANCELLED,
        ),
        # The cancel came when everything was answered.
        (ended(succeeded=2) | {"cancel_initiated_at": BATCH["created_at"]}, RemoteStatus.DONE),
    ],
)
def test_how_a_batch_ended_is_told_by_its_counts(
    bench: Bench, shown: dict[str, Any], status: RemoteStatus
) -> None:
    batch = retrieve(bench, shown)
    assert batch.status is status
    assert batch.files == ((OUTPUT,) if status.terminal else ())


def test_counts_are_those_of_every_protocol(bench: Bench) -> None:
    batch = retrieve(bench, ended(succeeded=4, errored=3, canceled=2, expired=1))
    assert batch.counts == {"total": 10, "completed": 4, "failed": 6}


def test_an_object_of_which_little_is_there_is_read(bench: Bench) -> None:
    batch = retrieve(bench, {"id": "msgbatch_1", "request_counts": None, "created_at": "?"})
    assert (batch.status, batch.created_at, batch.counts["total"]) == (RemoteStatus.UNKNOWN, None, 0)


def test_a_batch_that_is_denied_is_not_found(bench: Bench) -> None:
    bench.server.script = [GONE]
    with pytest.raises(NotFound):
        bench.run(lambda backend: backend.retrieve("msgbatch_1"))


def test_a_look_is_repeated_while_the_provider_has_a_fault(bench: Bench) -> None:
    bench.server.script = [
        Reply(529, failure("overloaded_error")),
        Reply(429, failure("rate_limit_error"), {"retry-after": "3"}),
        Reply(200, BATCH),
    ]
    assert bench.run(lambda backend: backend.retrieve("msgbatch_1")).id == "msgbatch_1"
    assert len(bench.waits) == 2 and bench.waits[1] == 3.0


# -- the list --------------------------------------------------------------------------------------
def page(*numbers: int, more: bool) -> Reply:
    shown = [BATCH | {"id": f"msgbatch_{n}", "created_at": f"2026-11-01T10:00:{n:02}Z"} for n in numbers]
    ids = [batch["id"] for batch in shown] or [None]
    return Reply(200, {"data": shown, "has_more": more, "first_id": ids[0], "last_id": ids[-1]})


def test_pages_follow_each_other_by_the_last_id(bench: Bench) -> None:
    bench.server.script = [page(5, 4, more=True), page(3, 2, more=True), page(1, more=False)]
    found = bench.run(lambda backend: backend.list_recent(stop_at=lambda batch: False))
    assert [batch.id for batch in found] == [f"msgbatch_{n}" for n in (5, 4, 3, 2, 1)]
    queries = [request.path.partition("?")[2] for request in bench.server.received]
    assert queries == ["limit=100", "limit=100&after_id=msgbatch_4", "limit=100&after_id=msgbatch_2"]
    assert found[0].created_at == 1793527205.0 and found[0].counts["total"] == 2


def test_the_list_is_read_no_further_than_asked(bench: Bench) -> None:
    bench.server.script = [page(5, 4, more=True), page(3, 2, more=True)]
    found = bench.run(lambda backend: backend.list_recent(stop_at=lambda batch: batch.id == "msgbatch_3"))
    assert [batch.id for batch in found] == [f"msgbatch_{n}" for n in (5, 4, 3)]


def test_every_batch_since_a_time_is_listed(bench: Bench) -> None:
    bench.server.script = [page(5, 4, more=True), page(3, 2, more=True), page(1, more=False)]
    found = bench.run(lambda backend: backend.list_since(1793527203.5))
    assert [batch.id for batch in found] == ["msgbatch_5", "msgbatch_4"]
    assert len(bench.server.received) == 2


def test_an_empty_list_is_a_list(bench: Bench) -> None:
    bench.server.script = [page(more=False)]
    assert bench.run(lambda backend: backend.list_since(0.0)) == []


def test_no_batch_can_be_found_by_a_mark(bench: Bench) -> None:
    assert not bench.backend().marks_batches and not find_provider("anthropic").marks_batches
    for call in (lambda b: b.find("t"), lambda b: b.find_origin("o")):
        with pytest.raises(Refused):
            bench.run(call)
    assert bench.server.received == []


def test_the_connection_test_lists_one_batch(bench: Bench) -> None:
    bench.server.script = [page(1, more=True)]
    assert "127.0.0.1" in bench.run(lambda backend: backend.probe())
    bench.server.script = [Reply(401, failure("authentication_error"))]
    with pytest.raises(AuthError):
        bench.run(lambda backend: backend.probe())
    bench.server.script = [Reply(400, failure("invalid_request_error"))]
    with pytest.raises(Refused, match="check api_version and betas"):
        bench.run(lambda backend: backend.probe())


# -- cancel, delete --------------------------------------------------------------------------------
def test_a_cancel_returns_the_batch(bench: Bench) -> None:
    bench.server.script = [Reply(200, BATCH | {"processing_status": "canceling"})]
    batch = bench.run(lambda backend: backend.cancel("msgbatch_1"))
    assert batch.status is RemoteStatus.CANCELLING
    assert bench.server.received[0].path == "/v1/messages/batches/msgbatch_1/cancel"


@pytest.mark.parametrize("status", [400, 404, 409])
def test_a_batch_that_has_ended_is_returned_as_it_is(bench: Bench, status: int) -> None:
    bench.server.script = [Reply(status, failure("invalid_request_error")), Reply(200, ended(succeeded=2))]
    assert bench.run(lambda backend: backend.cancel("msgbatch_1")).status is RemoteStatus.DONE


def test_a_batch_that_runs_and_is_not_cancelled_is_told(bench: Bench) -> None:
    bench.server.script = [Reply(400, failure("invalid_request_error")), Reply(200, BATCH)]
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.cancel("msgbatch_1"))


def test_results_are_deleted_with_their_batch_and_may_be_gone(bench: Bench) -> None:
    bench.server.script = [Reply(200, {"id": "msgbatch_1", "type": "message_batch_deleted"}), GONE]
    for _ in range(2):
        bench.run(lambda backend: backend.delete_file("msgbatch_1"))
    assert {(r.method, r.path) for r in bench.server.received} == {
        ("DELETE", "/v1/messages/batches/msgbatch_1")
    }


def test_a_batch_that_runs_is_not_deleted(bench: Bench) -> None:
    bench.server.script = [Reply(400, failure("invalid_request_error"))]
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.delete_file("msgbatch_1"))


# -- results ---------------------------------------------------------------------------------------
ROWS = [json.dumps({"custom_id": f"w-{n}", "result": {"type": "expired"}}).encode() + b"\n" for n in range(4)]


def download(bench: Bench, *replies: Reply, total: int = 4, **options: Any) -> Path:
    bench.server.script = list(replies)
    batch = RemoteBatch(
        "msgbatch_1", RemoteStatus.DONE, "ended", (OUTPUT,), counts={"total": total, "completed": total}
    )
    local = bench.folder / "raw.jsonl"
    bench.run(lambda backend: backend.download(batch, OUTPUT, local), **options)
    return local


def whole(count: int) -> Reply:
    return Reply(200, b"".join(ROWS[:count]))


def test_results_are_fetched_as_they_are(bench: Bench) -> None:
    assert download(bench, whole(4)).read_bytes() == b"".join(ROWS)
    assert bench.server.received[0].path == "/v1/messages/batches/msgbatch_1/results"


def test_results_that_break_off_on_the_end_of_a_line_are_read_again(bench: Bench) -> None:
    assert download(bench, whole(2), whole(4)).read_bytes() == b"".join(ROWS)


def test_rows_that_are_missing_from_three_whole_reads_are_missing(bench: Bench) -> None:
    local = download(bench, *[whole(3)] * 3, Reply(200, ended(succeeded=4)))
    assert local.read_bytes() == b"".join(ROWS[:3])


def test_results_that_never_come_whole_are_not_there(bench: Bench) -> None:
    with pytest.raises(TransferError):
        download(bench, *(whole(count) for count in (1, 2, 3, 1, 2)))
    assert not list(bench.folder.iterdir())


def test_results_that_are_cut_inside_a_row_are_fetched_again(bench: Bench) -> None:
    cut = Reply(200, b"".join(ROWS)[:100], promised=len(b"".join(ROWS)))
    assert download(bench, cut, whole(4)).read_bytes() == b"".join(ROWS)


def test_archived_results_are_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        download(bench, GONE)


def test_results_that_were_archived_and_come_empty_are_not_found(bench: Bench) -> None:
    archived = ended(succeeded=4) | {"archived_at": "2026-12-01T00:00:00Z"}
    with pytest.raises(NotFound):
        download(bench, *[whole(0)] * 3, Reply(200, archived))
    assert not list(bench.folder.iterdir())


def test_results_of_a_provider_in_trouble_are_asked_for_again(bench: Bench) -> None:
    assert download(bench, Reply(529, failure("overloaded_error")), whole(4)).exists()
    with pytest.raises(Unreachable):
        download(bench, *[Reply(503, b"<html>")] * 3)


# -- the address -----------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_an_address_is_the_same_with_and_without_its_version(bench: Bench, ending: str) -> None:
    from airflow_batch_llm.backends import make_backend

    root = bench.server.base_url.removesuffix("/v1")
    made = make_backend("anthropic", base_url=root + ending, api_key="k", options={})
    assert made.address == bench.backend().address
