"""Mistral's files and batch jobs in the local server: what the service does always."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest

from tests.unit.server.api import Api
from tests.unit.server.mistral_api import MistralApi, lines, request, requests

PNG = "data:image/png;base64,AAAA"


@pytest.fixture
def mistral(api: Api) -> MistralApi:
    return MistralApi(api.server)


def text_of(row: dict[str, Any]) -> Any:
    return row["response"]["body"]["choices"][0]["message"]["content"]


# -- jobs ------------------------------------------------------------------------------------------
def test_a_job_is_answered_and_counts_what_it_processed(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"rows": [{"fault": "bad_request", "match": {"custom_id": "r-2"}}]})
    job = mistral.run(*requests(3), metadata={"token": "t"})
    assert (job["object"], job["status"], job["model"]) == ("batch", "SUCCESS", "m-1")
    assert job["metadata"] == {"token": "t"} and job["outputs"] is None
    counts = [job[f"{name}_requests"] for name in ("total", "completed", "succeeded", "failed")]
    assert counts == [3, 3, 2, 1]
    assert job["created_at"] <= job["started_at"] <= job["completed_at"]
    assert job["errors"] == [{"message": "The request was refused.", "count": 1}]
    assert [row["custom_id"] for row in mistral.output(job)] == ["r-1", "r-3"]
    uuid.UUID(job["id"]), uuid.UUID(job["output_file"]), uuid.UUID(job["error_file"])


def test_a_good_body_is_an_object_and_a_bad_one_a_text(mistral: MistralApi) -> None:
    rule = {"fault": "bad_request", "code": "c-1", "param": "p-1", "match": {"custom_id": "r-2"}}
    mistral.server.set_scenario({"rows": [rule]})
    job = mistral.run(*requests(2))
    [row], [error] = mistral.output(job), mistral.errors(job)
    assert set(row) == set(error) == {"id", "custom_id", "response", "error"}
    assert row["id"].startswith("batch-") and row["error"] is None
    body = row["response"]["body"]
    assert (row["response"]["status_code"], body["object"]) == (200, "chat.completion")
    assert body["choices"][0]["finish_reason"] == "stop"
    assert (
        body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    )
    assert error["response"]["status_code"] == 400 and isinstance(error["response"]["body"], str)
    told = json.loads(error["response"]["body"])
    assert (told["object"], told["code"], told["param"]) == ("error", "c-1", "p-1")


def test_the_same_question_gets_the_answer_that_openais_path_gives(mistral: MistralApi, api: Api) -> None:
    from tests.unit.server.api import answer, line

    [row] = mistral.output(mistral.run(request("r-1", "my invoice is wrong")))
    [other] = api.output(api.run(line("r-1", "my invoice is wrong")))
    assert text_of(row) == answer(other)


def test_ids_may_be_missing_and_used_twice(mistral: MistralApi) -> None:
    job = mistral.run(request("same"), request("same"), request(None))
    assert [row["custom_id"] for row in mistral.output(job)] == ["same", "same", None]


def test_several_files_make_one_job(mistral: MistralApi) -> None:
    first = mistral.file(lines(request("a")).rstrip(b"\n"))
    second = mistral.file(request("b"), request("c"))
    job = mistral.until(mistral.create(input_files=[first, second]).json()["id"])
    assert (job["input_files"], job["total_requests"]) == ([first, second], 3)
    assert [row["custom_id"] for row in mistral.output(job)] == ["a", "b", "c"]


def test_the_model_of_the_job_answers(mistral: MistralApi) -> None:
    [row] = mistral.output(mistral.run(request("r-1", model="another")))
    assert row["response"]["body"]["model"] == "m-1"
    [charge] = mistral.server.charges()[-1:]
    assert charge["model"] == "m-1"


def test_requests_may_go_along_and_their_results_come_with_the_job(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"rows": [{"fault": "server_error", "match": {"custom_id": "r-2"}}]})
    made = mistral.create(requests=requests(3), metadata={"token": "t"}).raise_for_status().json()
    assert (made["input_files"], made["total_requests"]) == ([], 3)
    job = mistral.until(made["id"])
    assert (job["output_file"], job["error_file"], job["outputs"]) == (None, None, None)
    told = mistral.get(job["id"], inline="true")
    assert sorted(row["custom_id"] for row in told["outputs"]) == ["r-1", "r-2", "r-3"]
    assert told["outputs"][0]["response"]["status_code"] == 200
    assert {**told, "outputs": None} == job
    assert mistral.http.delete(f"/v1/batch/jobs/{job['id']}").json()["deleted"] is True


def test_results_of_a_file_come_with_the_job_too(mistral: MistralApi) -> None:
    job = mistral.run(*requests(2))
    told = mistral.get(job["id"], inline="true")
    assert told["outputs"] == mistral.output(job) and told["output_file"] == job["output_file"]


def test_a_job_that_runs_has_no_results_yet(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0.5}})
    job_id = mistral.create(requests=requests(2)).json()["id"]
    job = mistral.until(job_id, ("RUNNING",), done=1)
    assert mistral.get(job_id, inline="true")["outputs"] is None
    assert (job["completed_requests"], job["output_file"], job["errors"]) == (1, None, [])
    assert mistral.http.delete(f"/v1/batch/jobs/{job_id}").status_code == 409


@pytest.mark.parametrize(
    ("order", "status", "param"),
    [
        ({"timeout_hours": 0}, 422, "timeout_hours"),
        ({"timeout_hours": 169}, 422, "timeout_hours"),
        ({"timeout_hours": "soon"}, 422, "timeout_hours"),
        ({"endpoint": "/v1/poems"}, 422, "endpoint"),
        ({"endpoint": "/v1/ocr"}, 422, "endpoint"),
        ({"model": None}, 422, "model"),
        ({"model": "no-such-model"}, 422, "model"),
        ({"agent_id": "ag-1"}, 422, "agent_id"),
        ({"metadata": {"k": 1}}, 422, "metadata"),
        ({"input_files": []}, 422, "input_files"),
        ({"requests": [request("r-1")]}, 422, "input_files"),
        ({"input_files": ["file-1"]}, 422, "file_id"),
        ({"input_files": [str(uuid.UUID(int=7))]}, 404, None),
    ],
)
def test_a_create_call_that_breaks_a_rule_makes_no_job(
    mistral: MistralApi, order: dict[str, Any], status: int, param: str | None
) -> None:
    mistral.server.set_scenario({"unknown_models": ["no-such-model"]})
    before = len(mistral.server.batches())
    reply = mistral.create(**{"input_files": [mistral.file(request("r-1"))], **order})
    assert reply.status_code == status
    if param is None:
        assert set(reply.json()) == {"object", "message", "type", "param", "code"}
    else:
        [told] = reply.json()["detail"]
        assert told["loc"][-1] == param and told["msg"]
    assert len(mistral.server.batches()) == before


def test_a_long_time_is_taken(mistral: MistralApi) -> None:
    assert mistral.create(input_files=[mistral.file(request("r-1"))], timeout_hours=168).status_code == 200


# -- lists -----------------------------------------------------------------------------------------
def test_jobs_are_listed_in_pages_newest_first_or_oldest_first(mistral: MistralApi) -> None:
    file_id = mistral.file(request("r-1"))
    token = {"batch": uuid.uuid4().hex}
    made = [mistral.create(input_files=[file_id], metadata=token).json()["id"] for _ in range(5)]
    query = {"metadata": json.dumps(token), "page_size": 2}
    page = mistral.list(**query, page=1)
    assert (page["object"], page["total"]) == ("list", 5)
    assert [job["id"] for job in page["data"]] == [made[2], made[1]]
    assert [job["id"] for job in mistral.list(**query, order_by="created")["data"]] == made[:2]
    assert mistral.list(**query, page=3)["data"] == []
    assert mistral.http.get("/v1/batch/jobs", params={"order_by": "colour"}).status_code == 422
    assert mistral.http.get("/v1/batch/jobs", params={"page": "one"}).status_code == 422


@pytest.mark.parametrize("form", ["json", "bracket", "flat"])
def test_the_metadata_filter_is_read_in_every_form(mistral: MistralApi, form: str) -> None:
    token = uuid.uuid4().hex
    file_id = mistral.file(request("r-1"))
    made = mistral.create(input_files=[file_id], metadata={"token": token, "more": "m"}).json()["id"]
    mistral.create(input_files=[file_id], metadata={"token": "other"})
    query = {
        "json": {"metadata": json.dumps({"token": token})},
        "bracket": {"metadata[token]": token},
        "flat": {"token": token},
    }[form]
    assert [job["id"] for job in mistral.list(**query)["data"]] == [made]


def test_jobs_are_listed_by_model_status_and_time(mistral: MistralApi) -> None:
    token = {"token": uuid.uuid4().hex}
    job = mistral.run(request("r-1"), metadata=token, model="m-7")
    assert [one["id"] for one in mistral.list(model="m-7", **token)["data"]] == [job["id"]]
    assert mistral.list(model="m-8", **token)["total"] == 0
    assert mistral.list(status=["FAILED", "SUCCESS"], **token)["total"] == 1
    assert mistral.list(status="RUNNING", **token)["total"] == 0
    assert mistral.list(created_after="2020-01-01T00:00:00Z", **token)["total"] == 1
    assert mistral.list(created_after="2100-01-01T00:00:00+00:00", **token)["total"] == 0
    assert mistral.list(created_after=job["created_at"], **token)["total"] == 1


# -- files -----------------------------------------------------------------------------------------
def test_files_say_what_they_hold(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"rows": [{"fault": "bad_request", "match": {"custom_id": "r-2"}}]})
    stored = mistral.upload(lines(*requests(2))).json()
    assert (stored["sample_type"], stored["num_lines"], stored["source"]) == ("batch_request", 2, "upload")
    assert stored["expires_at"] is None and stored["bytes"] == len(lines(*requests(2)))
    job = mistral.until(mistral.create(input_files=[stored["id"]]).json()["id"])
    kinds = [mistral.http.get(f"/v1/files/{job[name]}").json() for name in ("output_file", "error_file")]
    assert [kind["sample_type"] for kind in kinds] == ["batch_result", "batch_error"]
    assert kinds[0]["bytes"] == len(mistral.http.get(f"/v1/files/{job['output_file']}/content").content)
    listed = mistral.http.get("/v1/files", params={"page_size": 3}).json()
    assert {one["id"] for one in listed["data"]} == {job["error_file"], job["output_file"], stored["id"]}
    only = mistral.http.get("/v1/files", params={"sample_type": "batch_error", "page_size": 1}).json()
    assert only["data"][0]["id"] == job["error_file"]


def test_a_file_is_gone_once_it_is_deleted(mistral: MistralApi) -> None:
    file_id = mistral.file(request("r-1"))
    assert mistral.http.delete(f"/v1/files/{file_id}").json() == {
        "id": file_id,
        "object": "file",
        "deleted": True,
    }
    for call in (mistral.http.get, mistral.http.delete):
        assert call(f"/v1/files/{file_id}").status_code == 404


def test_a_signed_address_needs_no_key_and_no_other_can_be_made(mistral: MistralApi) -> None:
    file_id = mistral.file(request("r-1"))
    url = mistral.http.get(f"/v1/files/{file_id}/url", params={"expiry": 1}).json()["url"]
    assert httpx.get(url).content == lines(request("r-1"))
    assert httpx.get(url.replace("signature=", "signature=0")).status_code == 403
    expired = mistral.http.get(f"/v1/files/{file_id}/url", params={"expiry": 0}).json()["url"]
    assert httpx.get(expired.replace("until=", "until=0")).status_code == 403


def test_a_bad_id_is_told_before_the_key_is_looked_at(mistral: MistralApi) -> None:
    root = mistral.server.url_of("mistral")
    for path in ("", "/content", "/url"):
        reply = httpx.get(f"{root}/v1/files/file-1{path}")
        assert (reply.status_code, reply.json()["detail"][0]["type"]) == (422, "uuid_parsing")
    reply = httpx.get(f"{root}/v1/files/{uuid.UUID(int=7)}", headers={"Authorization": "Bearer wrong"})
    assert reply.status_code == 401 and set(reply.json()) == {"detail"}


# -- validation ------------------------------------------------------------------------------------
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    "bad",
    [
        b"{oops\n",
        b"\n",
        b"[1]\n",
        b"\xef\xbb\xbf" + lines(request("r-1")),
        {"custom_id": "r-1"},
        {"custom_id": "r-1", "body": []},
        {"custom_id": 7, "body": request("r-1")["body"]},
        {"custom_id": "r-1", "body": {"model": "m-1"}},
        {"custom_id": "r-1", "body": {"input": 7}},
        request("r-1", messages=[]),
        request("r-1", messages=[{"role": "wizard", "content": "hi"}]),
        request("r-1", messages=[{"role": "user", "content": 7}]),
        request("r-1", temperature=2),
        request("r-1", top_p="much"),
        request("r-1", max_tokens=-1),
        request("r-1", seed=7),
        request("r-1", max_completion_tokens=7),
        request("r-1", stream=True),
        request("r-1", response_format={"type": "yaml"}),
        request("r-1", response_format={"type": "json_schema", "json_schema": {"name": "a"}}),
        request("r-1", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "fly"}}),
        request("r-1", tools=TOOLS, tool_choice="perhaps"),
    ],
)
def test_an_upload_is_refused_for_a_line_and_the_line_is_told(mistral: MistralApi, bad: Any) -> None:
    before = mistral.http.get("/v1/files").json()["total"]
    reply = mistral.upload(lines(request("r-0"), bad))
    assert reply.status_code == 422
    assert set(reply.json()) == {"detail", "description", "errors"}
    [error] = reply.json()["errors"]
    assert error["line_number"] == 2 and error["message"]
    assert mistral.http.get("/v1/files").json()["total"] == before


def test_every_bad_line_is_told_at_once(mistral: MistralApi) -> None:
    reply = mistral.upload(lines(b"{\n", request("r-2"), b"}\n", request("r-4", temperature=9)))
    assert [error["line_number"] for error in reply.json()["errors"]] == [1, 3, 4]


def test_an_empty_upload_is_refused(mistral: MistralApi) -> None:
    assert mistral.upload(b"").status_code == 422


def test_requests_that_go_along_are_checked_too(mistral: MistralApi) -> None:
    before = len(mistral.server.batches())
    reply = mistral.create(requests=[request("r-1"), request("r-2", temperature=9)])
    assert (reply.status_code, reply.json()["errors"][0]["line_number"]) == (422, 2)
    assert len(mistral.server.batches()) == before


@pytest.mark.parametrize(
    "good",
    [
        {"max_tokens": 10_000_000},
        {"random_seed": 7, "safe_prompt": True, "top_k": 5},
        {"tools": TOOLS, "tool_choice": "any"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": PNG}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]},
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "prefix": True},
            ]
        },
    ],
)
def test_what_mistral_knows_is_answered(mistral: MistralApi, good: dict[str, Any]) -> None:
    job = mistral.run(request("r-1", **good))
    assert (job["status"], job["succeeded_requests"]) == ("SUCCESS", 1)


# -- bodies ----------------------------------------------------------------------------------------
def test_a_schema_is_followed(mistral: MistralApi) -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["billing", "login"]}}, "required": ["kind"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    [row] = mistral.output(mistral.run(request("r-1", "about billing", response_format=form)))
    assert json.loads(text_of(row)) == {"kind": "billing"}


def test_a_tool_is_called_with_a_place(mistral: MistralApi) -> None:
    [row] = mistral.output(mistral.run(request("r-1", tools=TOOLS, tool_choice="any")))
    choice = row["response"]["body"]["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["index"]) == ("look_up", 0)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "")


def test_embeddings_have_their_own_names(mistral: MistralApi) -> None:
    body = {"input": ["one text", "another"], "output_dimension": 8, "encoding_format": "float"}
    job = mistral.run({"custom_id": "e-1", "body": body}, endpoint="/v1/embeddings")
    [row] = mistral.output(job)
    data = row["response"]["body"]["data"]
    assert [len(one["embedding"]) for one in data] == [8, 8]
    assert row["response"]["body"]["usage"]["completion_tokens"] == 0


def test_moderations_have_their_own_categories(mistral: MistralApi) -> None:
    lines_ = [{"custom_id": name, "body": {"input": name}} for name in ("I will kill", "hello")]
    bad, good = mistral.output(mistral.run(*lines_, endpoint="/v1/moderations"))
    result = bad["response"]["body"]["results"][0]
    assert set(result) == {"categories", "category_scores"}
    assert result["categories"]["violence_and_threats"] and not result["categories"]["pii"]
    assert result["category_scores"]["violence_and_threats"] > 0.5
    assert not any(good["response"]["body"]["results"][0]["categories"].values())


@pytest.mark.parametrize(
    ("body", "endpoint", "param"),
    [
        ({"input": "a"}, "/v1/chat/completions", "input"),
        ({"messages": [{"role": "user", "content": "a"}]}, "/v1/embeddings", "messages"),
        ({"input": "a", "output_dtype": "int8"}, "/v1/embeddings", "output_dtype"),
    ],
)
def test_a_body_of_another_endpoint_fails_its_row(
    mistral: MistralApi, body: dict[str, Any], endpoint: str, param: str
) -> None:
    job = mistral.run({"custom_id": "r-1", "body": body}, endpoint=endpoint)
    [row] = mistral.errors(job)
    assert (job["status"], row["response"]["status_code"]) == ("SUCCESS", 422)
    assert json.loads(row["response"]["body"])["param"] == param
    assert mistral.server.charges(job["id"])[0]["charged"] is False
