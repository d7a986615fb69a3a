"""The official ``google-genai`` SDK against the local server: whole cycles, in both versions of the API."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from tests.local_server import LocalServer

MODEL = "gemini-2.5-flash"
VECTORS = "gemini-embedding-001"
STATE = types.JobState
_LOOKS = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server")) as found:
        yield found


def client_of(server: LocalServer, version: str = "v1beta", key: str | None = None) -> genai.Client:
    options = types.HttpOptions(
        base_url=server.url_of("gemini"),
        api_version=version,
        retry_options=types.HttpRetryOptions(attempts=1),
    )
    return genai.Client(api_key=key or server.api_key, http_options=options)


@pytest.fixture(params=["v1beta", "v1"])
def client(request: pytest.FixtureRequest, server: LocalServer) -> Iterator[genai.Client]:
    server.set_scenario({})
    with client_of(server, request.param) as found:
        yield found


def upload(client: genai.Client, requests: dict[str, dict[str, Any]]) -> types.File:
    rows = [json.dumps({"key": key, "request": asked}).encode() for key, asked in requests.items()]
    return client.files.upload(
        file=io.BytesIO(b"\n".join(rows)),
        config=types.UploadFileConfig(mime_type="application/jsonl", display_name="nightly"),
    )


def said(text: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}]}


def until_done(client: genai.Client, job: types.BatchJob) -> types.BatchJob:
    assert job.name
    for _ in range(_LOOKS):
        job = client.batches.get(name=job.name)
        if job.done:
            return job
    raise AssertionError(f"{job.name} is still {job.state}")


def rows_of(client: genai.Client, job: types.BatchJob) -> dict[str, dict[str, Any]]:
    assert job.dest and job.dest.file_name
    content = client.files.download(file=job.dest.file_name)
    rows = [json.loads(line) for line in content.split(b"\n") if line]
    return {row["key"]: row for row in rows}


def responses(job: types.BatchJob) -> list[types.GenerateContentResponse]:
    assert job.dest and job.dest.inlined_responses
    found = [one.response for one in job.dest.inlined_responses]
    assert all(found)
    return [response for response in found if response]


def test_a_batch_of_a_file_is_uploaded_created_watched_and_read(
    server: LocalServer, client: genai.Client
) -> None:
    file = upload(client, {f"r-{n}": said(f"say {n}") for n in range(5)})
    assert file.state == types.FileState.ACTIVE and file.name and file.display_name == "nightly"
    assert client.files.get(name=file.name).size_bytes == file.size_bytes
    created = client.batches.create(
        model=MODEL, src=file.name, config=types.CreateBatchJobConfig(display_name="my job")
    )
    assert (created.state, created.display_name) == (STATE.JOB_STATE_PENDING, "my job")
    job = until_done(client, created)
    assert job.state == STATE.JOB_STATE_SUCCEEDED and job.model == f"models/{MODEL}"
    assert job.create_time and job.end_time and job.end_time >= job.create_time
    rows = rows_of(client, job)
    answers = {
        key: types.GenerateContentResponse.model_validate(row["response"]) for key, row in rows.items()
    }
    assert list(answers) == [f"r-{n}" for n in range(5)]
    for key, answer in answers.items():
        assert answer.text and answer.text.endswith(f"say {key[-1]}") and answer.model_version == MODEL
        assert answer.candidates and answer.candidates[0].finish_reason == types.FinishReason.STOP
        assert answer.usage_metadata and answer.usage_metadata.total_token_count
    charges = server.charges(str(job.name).removeprefix("batches/"))
    assert [(charge["custom_id"], charge["model"]) for charge in charges] == [(k, MODEL) for k in answers]


def test_a_large_file_is_sent_in_several_chunks(server: LocalServer, client: genai.Client) -> None:
    before = len(server.requests("POST"))
    long = "x" * (5 << 20)
    file = upload(client, {f"r-{n}": said(long) for n in range(2)})
    assert file.size_bytes and file.size_bytes > 10 << 20
    assert len(server.requests("POST")) == before + 3, "begun, and two chunks of at most 8 MB"


def test_a_batch_of_inline_requests_needs_no_file(client: genai.Client) -> None:
    requests = [
        types.InlinedRequest(
            contents="Is it done?",
            metadata={"key": "r-1"},
            config=types.GenerateContentConfig(
                system_instruction="Be brief.",
                max_output_tokens=3,
                stop_sequences=["END"],
                temperature=0.1,
                safety_settings=[
                    types.SafetySetting(
                        category=types.HarmCategory.HARM_CATEGORY_HARASSMENT,
                        threshold=types.HarmBlockThreshold.BLOCK_NONE,
                    )
                ],
                thinking_config=types.ThinkingConfig(thinking_budget=0),
            ),
        ),
        types.InlinedRequest(
            model=MODEL,
            contents=[
                types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png"),
                types.Part.from_text(text="What is this?"),
            ],
            metadata={"key": "r-2"},
        ),
    ]
    job = until_done(client, client.batches.create(model=MODEL, src=requests))
    assert job.dest and job.dest.inlined_responses
    assert [one.metadata for one in job.dest.inlined_responses] == [{"key": "r-1"}, {"key": "r-2"}]
    first, second = responses(job)
    assert first.candidates and first.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert second.text and second.text.endswith("What is this?")


@pytest.mark.parametrize("member", ["response_schema", "response_json_schema"])
def test_structured_answers_fit_the_schema(client: genai.Client, member: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "label": {"type": "string", "enum": ["refund", "other"]},
            "urgent": {"type": "boolean"},
        },
        "required": ["label", "urgent"],
    }
    config = types.GenerateContentConfig(response_mime_type="application/json", **{member: schema})
    asked = types.InlinedRequest(contents="I want a refund.", config=config)
    [answer] = responses(until_done(client, client.batches.create(model=MODEL, src=[asked])))
    found = json.loads(str(answer.text))
    assert found["label"] == "refund" and isinstance(found["urgent"], bool)


def test_tools_are_called_and_their_results_go_back(client: genai.Client) -> None:
    city = types.Schema(type=types.Type.STRING, enum=["Paris", "Rome"])
    weather = types.FunctionDeclaration(
        name="weather",
        parameters=types.Schema(type=types.Type.OBJECT, properties={"city": city}, required=["city"]),
    )
    calling = types.FunctionCallingConfig(
        mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["weather"]
    )
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[weather])],
        tool_config=types.ToolConfig(function_calling_config=calling),
    )
    ask = types.UserContent("Weather in Rome?")
    [answer] = responses(
        until_done(
            client,
            client.batches.create(model=MODEL, src=[types.InlinedRequest(contents=[ask], config=config)]),
        )
    )
    [call] = answer.function_calls or []
    assert (call.name, call.args) == ("weather", {"city": "Rome"})
    assert answer.candidates and answer.candidates[0].content
    result = types.Part.from_function_response(name="weather", response={"result": "sunny"})
    history = [ask, answer.candidates[0].content, types.Content(role="user", parts=[result])]
    again = [types.InlinedRequest(contents=[*history, types.UserContent("So?")])]
    [last] = responses(until_done(client, client.batches.create(model=MODEL, src=again)))
    assert last.text and last.text.endswith("So?")


def test_embeddings_of_a_file_are_those_of_inline_requests(client: genai.Client) -> None:
    texts = ["one text", "another text"]
    config = types.EmbedContentConfig(output_dimensionality=8, task_type="CLUSTERING")
    inline = types.EmbeddingsBatchJobSource(
        inlined_requests=types.EmbedContentBatch(contents=texts, config=config)
    )
    asked = {text: {"content": {"parts": [{"text": text}]}, "output_dimensionality": 8} for text in texts}
    file = upload(client, asked)
    with warnings.catch_warnings(action="ignore"):  # the SDK calls them experimental
        jobs = [
            client.batches.create_embeddings(model=VECTORS, src=source)
            for source in (inline, types.EmbeddingsBatchJobSource(file_name=file.name))
        ]
    first, second = (until_done(client, job) for job in jobs)
    assert first.dest and first.dest.inlined_embed_content_responses
    vectors = []
    for one in first.dest.inlined_embed_content_responses:
        assert one.response and one.response.embedding and one.response.token_count
        vectors.append(one.response.embedding.values)
    rows = rows_of(client, second)
    assert vectors == [rows[text]["response"]["embedding"]["values"] for text in texts]
    assert [len(vector or ()) for vector in vectors] == [8, 8]


def test_rows_that_failed_are_errors_among_the_answers(server: LocalServer, client: genai.Client) -> None:
    server.set_scenario({"rows": [{"match": {"contains": "bad"}, "fault": "rate_limited"}]})
    requests = [types.InlinedRequest(contents=text) for text in ("good", "bad")]
    job = until_done(client, client.batches.create(model=MODEL, src=requests))
    assert job.state == STATE.JOB_STATE_SUCCEEDED and job.dest and job.dest.inlined_responses
    good, bad = job.dest.inlined_responses
    assert good.response and not good.error
    assert bad.error and bad.error.code == 8 and not bad.response


def test_batches_are_listed_page_by_page(client: genai.Client) -> None:
    names = [
        client.batches.create(model=MODEL, src=[types.InlinedRequest(contents="hello")]).name
        for _ in range(3)
    ]
    pager = client.batches.list(config=types.ListBatchJobsConfig(page_size=2))
    listed = [job.name for job, _ in zip(pager, names, strict=False)]
    assert listed == names[::-1]


def test_a_running_batch_is_cancelled_and_then_deleted(server: LocalServer, client: genai.Client) -> None:
    server.set_scenario({"pace": {"seconds": 3_600, "hold_at": 0.5}})
    file = upload(client, {f"r-{n}": said("hello") for n in range(4)})
    job = client.batches.create(model=MODEL, src=str(file.name))
    assert job.name
    assert client.batches.get(name=job.name).state in (STATE.JOB_STATE_PENDING, STATE.JOB_STATE_RUNNING)
    client.batches.cancel(name=job.name)
    cancelled = until_done(client, job)
    assert cancelled.state == STATE.JOB_STATE_CANCELLED and not cancelled.dest
    client.batches.delete(name=job.name)
    with pytest.raises(errors.ClientError) as gone:
        client.batches.get(name=job.name)
    assert (gone.value.code, gone.value.status) == (404, "NOT_FOUND")
    client.files.delete(name=str(file.name))
    with pytest.raises(errors.ClientError) as forbidden:
        client.files.delete(name=str(file.name))
    assert (forbidden.value.code, forbidden.value.status) == (403, "PERMISSION_DENIED")


def test_an_expired_batch_shows_nothing_that_could_be_read(server: LocalServer, client: genai.Client) -> None:
    server.set_scenario({"batches": [{"fault": "expire"}]})
    job = until_done(client, client.batches.create(model=MODEL, src=[types.InlinedRequest(contents="hello")]))
    assert job.state == STATE.JOB_STATE_EXPIRED and not job.dest


@pytest.mark.parametrize("in_list", [False, True])
def test_refusals_are_read(server: LocalServer, client: genai.Client, in_list: bool) -> None:
    scenario = {"batches": [{"fault": "queue_full", "times": 1}], "gemini": {"errors_in_list": in_list}}
    server.set_scenario({**scenario, "unknown_models": ["gemini-9"]})
    asked = [types.InlinedRequest(contents="hello")]
    told = []
    for model in (MODEL, "gemini-9"):
        with pytest.raises(errors.ClientError) as refused:
            client.batches.create(model=model, src=asked)
        told.append((refused.value.code, refused.value.status))
    assert told == [(429, "RESOURCE_EXHAUSTED"), (404, "NOT_FOUND")]


def test_a_wrong_key_is_an_invalid_argument(server: LocalServer) -> None:
    with client_of(server, key="wrong") as stranger, pytest.raises(errors.ClientError) as refused:
        stranger.batches.create(model=MODEL, src=[types.InlinedRequest(contents="hello")])
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    assert "API_KEY_INVALID" in str(refused.value.details)


def test_a_file_that_is_looked_through_is_waited_for(server: LocalServer, client: genai.Client) -> None:
    server.set_scenario({"files_ready_after": 2})
    file = upload(client, {"r-1": said("hello")})
    assert file.state == types.FileState.PROCESSING and file.name
    with pytest.raises(errors.ClientError, match="FAILED_PRECONDITION"):
        client.batches.create(model=MODEL, src=file.name)
    for _ in range(_LOOKS):
        if client.files.get(name=file.name).state == types.FileState.ACTIVE:
            break
    assert client.batches.create(model=MODEL, src=file.name).name
    assert file.name in [one.name for one in client.files.list(config=types.ListFilesConfig(page_size=3))]
