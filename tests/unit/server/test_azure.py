"""Azure OpenAI's paths of the local server: where they are as with OpenAI, and where not."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.unit.server.api import Api, ids, line, lines

LEGACY = "/openai"
V1 = "/openai/v1"
VERSION = {"api-version": "2024-10-21"}
LOOKS = 20_000
DAYS_14, DAYS_30 = 1_209_600, 2_592_000


class AzureApi(Api):
    """Calls of Azure's paths."""

    def __init__(self, api: Api, root: str = V1) -> None:
        self.server = api.server
        params = VERSION if root == LEGACY else {}
        self.http = httpx.Client(
            base_url=self.server.url_of("azure") + root,
            headers={"api-key": self.server.api_key},
            params=params,
            timeout=60,
        )


@pytest.fixture(params=[V1, LEGACY], ids=["v1", "legacy"])
def azure(request: pytest.FixtureRequest, api: Api) -> AzureApi:
    """Each kind of path."""
    return AzureApi(api, request.param)


@pytest.fixture
def v1(api: Api) -> AzureApi:
    return AzureApi(api)


def spelled(data: bytes, url: str) -> bytes:
    """Return lines with another spelling of their endpoint."""
    return data.replace(b"/v1/chat/completions", url.encode())


def test_a_batch_is_answered_and_has_an_error_file_without_bytes(azure: AzureApi) -> None:
    batch = azure.run(lines(3), metadata={"token": "t"})
    assert (batch["status"], batch["metadata"]) == ("completed", {"token": "t"})
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert batch["id"].startswith("batch_") and len(batch["id"]) == len("batch_") + 36
    assert ids(azure.output(batch)) == ["r-1", "r-2", "r-3"]
    assert batch["error_file_id"] and azure.content(batch["error_file_id"]) == b""
    assert azure.http.get(f"/files/{batch['error_file_id']}").json()["bytes"] == 0


def test_rows_have_no_id_and_say_what_the_content_filter_found(v1: AzureApi) -> None:
    rule = {"fault": "bad_request", "code": "content_filter", "match": {"custom_id": "r-2"}}
    v1.server.set_scenario({"rows": [rule]})
    batch = v1.run(lines(2))
    [row], [error] = v1.output(batch), v1.errors(batch)
    assert set(row) == set(error) == {"custom_id", "response", "error"}
    body = row["response"]["body"]
    assert body["model"] == "m-1"
    assert body["prompt_filter_results"][0]["content_filter_results"]["hate"]["severity"] == "safe"
    assert body["choices"][0]["content_filter_results"]["violence"]["filtered"] is False
    refused = error["response"]["body"]["error"]
    assert (error["response"]["status_code"], refused["code"]) == (400, "content_filter")
    assert refused["innererror"]["code"] == "ResponsibleAIPolicyViolation"


@pytest.mark.parametrize("url", ["/chat/completions", "/v1/chat/completions"])
def test_lines_and_batch_may_spell_the_endpoint_in_either_way(v1: AzureApi, url: str) -> None:
    data = spelled(lines(1), url) + spelled(line("r-2"), "/chat/completions") + line("r-3")
    batch = v1.run(data, endpoint=url)
    assert (batch["endpoint"], batch["request_counts"]["completed"]) == (url, 3)


def test_responses_have_a_fraction_in_their_time(v1: AzureApi) -> None:
    request = {"custom_id": "r-1", "method": "POST", "url": "/v1/responses"}
    data = json.dumps({**request, "body": {"model": "m-1", "input": "hello"}}).encode() + b"\n"
    [row] = v1.output(v1.run(data, endpoint="/v1/responses"))
    assert isinstance(row["response"]["body"]["created_at"], float)


def test_embeddings_are_no_endpoint_there(v1: AzureApi) -> None:
    reply = v1.create(v1.file(lines(1)), endpoint="/v1/embeddings")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")


def test_a_legacy_path_is_not_there_without_a_version(api: Api) -> None:
    azure = AzureApi(api, LEGACY)
    azure.http.params = httpx.QueryParams()
    for reply in (azure.http.get("/batches"), azure.upload(lines(1)), azure.create("file-1")):
        assert reply.status_code == 404
        assert reply.json() == {"error": {"code": "404", "message": "Resource not found"}}
    azure.http.params = httpx.QueryParams(VERSION)
    assert azure.http.get("/batches").status_code == 200


def test_a_token_is_as_good_as_a_key_and_a_wrong_key_is_told(api: Api) -> None:
    root = api.server.url_of("azure") + V1
    token = {"Authorization": f"Bearer {api.server.api_key}"}
    assert httpx.get(f"{root}/batches", headers=token).status_code == 200
    reply = httpx.get(f"{root}/batches", headers={"api-key": "wrong"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "401")


# -- files -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["expires_after[{}]", "expires_after.{}"])
def test_an_expiry_is_read_in_either_form(azure: AzureApi, form: str) -> None:
    fields = {form.format("anchor"): "created_at", form.format("seconds"): str(DAYS_14)}
    stored = azure.upload(lines(1), **fields).raise_for_status().json()
    assert stored["expires_at"] == stored["created_at"] + DAYS_14


@pytest.mark.parametrize("seconds", [DAYS_14 - 1, DAYS_30 + 1, 3_600])
def test_files_are_kept_for_14_to_30_days(v1: AzureApi, seconds: int) -> None:
    fields = {"expires_after.anchor": "created_at", "expires_after.seconds": str(seconds)}
    assert v1.upload(lines(1), **fields).status_code == 400
    expiry = {"anchor": "created_at", "seconds": seconds}
    reply = v1.create(v1.file(lines(1)), output_expires_after=expiry)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "output_expires_after.seconds")


def test_a_file_without_an_expiry_stays(v1: AzureApi) -> None:
    assert v1.upload(lines(1)).json()["expires_at"] is None


def test_a_file_takes_looks_to_become_ready_and_cannot_be_used_before(azure: AzureApi) -> None:
    azure.server.set_scenario({"files_ready_after": 2})
    stored = azure.upload(lines(1)).json()
    assert stored["status"] == "pending"
    reply = azure.create(stored["id"])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input_file_id")
    shown = [azure.http.get(f"/files/{stored['id']}").json()["status"] for _ in range(3)]
    assert shown == ["pending", "pending", "processed"]
    assert azure.until(azure.create(stored["id"]).json()["id"])["status"] == "completed"


def test_files_are_listed_and_deleted_apart_from_those_of_other_protocols(v1: AzureApi, api: Api) -> None:
    file_id = v1.file(lines(1))
    assert file_id in [stored["id"] for stored in v1.http.get("/files").json()["data"]]
    assert api.http.get(f"/files/{file_id}").status_code == 404
    [error] = api.until(api.create(file_id).json()["id"])["errors"]["data"]
    assert error["param"] == "file_id"
    assert v1.http.delete(f"/files/{file_id}").json() == {"id": file_id, "object": "file", "deleted": True}
    assert v1.http.get(f"/files/{file_id}").status_code == 404


# -- faults ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"{oops\n", "invalid_json_line"),
        (line("r-1"), "duplicate_custom_id"),
        (line("r-2", model="m-2"), "model_mismatch"),
        (spelled(line("r-2"), "/v1/responses"), "url_mismatch"),
        (line("r-2", model=None), "invalid_request"),
        (line(""), "invalid_request"),
    ],
)
def test_validation_has_codes_of_its_own(v1: AzureApi, bad: bytes, code: str) -> None:
    batch = v1.run(line("r-1") + bad)
    [error] = batch["errors"]["data"]
    assert (batch["status"], error["code"], error["line"]) == ("failed", code, 2)


def test_a_byte_order_mark_is_taken_for_an_unknown_deployment(v1: AzureApi) -> None:
    [error] = v1.run(b"\xef\xbb\xbf" + lines(1))["errors"]["data"]
    assert error["code"] == "model_not_found"


def test_a_deployment_that_does_not_exist_fails_the_batch(v1: AzureApi) -> None:
    v1.server.set_scenario({"unknown_models": ["m-1"]})
    [error] = v1.run(lines(1))["errors"]["data"]
    assert error["code"] == "model_not_found"


def test_an_empty_file_fails(v1: AzureApi) -> None:
    [error] = v1.run(b"")["errors"]["data"]
    assert error["code"] == "empty_file"


def test_a_full_queue_fails_the_batch_or_where_it_fails_fast_the_create_call(v1: AzureApi) -> None:
    file_id = v1.file(lines(1))
    rules = [{"fault": "queue_full", "at_create": True, "times": 1}, {"fault": "queue_full", "times": 1}]
    v1.server.set_scenario({"batches": rules})
    before = len(v1.server.batches())
    reply = v1.create(file_id)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "token_limit_exceeded")
    assert len(v1.server.batches()) == before
    batch = v1.until(v1.create(file_id).json()["id"])
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "token_limit_exceeded")
    assert v1.until(v1.create(file_id).json()["id"])["status"] == "completed"


def test_a_cancelled_batch_keeps_what_was_answered(v1: AzureApi) -> None:
    v1.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0.4}})
    batch_id = v1.start(lines(5))["id"]
    v1.until(batch_id, ["in_progress"], rows=2)
    v1.http.post(f"/batches/{batch_id}/cancel").raise_for_status()
    batch = v1.until(batch_id)
    assert (batch["status"], ids(v1.output(batch))) == ("cancelled", ["r-1", "r-2"])
    assert [set(row) for row in v1.errors(batch)] == [{"custom_id", "response", "error"}] * 3


def test_a_cancelled_batch_may_answer_all_its_rows_first(v1: AzureApi) -> None:
    v1.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0.4, "cancel_completes": True}})
    batch_id = v1.start(lines(5))["id"]
    v1.until(batch_id, ["in_progress"], rows=2)
    v1.http.post(f"/batches/{batch_id}/cancel").raise_for_status()
    batch = v1.until(batch_id)
    assert (batch["status"], len(v1.output(batch))) == ("cancelled", 5)
    assert len(v1.server.charges(batch_id)) == 5


def test_a_new_batch_can_be_hidden_from_the_first_looks(v1: AzureApi) -> None:
    v1.server.set_scenario({"pace": {"hidden": 2}})
    batch_id = v1.start(lines(1))["id"]
    assert [v1.http.get(f"/batches/{batch_id}").status_code for _ in range(3)] == [404, 404, 200]


def test_batches_can_be_shown_in_the_types_of_older_samples(azure: AzureApi) -> None:
    azure.server.set_scenario({"type_drift": True, "pace": {"seconds": 86_400, "hold_at": 0}})
    batch_id = azure.start(lines(2))["id"]
    shown = azure.get(batch_id)
    assert shown["status"] in ("Validating", "In_progress") and shown["endpoint"] is None
    assert (shown["output_file_id"], shown["error_file_id"]) == ("", "")
    assert shown["request_counts"]["completed"] is None
    assert shown["created_at"].startswith("20") and "T" in shown["created_at"]


def test_a_failed_batch_in_older_types_has_completed(v1: AzureApi) -> None:
    v1.server.set_scenario({"type_drift": True})
    batch_id = v1.start(b"")["id"]
    shown = next(batch for _ in range(LOOKS) if (batch := v1.get(batch_id))["status"] == "Failed")
    assert shown["completed_at"] and shown["failed_at"] is None
