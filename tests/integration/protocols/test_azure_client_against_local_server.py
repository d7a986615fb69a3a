"""The official ``openai`` SDK on Azure's paths of the local server: its Azure client, and its plain one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator

import openai
import pytest
from openai.types import Batch

from tests.local_server import LocalServer

VERSION = "2024-10-21"
DAYS_14 = 1_209_600


def azure_client(server: LocalServer) -> openai.OpenAI:
    return openai.AzureOpenAI(
        azure_endpoint=server.url_of("azure"), api_key=server.api_key, api_version=VERSION, max_retries=0
    )


def token_client(server: LocalServer) -> openai.OpenAI:
    return openai.AzureOpenAI(
        azure_endpoint=server.url_of("azure"),
        azure_ad_token=server.api_key,
        api_version=VERSION,
        max_retries=0,
    )


def v1_client(server: LocalServer) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url_of('azure')}/openai/v1", api_key=server.api_key, max_retries=0
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(params=[azure_client, token_client, v1_client], ids=["legacy-key", "legacy-token", "v1"])
def client(request: pytest.FixtureRequest, server: LocalServer) -> Iterator[openai.OpenAI]:
    server.set_scenario({})
    make: Callable[[LocalServer], openai.OpenAI] = request.param
    with make(server) as found:
        yield found


def upload(client: openai.OpenAI, count: int) -> str:
    body = {"model": "my-deployment", "messages": [{"role": "user", "content": "say it"}]}
    rows = [
        {"custom_id": f"row {i}", "method": "POST", "url": "/chat/completions", "body": body}
        for i in range(count)
    ]
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    stored = client.files.create(
        file=("in.jsonl", io.BytesIO(data)),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": DAYS_14},
    )
    assert stored.expires_at == stored.created_at + DAYS_14
    return stored.id


def create(client: openai.OpenAI, file_id: str, **metadata: str) -> Batch:
    return client.batches.create(
        input_file_id=file_id,
        endpoint="/chat/completions",  # type: ignore[arg-type]
        completion_window="24h",
        metadata=metadata,
    )


def wait(client: openai.OpenAI, batch_id: str) -> Batch:
    for _ in range(20_000):
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
    raise AssertionError(f"{batch_id} is still {batch.status}")


def test_upload_wait_until_processed_create_poll_and_read(server: LocalServer, client: openai.OpenAI) -> None:
    server.set_scenario(
        {"files_ready_after": 1, "rows": [{"fault": "rate_limited", "match": {"custom_id": "2$"}}]}
    )
    file_id = upload(client, 4)
    with pytest.raises(openai.BadRequestError):
        create(client, file_id)
    assert [client.files.retrieve(file_id).status for _ in range(2)] == ["pending", "processed"]
    batch = wait(client, create(client, file_id, token="t-1").id)
    assert (batch.status, batch.endpoint, batch.metadata) == (
        "completed",
        "/chat/completions",
        {"token": "t-1"},
    )
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 1)
    assert batch.output_file_id is not None and batch.error_file_id is not None
    rows = [json.loads(row) for row in client.files.content(batch.output_file_id).iter_lines()]
    assert [row["custom_id"] for row in rows] == ["row 0", "row 1", "row 3"]
    [error] = [json.loads(row) for row in client.files.content(batch.error_file_id).iter_lines()]
    assert error["response"]["status_code"] == 429
    assert client.files.delete(file_id).deleted


def test_list_find_and_cancel(server: LocalServer, client: openai.OpenAI) -> None:
    server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0}})
    file_id = upload(client, 2)
    made = [create(client, file_id, token=f"t-{i}").id for i in range(3)]
    found = [batch.id for batch in client.batches.list(limit=2) if batch.id in made]
    assert found == made[::-1]
    client.batches.cancel(made[0])
    assert wait(client, made[0]).status == "cancelled"


def test_a_full_queue_is_a_bad_request_where_it_fails_fast(
    server: LocalServer, client: openai.OpenAI
) -> None:
    server.set_scenario({"batches": [{"fault": "queue_full", "at_create": True}]})
    with pytest.raises(openai.BadRequestError) as told:
        create(client, upload(client, 1))
    assert told.value.code == "token_limit_exceeded"


def test_a_batch_in_older_types_can_be_read(server: LocalServer, client: openai.OpenAI) -> None:
    server.set_scenario({"type_drift": True, "pace": {"seconds": 86_400, "hold_at": 0}})
    batch = client.batches.retrieve(create(client, upload(client, 1)).id)
    assert batch.status.lower() in ("validating", "in_progress") and batch.output_file_id == ""
    assert batch.request_counts is not None and batch.request_counts.completed is None
