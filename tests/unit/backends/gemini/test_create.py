"""The create call: one request, of an upload or of the requests themselves, and what its refusals mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.ids import META_JOB, META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RequestTemplate
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    InDoubt,
    LinesRefused,
    NotFound,
    ProviderError,
    RateLimited,
    Refused,
)
from tests.unit.backends.gemini.conftest import Bench, Reply, operation

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
META = {META_TOKEN: "t1", META_JOB: "j1", META_ORIGIN: "o1"}
FILE = "files/in-1"


def order(endpoint: str = CHAT, model: str = "gemini-3-flash", **values: Any) -> CreateOrder:
    values = {"input_file_id": FILE, "requests": 9, **values}
    return CreateOrder(RequestTemplate(endpoint, model), metadata=META, **values)


def create(bench: Bench, wanted: CreateOrder | None = None, **options: Any) -> RemoteBatch:
    return bench.run(lambda backend: backend.create(wanted or order()), **options)


def refusal(bench: Bench, http: int, /, **error: Any) -> ProviderError:
    """Return what is raised where the provider refuses the call so."""
    bench.plays(Reply(http, {"error": {"code": http, **error}}))
    with pytest.raises(ProviderError) as told:
        create(bench)
    assert len(bench.received) == 1, "exactly one request on the wire"
    return told.value


# -- what is no quota and no key -------------------------------------------------------------------
@pytest.mark.parametrize(
    "message",
    ["Your prepayment credits are depleted.", "Your project has exceeded its monthly spending cap."],
)
def test_money_that_is_used_up_is_not_waited_for(message: str, bench: Bench) -> None:
    told = refusal(bench, 429, status="RESOURCE_EXHAUSTED", message=message)
    assert isinstance(told, AccountError) and message not in str(told)


def test_an_upload_that_is_named_by_its_bare_id_is_gone_and_the_key_is_good(bench: Bench) -> None:
    message = "You do not have permission to access the File in-1 or it may not exist."
    assert isinstance(refusal(bench, 403, status="PERMISSION_DENIED", message=message), NotFound)


# -- what is sent ----------------------------------------------------------------------------------
def test_an_upload_is_named_and_the_batch_bears_token_job_and_origin(bench: Bench) -> None:
    bench.plays(Reply(200, operation("BATCH_STATE_PENDING")))
    assert create(bench).id == "batches/b1"
    (call,) = bench.received
    assert (call.method, call.path) == ("POST", "/v1beta/models/gemini-3-flash:batchGenerateContent")
    assert call.headers["x-goog-api-key"] == "key-1" and call.headers["content-type"] == "application/json"
    batch = call.json["batch"]
    assert batch == {"displayName": "batch-llm t1 j1 o1", "inputConfig": {"fileName": FILE}}


def test_requests_go_along_where_there_is_no_upload(bench: Bench, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(b'{"key":"a-1","request":{"contents":[1]}}\n{"key":"a-2","request":{"contents":[2]}}\n')
    bench.plays(Reply(200, operation()))
    create(bench, order(input_file_id="", lines=lines))
    assert bench.received[0].json["batch"]["inputConfig"] == {
        "requests": {
            "requests": [
                {"request": {"contents": [1]}, "metadata": {"key": "a-1"}},
                {"request": {"contents": [2]}, "metadata": {"key": "a-2"}},
            ]
        }
    }


@pytest.mark.parametrize("inline", [True, False])
def test_the_order_decides_whatever_the_connection_says_now(bench: Bench, inline: bool) -> None:
    bench.plays(Reply(200, operation()))
    create(bench, inline=inline)
    assert bench.received[0].json["batch"]["inputConfig"] == {"fileName": FILE}


def test_vectors_models_and_versions_have_their_own_addresses(bench: Bench) -> None:
    bench.plays(Reply(200, operation()), Reply(200, operation()))
    create(bench, order(EMBEDDINGS, "models/gemini-embedding-001"), api_version="v1")
    create(bench, order(model="tunedModels/my model"))
    assert [path for _, path in bench.sent()] == [
        "/v1/models/gemini-embedding-001:asyncBatchEmbedContent",
        "/v1beta/tunedModels/my%20model:batchGenerateContent",
    ]


def test_what_the_call_is_to_hold_more_stands_beside_the_rest(bench: Bench) -> None:
    bench.plays(Reply(200, operation()))
    create(bench, order(extra={"priority": "5", "displayName": "mine"}))
    batch = bench.received[0].json["batch"]
    assert (batch["priority"], batch["displayName"]) == ("5", "batch-llm t1 j1 o1")


def test_a_batch_without_a_model_is_not_sent(bench: Bench) -> None:
    with pytest.raises(Refused) as told:
        create(bench, order(model=""))
    assert told.value.reason == "missing_model" and not bench.received


# -- doubt -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "reply",
    [
        Reply(drop=True),
        Reply(503, {}),
        Reply(500, {}),
        Reply(409, {}),
        Reply(200, b"<html>"),
        Reply(200, {"name": "x"}),
    ],
)
def test_a_reply_that_does_not_say_what_became_of_it_leaves_a_doubt(bench: Bench, reply: Reply) -> None:
    bench.plays(reply, Reply(200, operation()))
    with pytest.raises(InDoubt):
        create(bench)
    assert len(bench.received) == 1


# -- refusals --------------------------------------------------------------------------------------
def test_a_faulty_request_refuses_the_call_and_is_named_where_the_message_names_it(bench: Bench) -> None:
    message = "Invalid value at 'batch.input_config.requests.requests[2].request' and requests[0].x"
    error = refusal(bench, 400, status="INVALID_ARGUMENT", message=message)
    assert isinstance(error, LinesRefused) and error.reason == "INVALID_ARGUMENT"
    assert [(one.line, one.code) for one in error.lines] == [(1, "INVALID_ARGUMENT"), (3, "INVALID_ARGUMENT")]
    assert error.lines[0].message == message and message not in str(error)


@pytest.mark.parametrize(
    "message", ["Request contains an invalid argument.", "line 10: bad", "at line 1 column 2"]
)
def test_a_fault_that_names_no_line_of_the_batch_names_none(bench: Bench, message: str) -> None:
    error = refusal(bench, 400, status="INVALID_ARGUMENT", message=message)
    assert isinstance(error, LinesRefused) and error.lines == ()


def test_a_call_that_is_too_large_is_halved_like_one_with_a_faulty_line(bench: Bench) -> None:
    assert isinstance(refusal(bench, 413, message="too large"), LinesRefused)


@pytest.mark.parametrize("field", ["batch.display_name", "batch.displayName", "batch.input_config.file_name"])
def test_what_concerns_the_call_and_no_line_is_refused_for_good(bench: Bench, field: str) -> None:
    error = refusal(bench, 400, status="INVALID_ARGUMENT", message=f"Invalid value at '{field}'")
    assert type(error) is Refused and error.deterministic


def test_a_wrong_key_is_an_invalid_argument_and_no_line_is_to_blame(bench: Bench) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    error = refusal(bench, 400, status="INVALID_ARGUMENT", message="API key not valid.", details=[info])
    assert isinstance(error, AuthError)


def test_an_unknown_model_is_no_lost_upload(bench: Bench) -> None:
    error = refusal(
        bench, 404, status="NOT_FOUND", message="models/gemini-9 is not found for API version v1beta"
    )
    assert type(error) is Refused and error.reason == "model_not_found"
    assert "gemini-3-flash" in str(error)


@pytest.mark.parametrize("status", [403, 404])
def test_an_upload_that_is_gone_is_told_by_its_name(bench: Bench, status: int) -> None:
    error = refusal(bench, status, message=f"You may not access the File {FILE} or it may not exist.")
    assert isinstance(error, NotFound)


def test_a_key_that_may_not_do_this_is_told_from_that(bench: Bench) -> None:
    assert isinstance(refusal(bench, 403, status="PERMISSION_DENIED", message="denied"), AuthError)


def test_an_upload_that_is_not_ready_is_waited_for(bench: Bench) -> None:
    message = f"The File {FILE} is not in an ACTIVE state."
    error = refusal(bench, 400, status="FAILED_PRECONDITION", message=message)
    assert isinstance(error, RateLimited) and (error.reason, error.retry_after) == ("file_not_ready", 5.0)


def test_a_precondition_of_the_account_waits_for_a_person(bench: Bench) -> None:
    message = "User location is not supported for the API use."
    assert isinstance(refusal(bench, 400, status="FAILED_PRECONDITION", message=message), AccountError)


DELAY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}


def quota(name: str, value: str = "100") -> dict[str, Any]:
    violation = {"quotaId": name, "quotaValue": value}
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}


def test_a_quota_says_how_long_to_wait(bench: Bench) -> None:
    details = [quota("RequestsPerMinutePerProject"), DELAY]
    error = refusal(bench, 429, status="RESOURCE_EXHAUSTED", message="slow down", details=details)
    assert isinstance(error, RateLimited) and (error.reason, error.retry_after) == ("rate_limited", 36.5)


@pytest.mark.parametrize("name", ["EnqueuedTokensPerModel", "ConcurrentBatchJobs"])
def test_a_quota_of_waiting_work_is_a_full_queue(bench: Bench, name: str) -> None:
    error = refusal(bench, 429, status="RESOURCE_EXHAUSTED", details=[quota(name), DELAY])
    assert isinstance(error, RateLimited) and (error.reason, error.retry_after) == ("queue_full", 36.5)


def test_a_plan_without_any_quota_waits_for_a_person(bench: Bench) -> None:
    assert isinstance(refusal(bench, 429, details=[quota("EnqueuedTokens", "0")]), AccountError)


def test_an_error_in_a_list_of_one_is_read(bench: Bench) -> None:
    error = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "requests[1]"}}
    bench.plays(Reply(400, json.loads(json.dumps([error]))))
    with pytest.raises(LinesRefused) as told:
        create(bench)
    assert [one.line for one in told.value.lines] == [2]
