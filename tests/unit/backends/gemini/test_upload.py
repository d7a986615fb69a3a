"""Uploads in pieces: each is taken up again where it broke off, or the whole is sent anew."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_batch_llm.backends.gemini_upload import ResumableUpload
from airflow_batch_llm.exceptions import ProviderError, Refused, TransferError, Unreachable
from tests.unit.backends.gemini.conftest import Bench, Reply

DATA = b"0123456789"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(DATA)
    return path


def begun(bench: Bench) -> Reply:
    return Reply(200, headers={"X-Goog-Upload-URL": f"{bench.root}/pieces?upload_id=secret"})


def active(received: int | None = None) -> Reply:
    headers = {"X-Goog-Upload-Status": "active"}
    if received is not None:
        headers["X-Goog-Upload-Size-Received"] = str(received)
    return Reply(200, headers=headers)


def final(size: int | None = len(DATA)) -> Reply:
    file = {"name": "files/f1", "state": "PROCESSING"} | ({} if size is None else {"sizeBytes": str(size)})
    return Reply(200, {"file": file}, {"X-Goog-Upload-Status": "final"})


def send(bench: Bench, local: Path, piece: int = 4) -> str:
    async def call(backend: object) -> str:
        client = backend._client  # type: ignore[attr-defined]
        upload = ResumableUpload(client, "/upload/v1beta/files", 5.0, piece=piece)
        return await upload.send(local, "batch.jsonl")

    return bench.run(call)


def pieces(bench: Bench) -> list[tuple[str, str, bytes]]:
    """Command, offset and bytes of each call to the address that the pieces go to."""
    return [
        (r.headers["x-goog-upload-command"], r.headers.get("x-goog-upload-offset", ""), r.body)
        for r in bench.received
        if r.path.startswith("/pieces")
    ]


def test_a_file_goes_in_pieces_and_the_last_one_ends_it(bench: Bench, local: Path) -> None:
    bench.plays(begun(bench), active(), active(), final())
    assert send(bench, local) == "files/f1"
    first = bench.received[0]
    assert (first.method, first.path, first.json) == (
        "POST", "/upload/v1beta/files", {"file": {"display_name": "batch.jsonl"}},
    )  # fmt: skip
    assert {name: value for name, value in first.headers.items() if name.startswith("x-goog-upload")} == {
        "x-goog-upload-protocol": "resumable",
        "x-goog-upload-command": "start",
        "x-goog-upload-header-content-length": "10",
        "x-goog-upload-header-content-type": "application/jsonl",
    }
    assert pieces(bench) == [
        ("upload", "0", b"0123"),
        ("upload", "4", b"4567"),
        ("upload, finalize", "8", b"89"),
    ]


def test_a_file_of_one_piece_is_ended_with_it(bench: Bench, local: Path) -> None:
    bench.plays(begun(bench), final())
    assert bench.run(lambda backend: backend.upload(local, "b.jsonl")) == "files/f1"
    assert pieces(bench) == [("upload, finalize", "0", DATA)]


@pytest.mark.parametrize("broken", [Reply(drop=True), Reply(503, b"busy"), Reply(200)])
@pytest.mark.parametrize(("held", "rest"), [(4, b"4567"), (6, b"6789"), (8, b"89")])
def test_a_piece_that_broke_off_is_taken_up_where_the_server_says(
    bench: Bench, local: Path, broken: Reply, held: int, rest: bytes
) -> None:
    ending = [final()] if held + 4 >= len(DATA) else [active(), final()]
    bench.plays(begun(bench), active(), broken, active(held), *ending)
    assert send(bench, local) == "files/f1"
    assert ("query", "", b"") in pieces(bench)
    assert pieces(bench)[3][1:] == (str(held), rest)
    assert len([r for r in bench.received if r.path == "/upload/v1beta/files"]) == 1


def test_an_ending_that_was_not_heard_is_sent_again(bench: Bench, local: Path) -> None:
    bench.plays(begun(bench), active(), active(), active(), active(10), final())
    assert send(bench, local) == "files/f1"
    assert pieces(bench)[-1] == ("upload, finalize", "10", b"")


@pytest.mark.parametrize(
    "lost",
    [
        [Reply(drop=True), Reply(404, {})],
        [Reply(drop=True), Reply(drop=True)],
        [Reply(drop=True), Reply(200, headers={"X-Goog-Upload-Status": "cancelled"})],
        [Reply(drop=True), Reply(200, headers={"X-Goog-Upload-Status": "final"})],
        [Reply(drop=True), active(99)],
        [Reply(drop=True), active()],
    ],
)
def test_an_upload_that_cannot_be_taken_up_again_is_started_anew(
    bench: Bench, local: Path, lost: list[Reply]
) -> None:
    bench.plays(begun(bench), active(), *lost, begun(bench), active(), active(), final())
    assert send(bench, local) == "files/f1"
    assert [offset for command, offset, _ in pieces(bench) if command != "query"] == ["0", "4", "0", "4", "8"]


@pytest.mark.parametrize("last", [Reply(200, {}, {"X-Goog-Upload-Status": "final"}), final(7)])
def test_an_ending_without_the_whole_file_is_started_anew(bench: Bench, local: Path, last: Reply) -> None:
    bench.plays(begun(bench), last, begun(bench), final(None))
    assert send(bench, local, 100) == "files/f1"


def test_a_piece_that_never_arrives_ends_in_an_error_that_may_be_tried_again(
    bench: Bench, local: Path
) -> None:
    stuck = [Reply(503), active(0)]
    bench.plays(*([begun(bench)] + stuck * 4) * 3)
    with pytest.raises(TransferError) as told:
        send(bench, local)
    assert not told.value.deterministic and "byte 0 of 10" in str(told.value)
    assert [path for _, path in bench.sent()].count("/upload/v1beta/files") == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_an_address_that_has_run_out_says_nothing_of_the_key_and_the_upload_begins_anew(
    status: int, bench: Bench, local: Path
) -> None:
    error = {"error": {"code": status, "status": "PERMISSION_DENIED"}}
    bench.plays(begun(bench), Reply(status, error), begun(bench), final())
    assert send(bench, local, 100) == "files/f1"
    bench.plays(*[begun(bench), Reply(status, error)] * 3)
    with pytest.raises(TransferError):
        send(bench, local, 100)


def test_a_wrong_address_is_told_where_the_upload_begins(bench: Bench, local: Path) -> None:
    bench.plays(Reply(404, b"not here"))
    with pytest.raises(Refused, match="no such endpoint"):
        send(bench, local)


def test_a_start_that_fails_is_repeated_or_told(bench: Bench, local: Path) -> None:
    bench.plays(Reply(503), Reply(200, {}), begun(bench), final())
    assert send(bench, local, 100) == "files/f1"
    bench.plays(*[Reply(503)] * 3)
    with pytest.raises(Unreachable):
        send(bench, local)


def test_the_key_goes_to_the_providers_own_host_only(bench: Bench, local: Path) -> None:
    elsewhere = bench.root.replace("127.0.0.1", "localhost")
    bench.plays(Reply(200, headers={"X-Goog-Upload-URL": f"{elsewhere}/pieces?upload_id=1"}), final())
    send(bench, local, 100)
    assert "x-goog-api-key" in bench.received[0].headers
    assert "x-goog-api-key" not in bench.received[1].headers


def test_the_address_of_the_pieces_stands_in_no_log_and_no_message(
    bench: Bench, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bench.plays(*[begun(bench), Reply(400, {"error": {"code": 400, "status": "INVALID_ARGUMENT"}})])
    with pytest.raises(ProviderError) as told:
        send(bench, local)
    assert "secret" not in caplog.text + str(told.value)
