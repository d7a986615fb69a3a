"""What a scenario makes of Mistral's jobs in the local server."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.unit.server.api import Api
from tests.unit.server.mistral_api import MistralApi, lines, request, requests


@pytest.fixture
def mistral(api: Api) -> MistralApi:
    return MistralApi(api.server)


def test_a_new_job_is_not_found_by_the_first_looks(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"pace": {"hidden": 2}})
    made = mistral.start(request("r-1"), metadata={"token": "hidden"})
    looks = [mistral.http.get(f"/v1/batch/jobs/{made['id']}") for _ in range(3)]
    assert [look.status_code for look in looks] == [404, 404, 200]
    assert made["id"] in [job["id"] for job in mistral.list(token="hidden")["data"]]


def test_a_job_that_takes_too_long_ends_with_what_it_answered(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"batches": [{"fault": "expire", "after": 0.5}]})
    job = mistral.run(*requests(4))
    assert (job["status"], job["total_requests"], job["completed_requests"]) == ("TIMEOUT_EXCEEDED", 4, 2)
    assert [row["custom_id"] for row in mistral.output(job)] == ["r-1", "r-2"]
    assert job["error_file"] is None and job["completed_at"]


def test_a_job_is_cancelled_at_once_and_keeps_what_it_answered(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0.5}})
    job_id = mistral.start(*requests(4))["id"]
    mistral.until(job_id, ("RUNNING",), done=2)
    reply = mistral.http.post(f"/v1/batch/jobs/{job_id}/cancel").json()
    assert reply["status"] in ("CANCELLATION_REQUESTED", "CANCELLED")
    job = mistral.until(job_id)
    assert (job["status"], len(mistral.output(job)), mistral.errors(job)) == ("CANCELLED", 2, [])
    again = mistral.http.post(f"/v1/batch/jobs/{job_id}/cancel")
    assert (again.status_code, again.json()["status"]) == (200, "CANCELLED")


def test_a_cancel_may_end_with_all_rows(mistral: MistralApi) -> None:
    pace = {"seconds": 86_400, "hold_at": 0.5, "cancel_completes": True, "cancel_seconds": 86_400}
    mistral.server.set_scenario({"pace": pace})
    job_id = mistral.start(*requests(4))["id"]
    mistral.until(job_id, ("RUNNING",), done=2)
    reply = mistral.http.post(f"/v1/batch/jobs/{job_id}/cancel").json()
    assert reply["status"] == "CANCELLATION_REQUESTED"
    mistral.server.release(job_id)
    job = mistral.until(job_id)
    assert (job["status"], len(mistral.output(job))) == ("CANCELLED", 4)


def test_a_full_queue_refuses_the_create_call(mistral: MistralApi) -> None:
    rules = [{"fault": "queue_full", "times": 1}, {"fault": "queue_full", "status": 403, "times": 1}]
    mistral.server.set_scenario({"batches": rules})
    file_id = mistral.file(request("r-1"))
    before = len(mistral.server.batches())
    replies = [mistral.create(input_files=[file_id]) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [429, 403, 200]
    assert replies[0].json()["object"] == "error"
    assert len(mistral.server.batches()) == before + 1


def test_a_line_that_a_scenario_refuses_is_refused_at_the_upload(mistral: MistralApi) -> None:
    rule = {"fault": "fail_validation", "line": 2, "times": 1}
    mistral.server.set_scenario({"batches": [rule]})
    reply = mistral.upload(lines(*requests(3)))
    assert (reply.status_code, reply.json()["errors"][0]["line_number"]) == (422, 2)
    assert mistral.run(*requests(3))["status"] == "SUCCESS"
    mistral.server.set_scenario({"batches": [rule]})
    reply = mistral.create(requests=requests(3))
    assert (reply.status_code, reply.json()["errors"][0]["line_number"]) == (422, 2)
    assert mistral.create(requests=requests(3)).status_code == 200


def test_a_job_fails_as_a_whole_where_no_line_is_named(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"batches": [{"fault": "fail_validation", "times": 1}]})
    job = mistral.run(*requests(2))
    assert (job["status"], job["total_requests"], job["completed_requests"]) == ("FAILED", 2, 0)
    [error] = job["errors"]
    assert error["message"] and error["count"] == 1
    assert mistral.server.charges(job["id"]) == []


def test_an_upload_may_meet_a_bad_gateway(mistral: MistralApi) -> None:
    mistral.server.set_scenario({"calls": [{"on": "upload", "fault": "error", "status": 502, "times": 1}]})
    assert [mistral.upload(lines(request("r-1"))).status_code for _ in range(2)] == [502, 200]


def test_faults_of_rows_act_as_with_openai(mistral: MistralApi) -> None:
    faults = {
        "1": "server_error", "2": "rate_limited", "3": "request_timeout", "4": "missing", "5": "truncated",
        "6": "content_filter", "7": "refusal", "8": "error_in_200",
    }  # fmt: skip
    rules = [{"fault": fault, "match": {"custom_id": f"r-{n}"}} for n, fault in faults.items()]
    mistral.server.set_scenario({"rows": rules})
    job = mistral.run(*requests(8))
    errors = {row["custom_id"]: row for row in mistral.errors(job)}
    bodies = {row["custom_id"]: row["response"]["body"] for row in mistral.output(job)}
    assert [errors[name]["response"]["status_code"] for name in ("r-1", "r-2")] == [500, 429]
    assert errors["r-3"]["response"] is None and errors["r-3"]["error"]["code"] == "request_timeout"
    assert "r-4" not in errors and "r-4" not in bodies
    finishes = [bodies[name]["choices"][0]["finish_reason"] for name in ("r-5", "r-6")]
    assert finishes == ["length", "content_filter"]
    assert bodies["r-7"]["choices"][0]["message"]["refusal"]
    assert bodies["r-8"]["object"] == "error"
    assert sum(error["count"] for error in job["errors"]) == 3
    assert [charge["fault"] for charge in mistral.server.charges(job["id"])] == list(faults.values())


def test_files_can_be_odd_and_late(mistral: MistralApi) -> None:
    results = {"shuffle": 5, "foreign": 1, "no_id": 1, "broken_last_line": True, "late": 1}
    mistral.server.set_scenario({"results": results, "pace": {"statuses": ["PONDERING"], "seconds": 86_400}})
    job_id = mistral.start(*requests(3))["id"]
    assert mistral.get(job_id)["status"] == "PONDERING"
    mistral.server.release(job_id)
    assert mistral.until(job_id)["output_file"] is None
    job = mistral.get(job_id)
    content = mistral.http.get(f"/v1/files/{job['output_file']}/content").content
    whole, broken = content.rsplit(b"\n", 1)
    found = sorted(str(json.loads(row)["custom_id"]) for row in whole.split(b"\n"))
    assert found == ["None", "foreign-0", "r-1", "r-2", "r-3"] and broken
    assert len(mistral.get(job_id, inline="true")["outputs"]) == 5


@pytest.mark.parametrize("style", ["empty", "absent", "object", "empty_file"])
def test_a_file_that_does_not_exist_is_shown_in_many_ways(mistral: MistralApi, style: str) -> None:
    mistral.server.set_scenario({"absent_file_id": style})
    job = mistral.run(request("r-1"))
    if style == "absent":
        assert "error_file" not in job
    elif style == "empty_file":
        assert mistral.errors(job) == [] and job["error_file"]
    else:
        assert job["error_file"] == {"empty": "", "object": {}}[style]


@pytest.mark.parametrize(
    "path", ["/v1/batch/jobs/{}?inline=true", "/v1/files/{}/content"], ids=["inline", "file"]
)
def test_results_can_be_cut_off_and_reset(mistral: MistralApi, path: str) -> None:
    job = mistral.run(*requests(3))
    path = path.format(job["id"] if "jobs" in path else job["output_file"])
    whole = mistral.http.get(path).content
    rules = [{"on": "download", "fault": fault, "times": 1} for fault in ("cut", "reset")]
    mistral.server.set_scenario({"calls": rules})
    assert mistral.http.get(path).content == whole[: len(whole) // 2]
    with pytest.raises(httpx.RemoteProtocolError):
        mistral.http.get(path)
    assert mistral.http.get(path).content == whole


def test_a_lost_reply_leaves_a_job_that_its_metadata_finds(mistral: MistralApi) -> None:
    file_id = mistral.file(request("r-1"))
    mistral.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    with pytest.raises(httpx.RemoteProtocolError):
        mistral.create(input_files=[file_id], metadata={"token": "lost-1"})
    [job] = mistral.list(metadata=json.dumps({"token": "lost-1"}))["data"]
    assert mistral.until(job["id"])["status"] == "SUCCESS"
    assert mistral.server.requests("POST", "/mistral/v1/batch/jobs")[-1]["status"] == 0
