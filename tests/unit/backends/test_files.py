"""Files go up as a stream of known length and come down whole or not at all."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, ResultFile
from airflow_batch_llm.exceptions import AuthError, NotFound, Refused, TransferError, Unreachable
from tests.unit.backends.conftest import Bench
from tests.unit.backends.scripted_server import Reply, ScriptedServer

BATCH = RemoteBatch(id="batch_1", status=RemoteStatus.DONE, raw_status="completed")
OUTPUT = ResultFile("output", "file-out")
ROW = b'{"custom_id":"r-1"}\n'
CONTENT = ROW * 50
GET_FILE, GET_CONTENT = "GET /v1/files/file-out", "GET /v1/files/file-out/content"


@pytest.fixture
def storage() -> Iterator[ScriptedServer]:
    """Another host, as signed URLs name one."""
    with ScriptedServer() as scripted:
        yield scripted


def upload(bench: Bench, tmp_path: Path, name: str = "b-0.jsonl", row: str = "openai", **options: Any) -> str:
    local = tmp_path / "requests"
    local.write_bytes(CONTENT)
    return bench.run(lambda backend: backend.upload(local, name), row, **options)


def download(bench: Bench, tmp_path: Path, counts: Any = None, **options: Any) -> bytes:
    local = tmp_path / "output.jsonl"
    batch = replace(BATCH, counts=counts or {})
    bench.run(lambda backend: backend.download(batch, OUTPUT, local), **options)
    assert list(tmp_path.iterdir()) == [local]
    return local.read_bytes()


def test_an_upload_has_a_length_and_names_its_purpose_and_expiry_before_the_file(
    bench: Bench, tmp_path: Path
) -> None:
    bench.server.script = [Reply(200, {"id": "file-in", "bytes": len(CONTENT)})]
    assert upload(bench, tmp_path) == "file-in"
    (request,) = bench.server.seen("POST", "/files")
    assert int(request.headers["content-length"]) == len(request.body)
    assert "transfer-encoding" not in request.headers
    parts = [
        b'name="purpose"',
        b'name="expires_after[anchor]"',
        b'name="expires_after[seconds]"',
        b'name="file"',
    ]
    places = [request.body.index(part) for part in parts]
    assert places == sorted(places)
    assert b"\r\n\r\n2592000\r\n" in request.body
    assert b'filename="b-0.jsonl"' in request.body
    assert CONTENT in request.body


def test_a_dialect_without_expiry_gets_none(bench: Bench, tmp_path: Path) -> None:
    bench.server.script = [Reply(200, {"id": "file-in"})]
    upload(bench, tmp_path, row="generic")
    assert b"expires_after" not in bench.server.received[0].body


def test_an_upload_that_failed_is_sent_again_from_its_first_byte(bench: Bench, tmp_path: Path) -> None:
    bench.server.script = [Reply(502, b""), Reply(drop=True), Reply(200, {"id": "file-in"})]
    assert upload(bench, tmp_path) == "file-in"
    assert CONTENT in bench.server.received[0].body
    assert len({request.body for request in bench.server.received}) == 1, "each try sends the same bytes"


def test_an_upload_that_arrived_short_is_sent_again_and_then_an_error(bench: Bench, tmp_path: Path) -> None:
    bench.server.script = [Reply(200, {"id": "file-in", "bytes": 7})] * 3
    with pytest.raises(TransferError):
        upload(bench, tmp_path)
    assert len(bench.server.received) == 3


def test_an_uploads_name_always_ends_in_jsonl(bench: Bench, tmp_path: Path) -> None:
    bench.server.script = [Reply(200, {"id": "file-in"})]
    upload(bench, tmp_path, name="job-1")
    assert b'filename="job-1.jsonl"' in bench.server.received[0].body


@pytest.mark.parametrize("size", [len(CONTENT), None, 0, str(len(CONTENT))])
def test_a_file_comes_down_whole(bench: Bench, tmp_path: Path, size: Any) -> None:
    bench.server.routes = {
        GET_FILE: Reply(200, {"id": "file-out", "bytes": size}),
        GET_CONTENT: Reply(200, CONTENT),
    }
    assert download(bench, tmp_path) == CONTENT


def test_an_empty_file_is_whole(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out", "bytes": 0}), GET_CONTENT: Reply(200, b"")}
    assert download(bench, tmp_path) == b""


def test_a_compressed_transfer_is_measured_by_what_it_holds(bench: Bench, tmp_path: Path) -> None:
    packed = Reply(200, gzip.compress(CONTENT), {"content-encoding": "gzip"})
    bench.server.routes = {
        GET_FILE: Reply(200, {"id": "file-out", "bytes": len(CONTENT)}),
        GET_CONTENT: packed,
    }
    assert download(bench, tmp_path) == CONTENT


def test_a_download_that_was_cut_is_fetched_again(bench: Bench, tmp_path: Path) -> None:
    cut = Reply(200, CONTENT[:100], promised=len(CONTENT))
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out", "bytes": len(CONTENT)})}
    bench.server.script = [cut, Reply(503, b""), Reply(200, CONTENT)]
    assert download(bench, tmp_path) == CONTENT


def test_a_page_in_place_of_the_file_is_not_the_file(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out", "bytes": len(CONTENT)})}
    bench.server.script = [Reply(200, b"<html>\n" + b"<p>Soon.</p>\n" * 200), Reply(200, CONTENT)]
    assert download(bench, tmp_path) == CONTENT


def test_more_rows_than_the_named_size_has_room_for_are_no_fault_of_the_file(
    bench: Bench, tmp_path: Path
) -> None:
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out", "bytes": 400})}
    bench.server.script = [Reply(200, CONTENT)]
    assert download(bench, tmp_path) == CONTENT


def test_a_size_that_is_wrong_leaves_the_rows_to_be_counted(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out", "bytes": 400})}
    bench.server.script = [Reply(200, ROW * 30), Reply(200, CONTENT)]
    assert download(bench, tmp_path, counts={"completed": 50}) == CONTENT


@pytest.mark.parametrize(
    "described", [Reply(200, {"id": "file-out"}), Reply(404, {}), Reply(405, b""), Reply(200, b"<html>")]
)
def test_a_file_of_unknown_size_that_was_cut_between_rows_is_fetched_again(
    bench: Bench, tmp_path: Path, described: Reply
) -> None:
    bench.server.routes = {GET_FILE: described}
    bench.server.script = [Reply(200, ROW * 20), Reply(200, ROW * 35), Reply(200, CONTENT)]
    assert download(bench, tmp_path, counts={"completed": 50, "failed": 0}) == CONTENT


def test_rows_that_are_counted_and_truly_missing_are_believed(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out"}), GET_CONTENT: Reply(200, CONTENT)}
    assert download(bench, tmp_path, counts={"completed": 51}) == CONTENT
    assert len(bench.server.seen("GET", "/files/file-out/content")) == 3


def test_a_file_of_the_named_size_is_believed_whatever_is_counted(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {
        GET_FILE: Reply(200, {"id": "file-out", "bytes": len(CONTENT)}),
        GET_CONTENT: Reply(200, CONTENT),
    }
    assert download(bench, tmp_path, counts={"completed": 99}) == CONTENT
    assert len(bench.server.seen("GET", "/files/file-out/content")) == 1


def test_a_file_that_went_between_two_reads_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out"})}
    bench.server.script = [Reply(200, ROW), Reply(404, {"error": {"message": "x"}})]
    with pytest.raises(NotFound):
        download(bench, tmp_path, counts={"completed": 2})
    assert list(tmp_path.iterdir()) == []


def test_a_description_that_does_not_come_is_asked_for_again_and_then_an_error(
    bench: Bench, tmp_path: Path
) -> None:
    bench.server.routes = {GET_CONTENT: Reply(200, CONTENT)}
    bench.server.script = [Reply(503, b""), Reply(200, {"id": "file-out", "bytes": len(CONTENT)})]
    assert download(bench, tmp_path) == CONTENT
    bench.server.received.clear()
    bench.server.routes[GET_FILE] = Reply(503, b"")
    with pytest.raises(Unreachable):
        download(bench, tmp_path)
    assert bench.server.seen("GET", "/files/file-out/content") == []


@pytest.mark.parametrize(
    "short",
    [Reply(200, CONTENT[:100], promised=len(CONTENT)), Reply(200, CONTENT[:100])],
    ids=["cut", "complete"],
)
def test_a_download_that_stays_short_leaves_nothing(bench: Bench, tmp_path: Path, short: Reply) -> None:
    bench.server.routes = {
        GET_FILE: Reply(200, {"id": "file-out", "bytes": len(CONTENT)}),
        GET_CONTENT: short,
    }
    with pytest.raises(TransferError):
        download(bench, tmp_path)
    assert len(bench.server.seen("GET", "/files/file-out/content")) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_not_found(bench: Bench, tmp_path: Path) -> None:
    bench.server.script = [Reply(404, {"error": {"message": "x"}})] * 2
    with pytest.raises(NotFound):
        download(bench, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_serves_only_content_is_enough(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {GET_FILE: Reply(405, b""), GET_CONTENT: Reply(200, CONTENT)}
    assert download(bench, tmp_path) == CONTENT


def test_a_wrong_key_is_said_at_once(bench: Bench, tmp_path: Path) -> None:
    bench.server.script = [Reply(401, b"")]
    with pytest.raises(AuthError):
        download(bench, tmp_path)


def test_a_redirect_is_followed_without_the_key(
    bench: Bench, storage: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    storage.script = [Reply(200, CONTENT)]
    away = Reply(302, b"", {"location": storage.base_url + "/signed?sig=1"})
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out", "bytes": len(CONTENT)}), GET_CONTENT: away}
    assert download(bench, tmp_path) == CONTENT
    (request,) = storage.received
    assert request.path == "/v1/signed?sig=1"
    assert "authorization" not in request.headers
    assert "GET" in caplog.text
    assert "sig=1" not in caplog.text


def test_a_redirect_within_the_host_keeps_the_key(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes = {
        GET_FILE: Reply(200, {"id": "file-out"}),
        GET_CONTENT: Reply(307, b"", {"location": "/v1/blobs/9"}),
        "GET /v1/blobs/9": Reply(200, CONTENT),
    }
    assert download(bench, tmp_path) == CONTENT
    assert bench.server.seen("GET", "/blobs/9")[0].headers["authorization"] == "Bearer key-1"


def test_a_signed_address_that_ran_out_is_asked_for_anew(
    bench: Bench, storage: ScriptedServer, tmp_path: Path
) -> None:
    storage.script = [Reply(403, b"<Error>expired</Error>"), Reply(200, CONTENT)]
    away = Reply(302, b"", {"location": storage.base_url + "/signed"})
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out"}), GET_CONTENT: away}
    assert download(bench, tmp_path) == CONTENT
    assert len(bench.server.seen("GET", "/files/file-out/content")) == 2


@pytest.mark.parametrize("location", ["/v1/files/file-out/content", "http://[bad"])
def test_a_redirect_that_leads_nowhere_ends(bench: Bench, tmp_path: Path, location: str) -> None:
    bench.server.routes = {
        GET_FILE: Reply(200, {"id": "file-out"}),
        GET_CONTENT: Reply(302, b"", {"location": location}),
    }
    with pytest.raises((TransferError, Unreachable)):
        download(bench, tmp_path)


def test_a_storage_that_cannot_be_reached_is_named_without_its_signed_address(
    bench: Bench, tmp_path: Path
) -> None:
    away = Reply(302, b"", {"location": "http://localhost:1/signed?sig=1"})
    bench.server.routes = {GET_FILE: Reply(200, {"id": "file-out"}), GET_CONTENT: away}
    with pytest.raises(Unreachable) as caught:
        download(bench, tmp_path)
    told = str(caught.value)
    assert "/v1/files/file-out/content (redirected to localhost): no usable reply" in told
    assert "sig" not in told


def test_an_id_is_one_part_of_the_path(bench: Bench) -> None:
    bench.server.script = [Reply(200, {"deleted": True})]
    bench.run(lambda backend: backend.delete_file("a/b?c=="))
    assert bench.server.received[0].path == "/v1/files/a%2Fb%3Fc%3D%3D"


def test_an_empty_id_is_never_asked_for(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.download(BATCH, ResultFile("error", ""), tmp_path / "x"))
    assert bench.server.received == []


def test_deleting_a_file_that_is_gone_is_fine(bench: Bench) -> None:
    bench.server.script = [Reply(404, {"error": {"message": "x"}})]
    bench.run(lambda backend: backend.delete_file("file-in"))
    assert [request.method for request in bench.server.received] == ["DELETE"]
