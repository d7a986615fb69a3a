"""Batch objects in all their forms; finding, listing and cancelling batches."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.core.ids import META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import BatchError, RemoteBatch, RemoteStatus, ResultFile
from airflow_batch_llm.exceptions import InDoubt, NotFound, Refused, Unreachable
from tests.unit.backends.conftest import Bench
from tests.unit.backends.scripted_server import Reply

NOW = 1_700_000_000


def batch(number: int, created_at: Any = NOW, token: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {META_TOKEN: token} if token else None
    return {
        "id": f"batch_{number}",
        "status": "completed",
        "created_at": created_at,
        "metadata": metadata,
    } | more


def page(*batches: dict[str, Any], more: bool | None = False) -> Reply:
    body: dict[str, Any] = {"object": "list", "data": list(batches)}
    return Reply(200, body if more is None else body | {"has_more": more})


def retrieve(bench: Bench, **fields: Any) -> RemoteBatch:
    bench.server.script = [Reply(200, {"id": "batch_1", "status": "completed"} | fields)]
    return bench.run(lambda backend: backend.retrieve("batch_1"))


def find(bench: Bench, created_after: float | None = None) -> list[str]:
    found = bench.run(lambda backend: backend.find("a1", created_after=created_after))
    return [remote.id for remote in found]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        ("validating", RemoteStatus.PENDING),
        ("In_Progress", RemoteStatus.RUNNING),
        ("finalizing", RemoteStatus.RUNNING),
        ("Completed", RemoteStatus.DONE),
        ("failed", RemoteStatus.FAILED),
        ("expired", RemoteStatus.EXPIRED),
        ("cancelling", RemoteStatus.CANCELLING),
        ("CANCELED", RemoteStatus.CANCELLED),
        ("cancelled", RemoteStatus.CANCELLED),
        ("simmering", RemoteStatus.UNKNOWN),
        (None, RemoteStatus.UNKNOWN),
        ({"state": "x"}, RemoteStatus.UNKNOWN),
    ],
)
def test_each_status_has_its_normal_form(bench: Bench, raw: Any, status: RemoteStatus) -> None:
    assert retrieve(bench, status=raw).status is status


def test_a_dialect_may_name_a_status_differently(bench: Bench) -> None:
    row = replace(DIALECTS["generic"], statuses={"archived": "expired"})
    bench.server.script = [Reply(200, {"id": "batch_1", "status": "Archived"})]
    assert bench.run(lambda backend: backend.retrieve("batch_1"), row).status is RemoteStatus.EXPIRED


def test_an_unknown_status_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def twice(backend: Any) -> None:
        await backend.retrieve("batch_1")
        await backend.retrieve("batch_1")

    bench.server.script = [Reply(200, {"id": "batch_1", "status": "simmering"})] * 2
    with caplog.at_level(logging.WARNING, "airflow_batch_llm"):
        bench.run(twice)
    assert len([record for record in caplog.records if "simmering" in record.getMessage()]) == 1


@pytest.mark.parametrize("absent", [None, "", {}, [], " "])
@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
def test_an_absent_file_is_no_file_in_any_state(bench: Bench, absent: Any, status: str) -> None:
    remote = retrieve(bench, status=status, output_file_id="file-out", error_file_id=absent)
    assert remote.files == (ResultFile("output", "file-out"),)


def test_files_that_are_not_mentioned_are_no_files(bench: Bench) -> None:
    assert retrieve(bench).files == ()


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
def test_files_of_a_batch_that_did_not_complete_are_read_too(bench: Bench, status: str) -> None:
    remote = retrieve(bench, status=status, output_file_id="file-out", error_file_id="file-err")
    assert remote.files == (ResultFile("output", "file-out"), ResultFile("error", "file-err"))


@pytest.mark.parametrize(
    "moment",
    [
        NOW,
        float(NOW),
        str(NOW),
        NOW * 1000,
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20",
        "2023-11-14T23:13:20+01:00",
    ],
)
def test_a_time_may_be_written_in_many_ways(bench: Bench, moment: Any) -> None:
    assert retrieve(bench, created_at=moment).created_at == NOW


@pytest.mark.parametrize("moment", [None, "", "yesterday", {}, True, float("1e999")])
def test_an_unreadable_time_is_none(bench: Bench, moment: Any) -> None:
    assert retrieve(bench, created_at=moment).created_at is None


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"total": 3, "completed": 2, "failed": 1}, {"total": 3, "completed": 2, "failed": 1}),
        ({"total": None, "completed": "2", "failed": -1}, {"total": 0, "completed": 2, "failed": 0}),
        (None, {}),
        ("n/a", {}),
    ],
)
def test_counts_are_whole_numbers(bench: Bench, counts: Any, expected: dict[str, int]) -> None:
    assert retrieve(bench, request_counts=counts).counts == expected


def test_errors_of_a_batch_keep_code_line_and_parameter(bench: Bench) -> None:
    data = [
        {"code": "invalid_json_line", "line": 2, "message": "not JSON", "param": None},
        {"code": "duplicate_custom_id", "line": "3", "message": None, "param": "custom_id"},
        {"code": "token_limit_exceeded", "line": None, "message": "x" * 9000},
        "odd",
        {"code": "two words", "line": 0},
    ]
    remote = retrieve(bench, status="failed", errors={"object": "list", "data": data})
    assert remote.errors == (
        BatchError("invalid_json_line", 2, None, "not JSON"),
        BatchError("duplicate_custom_id", 3, "custom_id", ""),
        BatchError("token_limit_exceeded", None, None, "x" * 2000),
        BatchError("error", None, None, ""),
    )


@pytest.mark.parametrize("errors", [None, [], {}, {"data": None}, "text", 7])
def test_no_errors_can_be_said_in_many_ways(bench: Bench, errors: Any) -> None:
    assert retrieve(bench, errors=errors).errors == ()


def test_a_batch_the_provider_denies_is_not_found(bench: Bench) -> None:
    bench.server.script = [Reply(404, {"error": {"type": "invalid_request_error", "code": None}})]
    with pytest.raises(NotFound):
        bench.run(lambda backend: backend.retrieve("batch_1"))


# -- finding ---------------------------------------------------------------------------------------


def test_a_batch_is_found_by_its_token_on_any_page(bench: Bench) -> None:
    bench.server.script = [
        page(batch(3), batch(2), more=True),
        page(batch(1, token="a1"), batch(0, token="b2")),
    ]
    assert find(bench) == ["batch_1"]
    assert [request.path for request in bench.server.received] == [
        "/v1/batches?limit=100",
        "/v1/batches?limit=100&after=batch_2",
    ]


def test_two_batches_with_one_token_are_both_found(bench: Bench) -> None:
    bench.server.script = [page(batch(2, token="a1"), batch(1, token="a1"))]
    assert find(bench) == ["batch_2", "batch_1"]


def test_the_search_ends_ten_minutes_before_the_time_given(bench: Bench) -> None:
    bench.server.script = [
        page(batch(9, NOW + 50), batch(8, NOW - 590), more=True),
        page(batch(7, NOW - 595, token="a1"), batch(6, NOW - 601), more=True),
    ]
    assert find(bench, created_after=NOW) == ["batch_7"]
    assert len(bench.server.received) == 2


@pytest.mark.parametrize("times", [(NOW - 9000, NOW - 8000), (NOW - 8000, None), (None, None)])
def test_a_list_in_another_order_is_read_to_its_end(bench: Bench, times: tuple[Any, Any]) -> None:
    first, second = times
    bench.server.script = [
        page(batch(1, first), batch(2, second), more=True),
        page(batch(3, NOW, token="a1")),
    ]
    assert find(bench, created_after=NOW) == ["batch_3"]


def test_a_list_without_has_more_ends_with_a_page_that_brings_nothing(bench: Bench) -> None:
    bench.server.script = [page(batch(2), more=None), page(batch(1, token="a1"), more=None), page(more=None)]
    assert find(bench) == ["batch_1"]


def test_a_server_that_knows_no_pages_is_asked_twice_and_no_more(bench: Bench) -> None:
    bench.server.script = [Reply(200, [batch(2), batch(1, token="a1")])] * 3
    assert find(bench) == ["batch_1"]
    assert len(bench.server.received) == 2


def test_a_list_that_never_ends_proves_nothing(bench: Bench) -> None:
    bench.server.routes = {"GET /v1/batches": page(batch(2), batch(1), more=True)}
    with pytest.raises(InDoubt):
        find(bench)


def test_a_page_that_cannot_be_read_proves_nothing(bench: Bench) -> None:
    bench.server.script = [Reply(200, {"data": None})]
    with pytest.raises(Unreachable):
        find(bench)


def test_without_metadata_nothing_can_be_found(bench: Bench) -> None:
    row = replace(DIALECTS["generic"], metadata=False)
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.find("a1"), row)


def test_batches_of_a_lost_ledger_are_found_by_origin(bench: Bench) -> None:
    now = time.time()
    ours = {"metadata": {META_ORIGIN: "o1"}}
    bench.server.script = [
        page(batch(9, now, **ours), batch(8, now - 100), more=True),
        page(batch(7, now - 86_400, **ours), batch(6, now - 40 * 86_400), more=True),
    ]
    found = bench.run(lambda backend: backend.find_origin("o1"))
    assert [remote.id for remote in found] == ["batch_9", "batch_7"]


# -- listing and cancelling ------------------------------------------------------------------------


def test_recent_batches_are_listed_up_to_the_one_that_stops(bench: Bench) -> None:
    asked: list[str] = []

    def stop_at(remote: RemoteBatch) -> bool:
        asked.append(remote.id)
        return remote.id == "batch_3"

    bench.server.script = [page(batch(5), batch(4), more=True), page(batch(3), batch(2), more=True)]
    listed = bench.run(lambda backend: backend.list_recent(stop_at=stop_at))
    assert [remote.id for remote in listed] == ["batch_5", "batch_4", "batch_3"]
    assert asked == ["batch_5", "batch_4", "batch_3"]


def test_listing_is_bounded_by_pages(bench: Bench) -> None:
    bench.server.script = [page(batch(number), more=True) for number in range(9, 0, -1)]
    listed = bench.run(lambda backend: backend.list_recent(stop_at=lambda remote: False, max_pages=3))
    assert [remote.id for remote in listed] == ["batch_9", "batch_8", "batch_7"]


def test_a_cancelled_batch_comes_back_as_it_is_now(bench: Bench) -> None:
    bench.server.script = [Reply(200, batch(1, status="cancelling"))]
    assert bench.run(lambda backend: backend.cancel("batch_1")).status is RemoteStatus.CANCELLING
    assert [request.path for request in bench.server.received] == ["/v1/batches/batch_1/cancel"]


@pytest.mark.parametrize("status", [400, 404, 409, 412, 422])
def test_cancelling_a_batch_that_has_ended_shows_it(bench: Bench, status: int) -> None:
    bench.server.script = [
        Reply(status, {"error": {"message": "x"}}),
        Reply(200, batch(1, status="completed")),
    ]
    assert bench.run(lambda backend: backend.cancel("batch_1")).status is RemoteStatus.DONE
    assert len(bench.server.received) == 2


def test_an_empty_word_on_a_cancel_is_followed_by_a_look(bench: Bench) -> None:
    bench.server.script = [Reply(200, b""), Reply(200, batch(1, status="cancelled"))]
    assert bench.run(lambda backend: backend.cancel("batch_1")).status is RemoteStatus.CANCELLED


def test_a_cancel_that_is_refused_for_a_running_batch_is_an_error(bench: Bench) -> None:
    bench.server.script = [
        Reply(400, {"error": {"message": "x"}}),
        Reply(200, batch(1, status="in_progress")),
    ]
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.cancel("batch_1"))


def test_cancelling_a_batch_the_provider_denies_is_not_found(bench: Bench) -> None:
    bench.server.script = [Reply(404, {"error": {"message": "x"}})] * 2
    with pytest.raises(NotFound):
        bench.run(lambda backend: backend.cancel("batch_1"))


def test_the_probe_names_the_host_and_no_secret(bench: Bench) -> None:
    bench.server.script = [page()]
    said = bench.run(lambda backend: backend.probe())
    assert "127.0.0.1" in said
    assert "key-1" not in said
