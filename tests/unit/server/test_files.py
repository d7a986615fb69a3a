from __future__ import annotations

import time

import pytest

from tests.local_server import LocalServer
from tests.unit.server.api import Api, line, lines


def test_a_file_comes_back_byte_for_byte(api: Api) -> None:
    data = line("r-1", "é\u2028\U0001f600 \x00") + b'{"odd": \xff}\r\n' + b"no last newline"
    stored = api.upload(data).json()
    assert (stored["object"], stored["bytes"], stored["purpose"]) == ("file", len(data), "batch")
    assert api.content(stored["id"]) == data


def test_a_file_lives_thirty_days_unless_asked_otherwise(api: Api) -> None:
    stored = api.upload(b"{}\n").json()
    assert stored["expires_at"] == stored["created_at"] + 30 * 86_400
    asked = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    stored = api.upload(b"{}\n", **asked).json()
    assert stored["expires_at"] == stored["created_at"] + 3_600


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "cooking"}, "purpose"),
        ({"expires_after[anchor]": "never", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
    ],
)
def test_a_wrong_field_of_an_upload_is_refused_by_name(api: Api, fields: dict[str, str], param: str) -> None:
    reply = api.upload(b"{}\n", **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_a_name_that_does_not_end_in_jsonl_is_refused(api: Api) -> None:
    reply = api.upload(b"{}\n", name="in.json")
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)


def test_an_upload_that_is_no_form_or_has_no_file_is_refused(api: Api) -> None:
    assert api.http.post("/files", json={}).status_code == 400
    assert api.http.post("/files", files={"purpose": (None, "batch")}).json()["error"]["param"] == "file"
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    assert api.http.post("/files", content=b"nothing of the kind", headers=broken).status_code == 400


def test_a_deleted_file_is_gone_everywhere(api: Api) -> None:
    file_id = api.file(b"{}\n")
    assert api.http.delete(f"/files/{file_id}").json() == {"id": file_id, "object": "file", "deleted": True}
    for reply in (
        api.http.get(f"/files/{file_id}"),
        api.http.get(f"/files/{file_id}/content"),
        api.http.delete(f"/files/{file_id}"),
    ):
        assert reply.status_code == 404
        assert reply.json()["error"]["type"] == "invalid_request_error"
    assert file_id not in [stored["id"] for stored in api.http.get("/files").json()["data"]]


def test_deleting_the_input_of_a_running_batch_does_not_disturb_it(api: Api) -> None:
    api.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0}})
    file_id = api.file(lines(3))
    batch = api.create(file_id).json()
    api.until(batch["id"], ["in_progress"])
    assert api.http.delete(f"/files/{file_id}").status_code == 200
    api.server.release(batch["id"])
    assert len(api.output(api.until(batch["id"]))) == 3
    assert not (api.server.folder / "state" / "files" / file_id).exists()


def test_files_are_listed_in_pages_in_both_orders_and_by_purpose(api: Api) -> None:
    made = [api.file(b"{}\n") for _ in range(5)]
    page = api.http.get("/files", params={"limit": 2}).json()
    assert [stored["id"] for stored in page["data"]] == made[:2:-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[4], made[3], True)
    page = api.http.get("/files", params={"limit": 2, "after": made[3]}).json()
    assert [stored["id"] for stored in page["data"]] == [made[2], made[1]]
    page = api.http.get("/files", params={"order": "asc", "after": made[2]}).json()
    assert [stored["id"] for stored in page["data"]] == made[3:]
    batch = api.run(lines(1))
    found = api.http.get("/files", params={"purpose": "batch_output"}).json()["data"]
    assert batch["output_file_id"] in [stored["id"] for stored in found]
    assert not set(made) & {stored["id"] for stored in found}


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"order": "odd"}, {"after": "file-none"}])
def test_a_list_call_that_makes_no_sense_is_refused(api: Api, query: dict[str, str]) -> None:
    assert api.http.get("/files", params=query).status_code == 400


def test_an_upload_above_the_limit_gets_413_and_leaves_nothing(tmp_path) -> None:
    with LocalServer(tmp_path, args=("--max-bytes", "700", "--max-requests", "3")) as server:
        api = Api(server)
        reply = api.upload(b"x" * 701)
        assert reply.status_code == 413
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert api.upload(b"x" * 700).status_code == 200
        assert api.create(api.file(lines(4))).status_code == 400
        assert api.create(api.file(lines(3))).status_code == 200
        assert not list((tmp_path / "state" / "tmp").iterdir())


def test_an_expired_file_is_gone(api: Api, mocker) -> None:
    from airflow_batch_llm.server.database import Database
    from airflow_batch_llm.server.files import FileStore

    folder = api.server.folder / "other"
    folder.mkdir()
    store = FileStore(Database(folder / "server.db"), folder)
    temporary = store.new_temporary()
    temporary.write_bytes(b"{}\n")
    stored = store.add(temporary, filename="a.jsonl", purpose="batch", lines=1, life=3_600)
    assert store.get(stored.id) == stored
    mocker.patch("airflow_batch_llm.server.files.time.time", return_value=time.time() + 3_601)
    assert store.get(stored.id) is None
    store.sweep_all()
    assert not store.path(stored.id).exists()
