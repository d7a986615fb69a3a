from __future__ import annotations

import socket
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
import pytest

from tests.unit.server.api import Api, lines


def test_a_lost_reply_leaves_the_batch_behind(api: Api) -> None:
    file_id = api.file(lines(1))
    before = len(api.server.batches())
    api.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    with pytest.raises(httpx.RemoteProtocolError):
        api.create(file_id, metadata={"token": "lost"})
    newest, *others = api.server.batches()
    assert (len(others), newest["metadata"]) == (before, {"token": "lost"})
    assert api.server.requests("POST", "/v1/batches")[-1]["status"] == 0
    assert api.until(newest["id"])["status"] == "completed"
    assert api.create(file_id).status_code == 200


@pytest.mark.parametrize("fault", ["dropped", "error"])
def test_a_create_call_that_fails_makes_no_batch(api: Api, fault: str) -> None:
    file_id = api.file(lines(1))
    before = len(api.server.batches())
    api.server.set_scenario({"calls": [{"on": "create", "fault": fault, "times": 1}]})
    if fault == "dropped":
        with pytest.raises(httpx.RemoteProtocolError):
            api.create(file_id)
    else:
        reply = api.create(file_id)
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
    assert len(api.server.batches()) == before
    assert api.create(file_id).status_code == 200


def test_a_rate_limit_names_the_time_to_wait(api: Api) -> None:
    rule = {"on": "create", "fault": "error", "status": 429, "retry_after": 120, "times": 1}
    api.server.set_scenario({"calls": [rule]})
    reply = api.create("file-none")
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "120")
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"


def test_the_time_to_wait_can_be_told_in_milliseconds_and_as_a_date(api: Api) -> None:
    rule = {"on": "create", "fault": "error", "status": 429, "retry_after": 120, "times": 1}
    api.server.set_scenario({"calls": [rule | {"retry_after_as": form} for form in ("milliseconds", "date")]})
    headers = api.create("file-none").headers
    assert headers["retry-after-ms"] == "120000" and "retry-after" not in headers
    moment = parsedate_to_datetime(api.create("file-none").headers["retry-after"])
    assert 0 < (moment - datetime.now(UTC)).total_seconds() <= 120


def test_an_error_can_have_a_body_of_plain_text(api: Api) -> None:
    api.server.set_scenario({"calls": [{"on": "list", "fault": "error", "status": 401, "text": True}]})
    reply = api.http.get("/batches")
    assert (reply.status_code, reply.headers["content-type"]) == (401, "text/plain; charset=utf-8")


@pytest.mark.parametrize("fault", ["error", "dropped"])
def test_an_upload_can_fail_and_leaves_nothing(api: Api, fault: str) -> None:
    api.server.set_scenario({"calls": [{"on": "upload", "fault": fault, "times": 1}]})
    before = len(api.http.get("/files").json()["data"])
    if fault == "error":
        assert api.upload(b"x" * 5_000_000).status_code == 500
    else:
        with pytest.raises(httpx.TransportError):
            api.upload(b"x" * 5_000_000)
    assert len(api.http.get("/files").json()["data"]) == before
    assert api.upload(lines(1)).status_code == 200


def test_polls_go_wrong_in_turn_and_then_well(api: Api) -> None:
    rules = [
        {"on": "poll", "fault": "error", "status": 503, "times": 1},
        {"on": "retrieve", "fault": "error", "status": 502, "html": True, "times": 1},
        {"on": "list", "fault": "error", "status": 429, "times": 1},
    ]
    batch = api.run(lines(1))
    api.server.set_scenario({"calls": rules})
    path = f"/batches/{batch['id']}"
    replies = [api.http.get(path) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [503, 502, 200]
    assert replies[1].headers["content-type"].startswith("text/html")
    assert [api.http.get("/batches").status_code for _ in range(2)] == [429, 200]


def test_a_poll_can_get_no_answer_at_all(api: Api) -> None:
    batch = api.run(lines(1))
    api.server.set_scenario({"calls": [{"on": "retrieve", "fault": "timeout", "times": 1}]})
    with pytest.raises(httpx.ReadTimeout):
        api.http.get(f"/batches/{batch['id']}", timeout=0.05)
    assert api.get(batch["id"]) == batch


def test_the_first_calls_can_be_left_alone(api: Api) -> None:
    api.server.set_scenario({"calls": [{"on": "create", "fault": "error", "skip": 1, "times": 1}]})
    assert [api.create("file-none").status_code for _ in range(3)] == [200, 500, 200]


def test_a_cut_download_ends_cleanly_and_only_the_size_gives_it_away(api: Api) -> None:
    file_id = api.run(lines(50))["output_file_id"]
    whole = api.content(file_id)
    api.server.set_scenario({"calls": [{"on": "download", "fault": "cut", "at": 0.3, "times": 1}]})
    short = api.content(file_id)
    assert whole.startswith(short) and len(short) == int(len(whole) * 0.3)
    assert api.http.get(f"/files/{file_id}").json()["bytes"] == len(whole)
    assert api.content(file_id) == whole


def test_a_reset_download_is_an_error_of_the_transport(api: Api) -> None:
    file_id = api.run(lines(50))["output_file_id"]
    api.server.set_scenario({"calls": [{"on": "download", "fault": "reset", "times": 1}]})
    with pytest.raises(httpx.TransportError):
        api.content(file_id)
    assert len(api.rows(file_id)) == 50


def test_the_server_prints_nothing_about_connections_it_closed(api: Api) -> None:
    api.server.set_scenario({"calls": [{"on": "list", "fault": "dropped", "times": 1}]})
    with pytest.raises(httpx.TransportError):
        api.http.get("/batches")
    api.http.get("/batches")
    assert all(entry.startswith("batch-llm serve: ") for entry in api.server.log.splitlines())


def test_a_client_that_goes_away_in_the_middle_of_an_upload_leaves_nothing(api: Api) -> None:
    before = len(api.server.requests("POST", "/v1/files"))
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n"
        f"Authorization: Bearer {api.server.api_key}\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", api.server.port)) as connection:
        connection.sendall(head.encode() + b"x" * 100_000)
    for _ in range(20_000):
        calls = api.server.requests("POST", "/v1/files")[before:]
        if calls:
            break
    assert [call["status"] for call in calls] == [0]
    assert not list((api.server.folder / "state" / "tmp").iterdir())
    assert all(entry.startswith("batch-llm serve: ") for entry in api.server.log.splitlines())
