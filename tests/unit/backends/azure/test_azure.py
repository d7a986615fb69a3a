"""Azure OpenAI: its addresses and keys, files that need time, a window without end, its own refusals."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.endings import ending_of
from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES
from airflow_batch_llm.core.ids import META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, RequestTemplate, ResultFile
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import ConfigurationError, NotFound, RateLimited, Refused
from tests.unit.backends.calls import Scripted
from tests.unit.backends.scripted_server import Reply

GA, PREVIEW = "2024-10-21", "2025-04-01-preview"
BATCH = {"id": "batch_6f1", "status": "validating", "created_at": 1_780_000_000, "endpoint": None}
ENDED = RemoteBatch("batch_1", RemoteStatus.DONE, "completed")
BODY = b'{"messages":[{"role":"user","content":"hi"}]}'


def order(endpoint: str = CHAT) -> CreateOrder:
    return CreateOrder(RequestTemplate(endpoint, "dep-1"), "file-1", {META_TOKEN: "a1"})


# -- addresses and keys ----------------------------------------------------------------------------
@pytest.mark.parametrize("address", ["", "/", "/openai", "/openai/", "/openai/v1", "/openai/v1/"])
def test_the_resource_may_be_given_with_or_without_what_follows_it(azure: Scripted, address: str) -> None:
    azure.server.script = [Reply(200, BATCH), Reply(200, BATCH)]
    azure.run(lambda backend: backend.retrieve("batch_6f1"), address=address)
    assert azure.last.path == "/openai/v1/batches/batch_6f1"
    azure.run(lambda backend: backend.retrieve("batch_6f1"), address=address, api_version=GA)
    assert azure.last.path == f"/openai/batches/batch_6f1?api-version={GA}"


def test_the_version_goes_with_every_call_beside_its_own_parameters(azure: Scripted, tmp_path: Path) -> None:
    local = tmp_path / "up.jsonl"
    local.write_bytes(b"{}\n")
    azure.server.script = [
        Reply(201, {"id": "file-1", "bytes": 3}),
        Reply(200, {"data": [], "has_more": False}),
        Reply(200, {"id": "file-o", "bytes": 3}),
        Reply(200, b"{}\n"),
    ]

    async def use(backend: Any) -> None:
        await backend.upload(local, "up")
        await backend.find("a1")
        await backend.download(ENDED, ResultFile("output", "file-o"), tmp_path / "out.jsonl")

    azure.run(use, api_version=PREVIEW)
    queries = [request.path.partition("?")[2].split("&") for request in azure.server.received]
    assert all(f"api-version={PREVIEW}" in query for query in queries)
    assert "limit=100" in queries[1]


def test_the_key_has_a_header_of_its_own_and_an_entra_token_the_usual_one(azure: Scripted) -> None:
    azure.server.script = [Reply(200, BATCH), Reply(200, BATCH)]
    azure.run(lambda backend: backend.retrieve("b"))
    assert azure.last.headers["api-key"] == "key-1" and "authorization" not in azure.last.headers
    azure.run(lambda backend: backend.retrieve("b"), auth="bearer")
    assert azure.last.headers["authorization"] == "Bearer key-1" and "api-key" not in azure.last.headers


def test_a_resource_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match=r"my-resource\.openai\.azure\.com"):
        make_backend("azure", base_url=None, api_key="k", options={})


# -- files -----------------------------------------------------------------------------------------
def uploaded(azure: Scripted, folder: Path, **options: Any) -> bytes:
    local = folder / "up.jsonl"
    local.write_bytes(b'{"custom_id":"w"}\n')
    azure.server.script = [Reply(201, {"id": "file-1", "bytes": local.stat().st_size})]
    assert azure.run(lambda backend: backend.upload(local, "up"), **options) == "file-1"
    return azure.last.body


def test_uploads_expire_so_that_the_resource_does_not_fill_up(azure: Scripted, tmp_path: Path) -> None:
    sent = uploaded(azure, tmp_path, input_expiry_seconds=1_209_600)
    assert b'name="expires_after[seconds]"\r\n\r\n1209600' in sent
    assert b'name="expires_after[anchor]"\r\n\r\ncreated_at' in sent
    assert sent.index(b'name="file"') > sent.index(b'name="purpose"')
    assert b'\r\n\r\n{"custom_id"' in sent  # no byte order mark


def test_a_version_that_knows_no_expiry_is_sent_none_and_files_are_known_to_stay(
    azure: Scripted, tmp_path: Path
) -> None:
    assert b"expires_after" not in uploaded(azure, tmp_path, api_version=GA)
    assert b"expires_after" in uploaded(azure, tmp_path, api_version=PREVIEW)

    async def expire(backend: Any) -> bool:
        return bool(backend.files_expire)

    assert not azure.run(expire, api_version=GA)
    assert azure.run(expire, api_version=PREVIEW) and azure.run(expire)


@pytest.mark.parametrize("seconds", [3_600, 1_209_599, 2_592_001])
def test_an_expiry_that_azure_refuses_is_refused_before(seconds: int) -> None:
    with pytest.raises(ConfigurationError, match="1209600 to 2592000"):
        make_backend("azure", base_url="https://r", api_key="k", options={"input_expiry_seconds": seconds})


@pytest.mark.parametrize(
    ("status", "wait"),
    [
        ("pending", True),
        ("Running", True),
        ("uploaded", True),
        ("processed", False),
        (None, False),
        ("", False),
    ],
)
def test_an_upload_is_used_once_it_was_processed(azure: Scripted, status: str | None, wait: bool) -> None:
    azure.server.script = [Reply(200, {"id": "file-1", "status": status, "created_at": time.time()})]
    asked = azure.run(lambda backend: backend.ready("file-1"))
    assert (asked is not None and asked > 0) if wait else asked is None
    assert azure.last.path == "/openai/v1/files/file-1"


def test_a_file_is_looked_at_less_often_the_longer_it_takes(azure: Scripted) -> None:
    waited = (0.0, 8.0, 600.0)
    azure.server.script = [Reply(200, {"id": "file-1", "status": "pending"}) for _ in waited]
    waits = [azure.run(lambda backend, w=w: backend.ready("file-1", waited=w)) or 0.0 for w in waited]
    assert waits == sorted(waits) and 0 < waits[0] < waits[1] < waits[2] <= 10


@pytest.mark.parametrize("created_at", [1_700_000_000, 4_000_000_000, None])
def test_a_status_that_never_moves_does_not_hold_the_batch_for_ever(
    azure: Scripted, created_at: int | None
) -> None:
    """Whatever Azure's clock says: only how long it was waited for counts."""
    azure.server.script = [Reply(200, {"id": "file-1", "status": "uploaded", "created_at": created_at})] * 2
    assert azure.run(lambda backend: backend.ready("file-1", waited=800.0)) is not None
    assert azure.run(lambda backend: backend.ready("file-1", waited=1000.0)) is None


def test_an_upload_that_is_gone_or_unreadable_is_told_apart(azure: Scripted) -> None:
    azure.server.script = [
        Reply(200, {"id": "file-1", "status": "deleted"}),
        Reply(404, {"error": {"code": "not_found"}}),
        Reply(200, {"id": "file-1", "status": "error", "status_details": "secret words"}),
    ]
    for _ in range(2):
        with pytest.raises(NotFound):
            azure.run(lambda backend: backend.ready("file-1"))
    with pytest.raises(Refused) as caught:
        azure.run(lambda backend: backend.ready("file-1"))
    assert caught.value.reason == "file_unreadable" and "secret" not in str(caught.value)


def test_too_many_files_are_refused_with_what_to_do(azure: Scripted, tmp_path: Path) -> None:
    local = tmp_path / "up.jsonl"
    local.write_bytes(b"{}\n")
    azure.server.script = [Reply(400, {"error": {"code": "quotaExceeded", "message": "500 files"}})]
    with pytest.raises(Refused, match="delete some") as caught:
        azure.run(lambda backend: backend.upload(local, "up"))
    assert caught.value.reason == "files_full"


def test_an_empty_error_file_is_a_file_without_rows(azure: Scripted, tmp_path: Path) -> None:
    azure.server.script = [Reply(200, {"id": "file-e", "bytes": 0}), Reply(200, b"")]
    local = tmp_path / "error.jsonl"
    azure.run(lambda backend: backend.download(ENDED, ResultFile("error", "file-e"), local))
    assert local.read_bytes() == b""


# -- lines and create ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "endpoint", "path"),
    [
        ({}, CHAT, "/v1/chat/completions"),
        ({"api_version": GA}, CHAT, "/chat/completions"),
        ({}, RESPONSES, "/v1/responses"),
        ({"api_version": PREVIEW}, RESPONSES, "/v1/responses"),
    ],
)
def test_lines_and_batch_name_the_endpoint_alike(
    azure: Scripted, options: dict[str, Any], endpoint: str, path: str
) -> None:
    azure.server.script = [Reply(200, BATCH)]

    async def use(backend: Any) -> bytes:
        line: bytes = backend.line_encoder(RequestTemplate(endpoint, "dep-1"))("w-1", BODY)
        await backend.create(order(endpoint))
        return line

    line = json.loads(azure.run(use, **options))
    assert (line["url"], line["body"]["model"], line["method"]) == (path, "dep-1", "POST")
    assert (azure.last.json["endpoint"], azure.last.json["completion_window"]) == (path, "24h")
    assert azure.last.json["metadata"] == {META_TOKEN: "a1"}


def test_the_output_limit_has_the_name_that_the_version_knows(azure: Scripted) -> None:
    template = RequestTemplate(CHAT, "dep-1", {"max_tokens": 5})

    async def encoded(backend: Any) -> Any:
        return json.loads(backend.line_encoder(template)("w", BODY))["body"]

    assert azure.run(encoded)["max_completion_tokens"] == 5
    assert azure.run(encoded, api_version=GA)["max_tokens"] == 5


@pytest.mark.parametrize("endpoint", [EMBEDDINGS, COMPLETIONS, MODERATIONS])
def test_endpoints_that_azure_does_not_batch_are_refused_by_name(azure: Scripted, endpoint: str) -> None:
    async def encoder(backend: Any) -> None:
        backend.line_encoder(RequestTemplate(endpoint, "dep-1"))

    with pytest.raises(Refused, match=endpoint.removeprefix("/v1/")) as caught:
        azure.run(encoder)
    assert caught.value.reason == "endpoint"


def test_a_byte_order_mark_in_a_body_never_reaches_the_upload(azure: Scripted) -> None:
    async def encode(backend: Any) -> bytes:
        line: bytes = backend.line_encoder(RequestTemplate(CHAT, "dep-1"))("w", b"\xef\xbb\xbf" + BODY)
        return line

    with pytest.raises(Refused):
        azure.run(encode)


@pytest.mark.parametrize(
    "error",
    [
        {"code": "token_limit_exceeded", "message": "x"},
        {"code": "BadRequest", "message": "(token_limit_exceeded) the enqueued tokens…"},
    ],
)
def test_a_full_queue_at_create_is_waited_out(azure: Scripted, error: dict[str, str]) -> None:
    azure.server.script = [Reply(400, {"error": error})]
    with pytest.raises(RateLimited) as caught:
        azure.run(lambda backend: backend.create(order()))
    assert caught.value.reason == "queue_full"
    assert len(azure.server.received) == 1


# -- batches ---------------------------------------------------------------------------------------
def test_a_batch_is_read_in_the_form_of_the_older_samples(azure: Scripted) -> None:
    shown = BATCH | {
        "status": "Completed",
        "created_at": "2026-11-29T10:00:00.0000000Z",
        "expires_at": "2026-11-30T10:00:00Z",
        "output_file_id": "file-o",
        "error_file_id": "",
        "request_counts": {"total": 2, "completed": None, "failed": None},
        "metadata": None,
        "errors": None,
    }
    azure.server.script = [Reply(200, shown)]
    batch = azure.run(lambda backend: backend.retrieve("batch_6f1"))
    assert batch.status is RemoteStatus.DONE
    assert batch.files == (ResultFile("output", "file-o"),)
    assert batch.counts == {"total": 2, "completed": 0, "failed": 0}
    assert batch.created_at == 1_795_946_400.0


def test_a_batch_that_is_late_is_not_given_up_with_its_window() -> None:
    backend = make_backend("azure", base_url="https://r", api_key="k", options={})
    assert backend.limits.window_seconds >= 7 * 86_400  # not less than a job may take


@pytest.mark.parametrize(
    "code", ["model_mismatch", "url_mismatch", "model_not_found", "input_no_permissions"]
)
def test_a_fault_that_all_lines_share_stops_the_job_instead_of_a_search(azure: Scripted, code: str) -> None:
    failed = BATCH | {"status": "failed", "errors": {"data": [{"code": code, "line": 1, "param": None}]}}
    azure.server.script = [Reply(200, failed)]
    batch = azure.run(lambda backend: backend.retrieve("batch_6f1"))
    assert ending_of(None, batch).halt == "BLLM-023"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "status", "verdict"),
    [
        ("DeploymentNotFound", 404, Verdict.BAD_REQUEST),
        ("429", 429, Verdict.RATE_LIMITED),
        ("RateLimitReached", 400, Verdict.RATE_LIMITED),
        ("content_filter", 400, Verdict.FILTERED),
        ("InternalServerError", 500, Verdict.SERVER_ERROR),
    ],
)
def test_rows_without_an_id_of_their_own_are_judged(
    azure: Scripted, code: str, status: int, verdict: Verdict
) -> None:
    response = {"status_code": status, "body": {"error": {"code": code, "message": "x"}}}
    line = json.dumps({"custom_id": "w-1", "response": response, "error": None})

    async def decode(backend: Any) -> Any:
        return backend.decode(line.encode())

    row = azure.run(decode)
    assert (row.wire_id, row.verdict) == ("w-1", verdict)


@pytest.mark.parametrize("version", ["v1", "preview", "latest"])
def test_names_of_the_newest_version_mean_the_paths_without_one(version: str, azure: Scripted) -> None:
    azure.server.script = [Reply(200, {"data": [], "has_more": False})]
    azure.run(lambda backend: backend.probe(), api_version=version)
    assert azure.last.path.startswith("/openai/v1/batches?limit=")
