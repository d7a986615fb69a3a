"""The official ``mistralai`` SDK, unchanged, against the local server: an independent judge of its wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from mistralai.client import Mistral, errors, models

from tests.local_server import LocalServer

CHAT = "/v1/chat/completions"
ENDED = ("SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def client(server: LocalServer) -> Iterator[Mistral]:
    server.set_scenario({})
    with Mistral(api_key=server.api_key, server_url=server.url_of("mistral")) as found:
        yield found


def requests(count: int, **body: Any) -> list[dict[str, Any]]:
    message = {"role": "user", "content": "Which cheese is the best?"}
    return [
        {"custom_id": f"row {i}", "body": {"messages": [message], "max_tokens": 100, **body}}
        for i in range(count)
    ]


def upload(client: Mistral, rows: list[dict[str, Any]]) -> models.CreateFileResponse:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return client.files.upload(file={"file_name": "in.jsonl", "content": data}, purpose="batch")


def create(client: Mistral, file_id: str, **metadata: str) -> models.BatchJob:
    return client.batch.jobs.create(
        endpoint=CHAT, input_files=[file_id], model="mistral-small-latest", metadata=metadata
    )


def wait(client: Mistral, job_id: str) -> models.BatchJob:
    for _ in range(20_000):
        job = client.batch.jobs.get(job_id=job_id)
        if job.status in ENDED:
            return job
    raise AssertionError(f"{job_id} is still {job.status}")


def rows_of(client: Mistral, file_id: Any) -> list[dict[str, Any]]:
    content = client.files.download(file_id=file_id).read()
    return [json.loads(row) for row in content.split(b"\n") if row]


def test_upload_create_poll_and_read_both_files(server: LocalServer, client: Mistral) -> None:
    server.set_scenario({"rows": [{"fault": "rate_limited", "match": {"custom_id": "2$"}}]})
    stored = upload(client, requests(4))
    assert (stored.purpose, stored.sample_type, stored.num_lines) == ("batch", "batch_request", 4)
    made = create(client, stored.id, token="t-1")
    assert made.total_requests == 4 and made.input_files == [stored.id]
    job = wait(client, made.id)
    counts = (job.completed_requests, job.succeeded_requests, job.failed_requests)
    assert (job.status, job.metadata, counts) == ("SUCCESS", {"token": "t-1"}, (4, 3, 1))
    assert [(error.message, error.count) for error in job.errors] == [("Rate limit reached.", 1)]
    rows = rows_of(client, job.output_file)
    assert [row["custom_id"] for row in rows] == ["row 0", "row 1", "row 3"]
    answer = models.ChatCompletionResponse.model_validate(rows[0]["response"]["body"])
    assert answer.choices[0].message is not None and answer.usage.total_tokens
    [error] = rows_of(client, job.error_file)
    assert json.loads(error["response"]["body"])["code"] == "rate_limit_exceeded"


def test_requests_that_go_along(client: Mistral) -> None:
    made = client.batch.jobs.create(endpoint=CHAT, requests=requests(3), model="m-1", metadata={"token": "i"})
    assert wait(client, made.id).outputs is None
    outputs = client.batch.jobs.get(job_id=made.id, inline=True).outputs
    assert outputs is not None
    assert [row["custom_id"] for row in outputs] == ["row 0", "row 1", "row 2"]  # type: ignore[union-attr]


def test_embeddings_and_moderations(client: Mistral) -> None:
    for endpoint, answer in (
        ("/v1/embeddings", models.EmbeddingResponse),
        ("/v1/moderations", models.ModerationResponse),
    ):
        stored = upload(client, [{"custom_id": "r", "body": {"input": ["one text", "another"]}}])
        made = client.batch.jobs.create(endpoint=endpoint, input_files=[stored.id], model="m-1")
        [row] = rows_of(client, wait(client, made.id).output_file)
        answer.model_validate(row["response"]["body"])


def test_jobs_are_found_by_their_metadata(client: Mistral) -> None:
    file_id = upload(client, requests(1)).id
    made = [create(client, file_id, token=f"found-{i}").id for i in range(3)]
    since = datetime(2020, 1, 1, tzinfo=UTC)
    found = client.batch.jobs.list(metadata={"token": "found-1"}, created_after=since)
    assert (found.total, [job.id for job in found.data or ()]) == (1, [made[1]])
    wait(client, made[1])
    done = client.batch.jobs.list(metadata={"token": "found-1"}, status=["SUCCESS", "FAILED"])
    assert done.total == 1
    page = client.batch.jobs.list(page=0, page_size=2)
    assert [job.id for job in page.data or ()] == made[:0:-1]


def test_cancel_and_delete(server: LocalServer, client: Mistral) -> None:
    server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0}})
    made = create(client, upload(client, requests(2)).id)
    assert client.batch.jobs.cancel(job_id=made.id).status in ("CANCELLATION_REQUESTED", "CANCELLED")
    assert wait(client, made.id).status == "CANCELLED"
    assert client.batch.jobs.delete(job_id=made.id).deleted
    with pytest.raises(errors.SDKError) as told:
        client.batch.jobs.get(job_id=made.id)
    assert told.value.status_code == 404


def test_files_are_listed_fetched_by_a_signed_address_and_deleted(client: Mistral) -> None:
    stored = upload(client, requests(1))
    assert stored.id in [one.id for one in client.files.list(page_size=5).data]
    assert client.files.get_signed_url(file_id=stored.id, expiry=1).url.startswith("http")
    assert client.files.retrieve(file_id=stored.id).deleted is False
    assert client.files.delete(file_id=stored.id).deleted


def test_a_bad_line_refuses_the_upload(client: Mistral) -> None:
    with pytest.raises(errors.SDKError) as told:
        upload(client, [*requests(1), *requests(1, temperature=9)])
    assert told.value.status_code == 422
    assert json.loads(told.value.body)["errors"][0]["line_number"] == 2


def test_a_wrong_key_is_told(server: LocalServer) -> None:
    with (
        Mistral(api_key="wrong", server_url=server.url_of("mistral")) as client,
        pytest.raises(errors.SDKError) as told,
    ):
        client.batch.jobs.list()
    assert told.value.status_code == 401 and set(json.loads(told.value.body)) == {"detail"}


def test_models_are_listed(client: Mistral) -> None:
    assert [model.id for model in client.models.list().data or ()] == ["simulated"]
