from __future__ import annotations

import json

import pytest

from tests.unit.server.api import ENDPOINT, Api, answer, ids, line, lines


def test_a_batch_is_answered_and_counted(api: Api) -> None:
    batch = api.run(lines(3), metadata={"token": "t"})
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert batch["metadata"] == {"token": "t"}
    assert batch["model"] == "m-1"
    assert batch["expires_at"] == batch["created_at"] + 86_400
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    assert batch["error_file_id"] is None
    rows = api.output(batch)
    assert ids(rows) == ["r-1", "r-2", "r-3"]
    usage = [row["response"]["body"]["usage"] for row in rows]
    assert batch["usage"]["input_tokens"] == sum(u["prompt_tokens"] for u in usage)
    assert batch["usage"]["output_tokens"] == sum(u["completion_tokens"] for u in usage)


def test_an_output_row_has_the_documented_shape(api: Api) -> None:
    [row] = api.output(api.run(line("any id / ü, " + "x" * 100)))
    assert set(row) == {"id", "custom_id", "response", "error"}
    assert row["id"].startswith("batch_req_")
    assert row["custom_id"] == "any id / ü, " + "x" * 100
    assert row["error"] is None
    assert set(row["response"]) == {"status_code", "request_id", "body"}
    assert row["response"]["status_code"] == 200
    body = row["response"]["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "m-1")
    assert body["choices"][0]["finish_reason"] == "stop"


def test_a_row_that_the_endpoint_refuses_goes_to_the_error_file(api: Api) -> None:
    data = line("r-1") + line("r-2", temperature=3) + line("r-3", max_tokens="many")
    batch = api.run(data + line("r-4", messages=[]) + line("r-5", "x" * 600_000))
    assert batch["request_counts"] == {"total": 5, "completed": 1, "failed": 4}
    assert ids(api.output(batch)) == ["r-1"]
    errors = {row["custom_id"]: row for row in api.errors(batch)}
    assert all(row["error"] is None and row["response"]["status_code"] == 400 for row in errors.values())
    found = {key: row["response"]["body"]["error"] for key, row in errors.items()}
    assert (found["r-2"]["param"], found["r-2"]["code"]) == ("temperature", "invalid_value")
    assert (found["r-3"]["param"], found["r-3"]["code"]) == ("max_tokens", "invalid_type")
    assert found["r-4"]["param"] == "messages"
    assert found["r-5"]["code"] == "context_length_exceeded"


def test_a_batch_without_one_good_row_completes_without_an_output_file(api: Api) -> None:
    batch = api.run(lines(2, temperature=9))
    assert (batch["status"], batch["output_file_id"]) == ("completed", None)
    assert batch["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
    assert batch["usage"]["total_tokens"] == 0
    assert len(api.errors(batch)) == 2


def test_result_files_live_as_long_as_asked(api: Api) -> None:
    asked = {"anchor": "created_at", "seconds": 7_200}
    batch = api.run(lines(1), output_expires_after=asked)
    stored = api.http.get(f"/files/{batch['output_file_id']}").json()
    assert stored["expires_at"] == stored["created_at"] + 7_200
    assert (stored["purpose"], stored["bytes"]) == ("batch_output", len(api.content(stored["id"])))


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{oops\n", "invalid_json_line", None),
        (b"\n", "invalid_json_line", None),
        (b"   \n", "invalid_json_line", None),
        (b"[1]\n", "invalid_json_line", None),
        (line("r-2").replace(b'"hello"', b"NaN"), "invalid_json_line", None),
        (line("r-2").replace(b"hello", b"half \\ud83d pair"), "invalid_json_line", None),
        (line("r-2").replace(b"hello", b"\xff\xfe"), "invalid_json_line", None),
        (line("r-2").replace(b"hello", b"a\x00b"), "invalid_json_line", None),
        (b"[" * 100_000 + b"\n", "invalid_json_line", None),
        (line("r-1"), "duplicate_custom_id", "custom_id"),
        (line(""), "missing_required_parameter", "custom_id"),
        (line("r-2").replace(b'"r-2"', b"7"), "missing_required_parameter", "custom_id"),
        (line("r-2", model="m-2"), "mismatched_model", "body.model"),
        (line("r-2", model=None), "invalid_request", "body.model"),
        (line("r-2").replace(ENDPOINT.encode(), b"/v1/embeddings"), "invalid_url", "url"),
        (line("r-2").replace(b"POST", b"GET"), "invalid_method", "method"),
        (line("r-2", stream=True), "streaming_unsupported", "body.stream"),
    ],
)
def test_one_bad_line_fails_the_batch_and_is_the_only_one_named(
    api: Api, bad: bytes, code: str, param: str | None
) -> None:
    batch = api.run(line("r-1") + bad + b"{also bad\n" + line("r-9"))
    assert batch["status"] == "failed"
    [error] = batch["errors"]["data"]
    assert (error["code"], error["param"], error["line"]) == (code, param, 2)
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert not batch["output_file_id"] and not batch["error_file_id"]
    assert api.server.charges(batch["id"]) == []


def test_a_byte_order_mark_is_an_invalid_line(api: Api) -> None:
    [error] = api.run(b"\xef\xbb\xbf" + lines(2))["errors"]["data"]
    assert (error["code"], error["line"]) == ("invalid_json_line", 1)


def test_an_empty_file_fails(api: Api) -> None:
    [error] = api.run(b"")["errors"]["data"]
    assert (error["code"], error["line"]) == ("empty_file", None)


def test_an_unknown_input_file_is_found_only_after_creation(api: Api) -> None:
    reply = api.create("file-none")
    assert (reply.status_code, reply.json()["status"]) == (200, "validating")
    batch = api.until(reply.json()["id"])
    [error] = batch["errors"]["data"]
    assert (batch["status"], error["code"], error["param"], error["line"]) == (
        "failed",
        "invalid_request",
        "file_id",
        None,
    )


def test_a_file_of_another_purpose_fails_like_an_unknown_one(api: Api) -> None:
    file_id = api.upload(lines(1), purpose="user_data").json()["id"]
    [error] = api.until(api.create(file_id).json()["id"])["errors"]["data"]
    assert error["param"] == "file_id"


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"completion_window": "1h"}, "completion_window"),
        ({"endpoint": "/v1/poems"}, "endpoint"),
        ({"metadata": {"k" * 65: "v"}}, None),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_create_call_that_breaks_a_rule_makes_no_batch(api: Api, extra: dict, param: str | None) -> None:
    before = len(api.server.batches())
    reply = api.create(api.file(lines(1)), **extra)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert param is None or error["param"] == param
    assert len(api.server.batches()) == before


def test_a_create_call_that_is_not_json_is_refused(api: Api) -> None:
    assert api.http.post("/batches", content=b"{").status_code == 400
    assert api.http.post("/batches", content=b" " * 2_000_000).status_code == 413


def test_batches_are_listed_newest_first_in_pages(api: Api) -> None:
    made = [api.create("file-none").json()["id"] for _ in range(5)]
    page = api.http.get("/batches", params={"limit": 2}).json()
    assert [batch["id"] for batch in page["data"]] == [made[4], made[3]]
    assert (page["object"], page["first_id"], page["last_id"]) == ("list", made[4], made[3])
    assert page["has_more"] is True
    page = api.http.get("/batches", params={"limit": 2, "after": page["last_id"]}).json()
    assert [batch["id"] for batch in page["data"]] == [made[2], made[1]]
    assert api.http.get("/batches", params={"limit": 101}).status_code == 400
    assert api.http.get("/batches", params={"after": "batch_none"}).status_code == 400


def test_an_unknown_batch_is_404_without_a_code(api: Api) -> None:
    for reply in (api.http.get("/batches/batch_none"), api.http.post("/batches/batch_none/cancel")):
        error = reply.json()["error"]
        assert reply.status_code == 404
        assert (error["type"], error["code"]) == ("invalid_request_error", None)


def test_a_cancelled_batch_keeps_what_was_answered(api: Api) -> None:
    api.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0.4}})
    started = api.start(lines(5))
    api.until(started["id"], ["in_progress"], rows=2)
    reply = api.http.post(f"/batches/{started['id']}/cancel").json()
    assert reply["status"] in ("cancelling", "cancelled")
    batch = api.until(started["id"])
    assert batch["status"] == "cancelled"
    assert batch["request_counts"] == {"total": 5, "completed": 2, "failed": 0}
    assert ids(api.output(batch)) == ["r-1", "r-2"]
    errors = api.errors(batch)
    assert ids(errors) == ["r-3", "r-4", "r-5"]
    assert all(row["response"] is None and row["error"]["code"] == "batch_cancelled" for row in errors)
    assert len(api.server.charges(batch["id"])) == 2


def test_cancelling_takes_as_long_as_the_scenario_says_and_can_be_repeated(api: Api) -> None:
    api.server.set_scenario({"pace": {"seconds": 86_400, "cancel_seconds": 86_400}})
    batch_id = api.start(lines(2))["id"]
    for _ in range(2):
        reply = api.http.post(f"/batches/{batch_id}/cancel")
        assert (reply.status_code, reply.json()["status"]) == (200, "cancelling")
    assert api.get(batch_id)["cancelling_at"]
    api.server.release(batch_id)
    assert api.until(batch_id)["status"] == "cancelled"
    assert api.http.post(f"/batches/{batch_id}/cancel").json()["status"] == "cancelled"


def test_a_finished_batch_cannot_be_cancelled_and_does_not_change(api: Api) -> None:
    batch = api.run(lines(1))
    assert api.http.post(f"/batches/{batch['id']}/cancel").status_code == 409
    assert api.get(batch["id"]) == batch


def test_unknown_paths_and_methods_get_the_envelope(api: Api) -> None:
    assert api.http.get("/poems").json()["error"]["type"] == "invalid_request_error"
    assert api.http.get("/poems").status_code == 404
    assert api.http.patch("/batches").status_code == 405


def test_the_simulated_model_is_named_as_what_it_is(api: Api) -> None:
    assert [model["id"] for model in api.http.get("/models").json()["data"]] == ["simulated"]


def test_the_same_question_gets_the_same_answer_in_another_batch(api: Api) -> None:
    first, second = (api.output(api.run(line(f"r-{i}", "the same"))) for i in range(2))
    assert answer(first[0]) == answer(second[0])


def test_every_reply_carries_a_request_id_that_the_log_knows(api: Api) -> None:
    reply = api.http.get("/models")
    call = api.server.requests("GET", "/v1/models")[-1]
    assert call["request_id"] == reply.headers["x-request-id"]
    assert call["status"] == 200


def test_the_charge_log_says_who_was_charged_and_holds_no_text(api: Api) -> None:
    batch = api.run(line("r-1", "a secret phrase") + line("r-2", temperature=5))
    good, bad = api.server.charges(batch["id"])
    assert (good["custom_id"], good["status"], good["charged"]) == ("r-1", 200, True)
    assert (bad["custom_id"], bad["status"], bad["charged"]) == ("r-2", 400, False)
    assert good["input_tokens"] and good["output_tokens"] and len(good["body_sha256"]) == 64
    assert "secret" not in json.dumps([good, bad])
    assert "secret" not in api.server.log
