from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.local_server import LocalServer
from tests.unit.server.anthropic_client import Anthropic, counts, error_of, item, items

HELD = {"pace": {"seconds": 86_400, "hold_at": 0.5}}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture
def api(shared_server: LocalServer) -> Anthropic:
    """A client of a server without faults, shared by the tests of this folder."""
    shared_server.set_scenario({})
    return Anthropic(shared_server)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anthropic]:
    """A client of a server that takes three requests and 2,000 bytes."""
    args = ("--max-requests", "3", "--max-bytes", "2000")
    with LocalServer(tmp_path_factory.mktemp("small"), args=args) as server:
        yield Anthropic(server)


# -- the life of a batch ---------------------------------------------------------------------------
def test_a_batch_runs_and_its_counts_move_only_when_it_has_ended(api: Anthropic) -> None:
    api.server.set_scenario(HELD)
    made = api.start([*items(3), item("bad", max_tokens=0)])
    assert re.fullmatch(r"msgbatch_[0-9a-f]{24}", made["id"]) and made["type"] == "message_batch"
    api.until_held(made["id"], 2)
    reply = api.http.get(f"/batches/{made['id']}")
    assert reply.headers["retry-after"] == "10" and reply.headers["request-id"].startswith("req_")
    assert reply.json() == made, "nothing of it is seen before the end"
    assert made["request_counts"] == counts(processing=4)
    assert (made["processing_status"], made["results_url"], made["ended_at"]) == ("in_progress", None, None)
    api.server.release(made["id"])
    ended = api.until(made["id"])
    assert ended["request_counts"] == counts(succeeded=3, errored=1)
    assert "retry-after" not in api.http.get(f"/batches/{made['id']}").headers
    assert ended["results_url"].endswith(f"/anthropic/v1/messages/batches/{made['id']}/results")
    assert [row["custom_id"] for row in api.results(made["id"])] == ["r-1", "r-2", "r-3", "bad"]


def test_times_are_rfc_3339_and_a_batch_expires_after_exactly_a_day(api: Anthropic) -> None:
    batch = api.run(items(1))
    times = {name: batch[name] for name in ("created_at", "expires_at", "ended_at")}
    assert all(_RFC3339.fullmatch(value) for value in times.values())
    created, expires, ended = (datetime.fromisoformat(value) for value in times.values())
    assert expires - created == timedelta(hours=24) and created <= ended
    assert batch["cancel_initiated_at"] is batch["archived_at"] is None


def test_a_batch_of_errors_alone_ends_like_any_other(api: Anthropic) -> None:
    batch = api.run([item("a", messages=[]), item("b", stream=True)])
    assert batch["request_counts"] == counts(errored=2)
    assert [row["result"]["type"] for row in api.results(batch["id"])] == ["errored", "errored"]


def test_a_batch_survives_a_kill_and_is_charged_once(tmp_path: Path) -> None:
    with LocalServer(tmp_path / "server", scenario=HELD) as server:
        api = Anthropic(server)
        made = api.start(items(4))
        api.until_held(made["id"], 2)
        server.kill9()
        server.restart()
        server.release()
        assert api.until(made["id"])["request_counts"] == counts(succeeded=4)
        assert server.summary()["executed"] == server.summary()["charged"] == 4


# -- create ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([], "requests: at least one"),
        ([*items(2), {"params": {}}], "requests.2.custom_id: Field required"),
        ([item("r 1")], "requests.0.custom_id: String should match"),
        ([item("é")], "requests.0.custom_id: String should match"),
        ([item("")], "requests.0.custom_id: String should match"),
        ([item("k" * 65)], "requests.0.custom_id: String should match"),
        ([item("a\n")], "requests.0.custom_id: String should match"),
        ([{"custom_id": 7, "params": {}}], "requests.0.custom_id: String should match"),
        ([*items(2), item("r-1")], "requests.2.custom_id: 'r-1' is used by an earlier"),
        ([*items(1), "text"], "requests.1: Input should be an object"),
        ([{"custom_id": "a"}], "requests.0.params: Field required"),
        ([{"custom_id": "a", "params": []}], "requests.0.params: Field required"),
        ([{**item("a"), "body": {}}], "requests.0.body: Extra inputs"),
    ],
)
def test_ids_are_checked_at_creation_and_the_request_is_named(
    api: Anthropic, requests: Any, told: str
) -> None:
    status, kind, message = error_of(api.create(requests))
    assert (status, kind) == (400, "invalid_request_error") and message.startswith(told)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"requests": {}}',
        b'{"other": []}',
        b'{"requests": [{"custom_id": "a", "params": {}}]',
        b'{"requests": [{"custom_id": "a", "params": {"x": tru}}]}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_not_what_it_should_be_is_refused(api: Anthropic, body: bytes) -> None:
    before = len(api.server.batches())
    status, kind, _ = error_of(api.http.post("/batches", content=body))
    assert (status, kind) == (400, "invalid_request_error")
    assert len(api.server.batches()) == before


def test_a_body_may_be_written_over_several_lines(api: Anthropic) -> None:
    body = json.dumps({"requests": items(2)}, indent=2).replace("\n", "\r\n").encode()
    made = api.http.post("/batches", content=body).raise_for_status().json()
    assert api.until(made["id"])["request_counts"] == counts(succeeded=2)


def test_the_longest_ids_and_all_their_letters_are_taken(api: Anthropic) -> None:
    batch = api.run([item("k" * 64), item("a-B_9")])
    assert [row["custom_id"] for row in api.results(batch["id"])] == ["k" * 64, "a-B_9"]


def test_too_many_requests_and_too_many_bytes_are_413(small: Anthropic) -> None:
    assert small.create(items(3)).status_code == 200
    for requests in (items(4), [item("a", "x" * 2_000)]):
        assert error_of(small.create(requests))[:2] == (413, "request_too_large")


def test_the_api_wants_its_version_in_a_header(shared_server: LocalServer) -> None:
    for version in (None, "2022-01-01"):
        api = Anthropic(shared_server, version)
        for reply in (
            api.create(items(1)),
            api.http.get("/batches"),
            api.http.get("/batches/msgbatch_x/results"),
        ):
            status, kind, message = error_of(reply)
            assert (status, kind) == (400, "invalid_request_error") and "anthropic-version" in message


def test_the_key_may_come_in_either_header(api: Anthropic) -> None:
    url = f"{api.server.url_of('anthropic')}/v1/models"
    version = {"anthropic-version": "2026-10-21"}
    for key in ({"x-api-key": api.server.api_key}, {"authorization": f"Bearer {api.server.api_key}"}):
        assert httpx.get(url, headers={**version, **key}).json()["data"][0]["id"] == "simulated"
    assert error_of(httpx.get(url, headers=version))[:2] == (401, "authentication_error")


# -- lists -----------------------------------------------------------------------------------------
def test_batches_are_listed_newest_first_in_pages_both_ways(api: Anthropic) -> None:
    made = [api.start(items(1))["id"] for _ in range(5)][::-1]

    def page(**query: Any) -> tuple[list[str], bool]:
        body = api.http.get("/batches", params=query).raise_for_status().json()
        found = [batch["id"] for batch in body["data"]]
        assert (body["first_id"], body["last_id"]) == ((found[0], found[-1]) if found else (None, None))
        return found, body["has_more"]

    assert page(limit=2) == (made[:2], True)
    assert page(limit=2, after_id=made[1]) == (made[2:4], True)
    assert page(limit=2, before_id=made[4]) == (made[2:4], True)
    assert page(limit=2, before_id=made[1]) == (made[:1], False)
    assert page(before_id=made[0]) == ([], False)
    assert len(page(limit=1000)[0]) >= 5


def test_the_pages_go_on_behind_a_batch_that_was_deleted(api: Anthropic) -> None:
    older, newer = api.run(items(1))["id"], api.run(items(1))["id"]
    api.http.delete(f"/batches/{newer}").raise_for_status()
    listed = api.http.get("/batches", params={"after_id": newer, "limit": 1}).json()["data"]
    assert [batch["id"] for batch in listed] == [older]


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"after_id": "msgbatch_none"}]
)
def test_a_list_refuses_what_it_cannot_page_by(api: Anthropic, query: dict[str, Any]) -> None:
    assert error_of(api.http.get("/batches", params=query))[:2] == (400, "invalid_request_error")


def test_other_protocols_see_neither_the_batch_nor_its_files(api: Anthropic) -> None:
    batch = api.run(items(1))
    openai = httpx.Client(
        base_url=api.server.url, headers={"Authorization": f"Bearer {api.server.api_key}"}, timeout=60
    )
    assert openai.get(f"/batches/{batch['id']}").status_code == 404
    assert batch["id"] not in openai.get("/batches").text
    assert batch["id"] not in openai.get("/files").text


# -- the end ---------------------------------------------------------------------------------------
def test_a_cancelled_batch_keeps_what_it_has(api: Anthropic) -> None:
    api.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0.5, "cancel_seconds": 86_400}})
    made = api.start(items(4))
    api.until_held(made["id"], 2)
    shown = api.http.post(f"/batches/{made['id']}/cancel").raise_for_status().json()
    assert shown["processing_status"] == "canceling" and shown["cancel_initiated_at"]
    assert api.http.post(f"/batches/{made['id']}/cancel").json() == shown
    assert shown["request_counts"] == counts(processing=4)
    api.server.release(made["id"])
    ended = api.until(made["id"])
    assert ended["request_counts"] == counts(succeeded=2, canceled=2)
    assert [row["result"]["type"] for row in api.results(made["id"])] == ["succeeded"] * 2 + ["canceled"] * 2
    assert api.results(made["id"])[3] == {"custom_id": "r-4", "result": {"type": "canceled"}}
    assert api.http.post(f"/batches/{made['id']}/cancel").json() == ended


def test_a_batch_that_has_ended_by_itself_cannot_be_cancelled(api: Anthropic) -> None:
    batch = api.run(items(1))
    assert error_of(api.http.post(f"/batches/{batch['id']}/cancel"))[:2] == (400, "invalid_request_error")


def test_a_batch_is_deleted_with_its_results_once_it_has_ended(api: Anthropic) -> None:
    api.server.set_scenario(HELD)
    made = api.start(items(2))
    assert error_of(api.http.delete(f"/batches/{made['id']}"))[:2] == (400, "invalid_request_error")
    api.server.release(made["id"])
    api.until(made["id"])
    deleted = api.http.delete(f"/batches/{made['id']}").raise_for_status().json()
    assert deleted == {"id": made["id"], "type": "message_batch_deleted"}
    for reply in (
        api.http.get(f"/batches/{made['id']}"),
        api.http.get(f"/batches/{made['id']}/results"),
        api.http.delete(f"/batches/{made['id']}"),
        api.http.post(f"/batches/{made['id']}/cancel"),
    ):
        assert error_of(reply)[:2] == (404, "not_found_error")
    assert api.server.charges(made["id"]), "what it cost stays known"


def test_results_are_404_until_the_end_and_for_an_unknown_batch(api: Anthropic) -> None:
    api.server.set_scenario(HELD)
    made = api.start(items(2))
    for batch_id in (made["id"], "msgbatch_none"):
        assert error_of(api.http.get(f"/batches/{batch_id}/results"))[:2] == (404, "not_found_error")
    api.server.release(made["id"])
    api.until(made["id"])
    reply = api.http.get(f"/batches/{made['id']}/results")
    assert reply.headers["content-type"] == "application/x-jsonl"
    assert "content-length" not in reply.headers, "results are streamed"


def test_requests_leave_no_bytes_behind_when_their_batch_has_ended(tmp_path: Path) -> None:
    with LocalServer(tmp_path / "server") as server:
        api = Anthropic(server)
        api.create([{"custom_id": "no", "params": 1}])
        made = api.run(items(2))
        files, temporary = (tmp_path / "server" / "state" / name for name in ("files", "tmp"))
        for _ in range(20_000):  # the requests go just after the end was recorded
            if len(list(files.iterdir())) == 1:
                break
            api.get(made["id"])
        assert len(list(files.iterdir())) == 1 and not list(temporary.iterdir())
        api.http.delete(f"/batches/{made['id']}").raise_for_status()
        assert not list(files.iterdir())
