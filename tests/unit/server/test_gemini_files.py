from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from tests.local_server import LocalServer
from tests.unit.server.gemini_client import START, Gemini, error_of, line, lines


@pytest.fixture
def gemini(shared_server: LocalServer) -> Gemini:
    shared_server.set_scenario({})
    return Gemini(shared_server)


def test_an_upload_is_begun_sent_in_chunks_and_finalized(gemini: Gemini) -> None:
    begun = gemini.begin(X_Goog_Upload_Header_Content_Length="6").raise_for_status()
    assert begun.headers["x-goog-upload-status"] == "active"
    url = begun.headers["x-goog-upload-url"]
    first = gemini.chunk(url, b"abc", command="upload")
    assert (first.status_code, first.headers["x-goog-upload-status"]) == (200, "active")
    last = gemini.chunk(url, b"def", offset=3)
    assert last.headers["x-goog-upload-status"] == "final"
    file = last.json()["file"]
    assert file["sizeBytes"] == "6" and file["state"] == "ACTIVE" and file["displayName"] == "in"
    assert file["uri"].endswith(f"/gemini/v1beta/{file['name']}")
    assert base64.b64decode(file["sha256Hash"]).decode() == hashlib.sha256(b"abcdef").hexdigest()
    assert gemini.get(file["name"]) == file


def test_the_address_of_an_upload_needs_no_key_and_nothing_else_is_reached_by_it(gemini: Gemini) -> None:
    stranger = Gemini(gemini.server, **{"x-nothing": "here"})
    url = gemini.begun()
    assert stranger.chunk(url, b"x").status_code == 200
    assert error_of(stranger.chunk(url.replace("upload_id=", "upload_id=x"), b"x")) == (404, "NOT_FOUND")
    assert error_of(stranger.begin()) == (400, "INVALID_ARGUMENT")
    path = "/upload/v1beta/files?upload_id=made-up"
    assert error_of(stranger.http.post(path, headers=START, json={})) == (404, "NOT_FOUND")
    assert error_of(stranger.http.get("/v1beta/files?upload_id=made-up")) == (400, "INVALID_ARGUMENT")


def test_a_chunk_whose_reply_was_lost_is_sent_again_without_harm(gemini: Gemini) -> None:
    url = gemini.begun()
    for _ in range(2):
        gemini.chunk(url, b"abc", command="upload").raise_for_status()
    names = [gemini.chunk(url, b"def", offset=3).raise_for_status().json()["file"]["name"] for _ in range(2)]
    assert names[0] == names[1]
    assert gemini.get(names[0])["sizeBytes"] == "6"


def test_an_upload_says_how_far_it_is(gemini: Gemini) -> None:
    url = gemini.begun()
    gemini.chunk(url, b"abc", command="upload").raise_for_status()
    said = gemini.chunk(url, b"", command="query").headers
    assert (said["x-goog-upload-status"], said["x-goog-upload-size-received"]) == ("active", "3")
    gap = gemini.chunk(url, b"x", offset=5)
    assert error_of(gap) == (400, "INVALID_ARGUMENT")


def test_an_upload_that_is_given_up_is_gone(gemini: Gemini) -> None:
    url = gemini.begun()
    assert gemini.chunk(url, b"", command="cancel").headers["x-goog-upload-status"] == "cancelled"
    assert error_of(gemini.chunk(url, b"x")) == (404, "NOT_FOUND")


def test_a_length_that_was_not_announced_is_refused(gemini: Gemini) -> None:
    url = gemini.begin(X_Goog_Upload_Header_Content_Length="7").headers["x-goog-upload-url"]
    refused = gemini.chunk(url, b"abc")
    assert error_of(refused) == (400, "INVALID_ARGUMENT")
    assert refused.headers["x-goog-upload-status"] == "final"
    too_long = gemini.begin(X_Goog_Upload_Header_Content_Length="2000000001")
    assert error_of(too_long) == (400, "INVALID_ARGUMENT")


def test_bytes_can_be_sent_in_one_call(gemini: Gemini) -> None:
    sent = gemini.http.post("/upload/v1beta/files?uploadType=media", content=b"abc")
    file = sent.raise_for_status().json()["file"]
    assert file["sizeBytes"] == "3" and gemini.get(file["name"])["state"] == "ACTIVE"


def test_a_name_can_be_chosen_once(gemini: Gemini) -> None:
    def upload(name: str) -> Any:
        begun = gemini.http.post("/upload/v1beta/files", headers=START, json={"file": {"name": name}})
        if begun.status_code != 200:
            return begun
        return gemini.chunk(begun.headers["x-goog-upload-url"], b"x")

    assert upload("files/my-own-name").json()["file"]["name"] == "files/my-own-name"
    assert error_of(upload("files/my-own-name")) == (409, "ALREADY_EXISTS")
    for wrong in ("my-name", "files/Upper", "files/-dash", "files/" + "a" * 41, "files/../x"):
        assert error_of(upload(wrong)) == (400, "INVALID_ARGUMENT")


def test_files_are_the_same_under_both_versions(gemini: Gemini) -> None:
    newer = Gemini(gemini.server, "v1")
    name = newer.file(lines(2))
    assert gemini.get(name)["name"] == newer.get(name)["name"] == name
    batch = newer.until_done(newer.create({"fileName": name}).json()["name"])
    assert newer.content(batch["response"]["responsesFile"]) == gemini.content(
        batch["response"]["responsesFile"]
    )


def test_a_file_is_looked_through_before_it_can_be_used(gemini: Gemini) -> None:
    gemini.server.set_scenario({"files_ready_after": 2})
    name = gemini.file(line("r-1"))
    assert error_of(gemini.create({"file_name": name})) == (400, "FAILED_PRECONDITION")
    assert [gemini.get(name)["state"] for _ in range(3)] == ["PROCESSING", "PROCESSING", "ACTIVE"]
    assert gemini.create({"file_name": name}).status_code == 200


def test_files_are_listed_in_pages_and_are_nobody_elses(gemini: Gemini) -> None:
    names = [gemini.file(line("r-1")) for _ in range(3)]
    first = gemini.list("files", pageSize="2")
    assert [file["name"] for file in first["files"]] == names[:0:-1]
    second = gemini.list("files", pageSize="1", pageToken=first["nextPageToken"])
    assert second["files"][0]["name"] == names[0]
    openai = gemini.http.get(f"{gemini.server.url}/files").json()["data"]
    assert not {file["id"] for file in openai} & {name.removeprefix("files/") for name in names}
    assert error_of(gemini.http.get("/v1beta/files", params={"pageToken": "x"})) == (400, "INVALID_ARGUMENT")


def test_a_file_is_deleted_once_and_then_forbidden(gemini: Gemini) -> None:
    name = gemini.file(line("r-1"))
    assert gemini.http.delete(f"/v1beta/{name}").json() == {}
    assert error_of(gemini.http.delete(f"/v1beta/{name}")) == (403, "PERMISSION_DENIED")
    assert error_of(gemini.http.get(f"/v1beta/{name}")) == (403, "PERMISSION_DENIED")
    assert error_of(gemini.create({"file_name": name})) == (403, "PERMISSION_DENIED")


def test_results_belong_to_their_batch_and_uploads_cannot_be_downloaded(gemini: Gemini) -> None:
    name = gemini.file(lines(1))
    batch = gemini.until_done(gemini.create({"file_name": name}).json()["name"])
    results = batch["response"]["responsesFile"]
    assert results == "files/batch-" + batch["name"].removeprefix("batches/") and len(results) > 46
    shown = gemini.get(results)
    assert shown["source"] == "GENERATED" and int(shown["sizeBytes"]) == len(gemini.content(results))
    assert gemini.http.get(shown["downloadUri"]).content == gemini.content(results)
    assert error_of(gemini.http.delete(f"/v1beta/{results}")) == (400, "INVALID_ARGUMENT")
    upload = gemini.http.get(f"/download/v1beta/{name}:download", params={"alt": "media"})
    assert error_of(upload) == (400, "INVALID_ARGUMENT")
    gemini.http.delete(f"/v1beta/{batch['name']}").raise_for_status()
    assert error_of(gemini.http.get(f"/v1beta/{results}")) == (403, "PERMISSION_DENIED")


def test_call_faults_hit_uploads_and_downloads(gemini: Gemini) -> None:
    data = lines(20)
    batch = gemini.until_done(gemini.start(data))
    whole = gemini.content(batch["response"]["responsesFile"])
    gemini.server.set_scenario(
        {
            "calls": [
                {"on": "download", "fault": "cut", "times": 1},
                {"on": "upload", "fault": "error", "status": 503, "skip": 1, "times": 1},
            ]
        }
    )
    cut = gemini.content(batch["response"]["responsesFile"])
    assert whole.startswith(cut) and 0 < len(cut) < len(whole)
    url = gemini.begun()
    assert error_of(gemini.chunk(url, data)) == (503, "UNAVAILABLE")
    assert gemini.chunk(url, data).status_code == 200
