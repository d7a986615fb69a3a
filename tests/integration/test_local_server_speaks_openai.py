"""The official ``openai`` SDK, unchanged, against the local server: an independent judge of its wire."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import openai
import pytest
from openai.types import Batch, FileObject
from openai.types.chat import ChatCompletion

from tests.local_server import LocalServer

ENDPOINT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def client(server: LocalServer) -> Iterator[openai.OpenAI]:
    server.set_scenario({})
    with openai.OpenAI(base_url=server.url, api_key=server.api_key, max_retries=0) as found:
        yield found


def upload(client: openai.OpenAI, count: int) -> FileObject:
    data = b"".join(
        json.dumps(
            {
                "custom_id": f"row {i}",
                "method": "POST",
                "url": ENDPOINT,
                "body": {"model": "gpt-5-mini", "messages": [{"role": "user", "content": f"say {i}"}]},
            }
        ).encode()
        + b"\n"
        for i in range(count)
    )
    return client.files.create(
        file=("in.jsonl", io.BytesIO(data)),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 86_400},
    )


def create(client: openai.OpenAI, file_id: str, **metadata: str) -> Batch:
    return client.batches.create(
        input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h", metadata=metadata or None
    )


def wait(client: openai.OpenAI, batch_id: str, *statuses: str) -> Batch:
    for _ in range(20_000):
        batch = client.batches.retrieve(batch_id)
        if batch.status in (statuses or ("completed", "failed", "expired", "cancelled")):
            return batch
    raise AssertionError(f"{batch_id} is still {batch.status}")


def test_upload_create_poll_and_read_both_files(server: LocalServer, client: openai.OpenAI) -> None:
    server.set_scenario({"rows": [{"fault": "rate_limited", "match": {"custom_id": "3$"}}]})
    stored = upload(client, 5)
    assert stored.status == "processed" and stored.expires_at == stored.created_at + 86_400
    batch = wait(client, create(client, stored.id, token="t-1").id)
    assert batch.status == "completed" and batch.errors is None
    assert batch.request_counts is not None and batch.usage is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (
        5,
        4,
        1,
    )
    assert batch.output_file_id is not None and batch.error_file_id is not None
    answers = [json.loads(row) for row in client.files.content(batch.output_file_id).iter_lines()]
    assert [row["custom_id"] for row in answers] == ["row 0", "row 1", "row 2", "row 4"]
    completions = [ChatCompletion.model_validate(row["response"]["body"], strict=True) for row in answers]
    assert all(c.choices[0].message.content and c.usage is not None for c in completions)
    assert sum(c.usage.total_tokens for c in completions if c.usage) == batch.usage.total_tokens
    [failed] = [json.loads(row) for row in client.files.content(batch.error_file_id).iter_lines()]
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("row 3", 429)


def test_batches_and_files_are_paged_through(client: openai.OpenAI) -> None:
    stored = upload(client, 1)
    made = [create(client, stored.id, token=str(i)).id for i in range(5)]
    found = {batch.id: batch.metadata for batch in client.batches.list(limit=2)}
    assert list(found)[:5] == made[::-1]
    assert [found[batch_id] for batch_id in made] == [{"token": str(i)} for i in range(5)]
    assert stored.id in [file.id for file in client.files.list(purpose="batch", limit=2)]


def test_a_batch_is_cancelled_with_what_it_has(server: LocalServer, client: openai.OpenAI) -> None:
    server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0}})
    batch = wait(client, create(client, upload(client, 3).id).id, "in_progress")
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait(client, batch.id)
    assert batch.status == "cancelled" and batch.error_file_id is not None
    rows = [json.loads(row) for row in client.files.content(batch.error_file_id).iter_lines()]
    assert [row["error"]["code"] for row in rows] == ["batch_cancelled"] * 3
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_refused_file_names_the_line(client: openai.OpenAI) -> None:
    stored = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    batch = wait(client, create(client, stored.id).id)
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data
    assert (batch.errors.data[0].line, batch.errors.data[0].code) == (1, "missing_required_parameter")


def test_files_are_read_and_deleted(client: openai.OpenAI) -> None:
    stored = upload(client, 2)
    assert client.files.retrieve(stored.id) == stored
    assert client.files.content(stored.id).content.count(b"\n") == 2
    assert client.files.delete(stored.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(stored.id)


def test_errors_arrive_as_the_sdks_own_types(server: LocalServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("in.txt", b"{}\n"), purpose="batch")
    assert refused.value.type == "invalid_request_error"
    with openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as wrong:
            stranger.models.list()
        assert wrong.value.code == "invalid_api_key"
    server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 429, "retry_after": 1}]})
    with pytest.raises(openai.RateLimitError):
        create(client, "file-any")


def test_the_sdk_retries_what_a_scenario_lets_pass_the_second_time(server: LocalServer) -> None:
    server.set_scenario(
        {"calls": [{"on": "list", "fault": "error", "status": 503, "retry_after": 0.01, "times": 1}]}
    )
    with openai.OpenAI(base_url=server.url, api_key=server.api_key, max_retries=1) as client:
        assert client.batches.list(limit=1) is not None
    assert [call["status"] for call in server.requests("GET", "/v1/batches")][-2:] == [503, 200]


def test_the_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["simulated"]
