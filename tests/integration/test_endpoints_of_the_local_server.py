"""A batch of each endpoint, from the caller's body to the row that comes back.

Both ways at once: the package's own backend against the local server, and the official ``openai`` SDK as
the judge of what goes over the wire.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, ModerationCreateResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ENDPOINTS,
    MODERATIONS,
    RESPONSES,
)
from airflow_batch_llm.core.ids import META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RequestTemplate, Row
from airflow_batch_llm.core.ports import Backend, CreateOrder
from airflow_batch_llm.core.verdicts import Verdict
from tests.local_server import LocalServer

MESSAGES = [
    {"role": "system", "content": "Label the ticket."},
    {"role": "user", "content": [{"type": "text", "text": "My invoice was charged twice."}]},
]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    COMPLETIONS: {"prompt": "My invoice was charged twice. Label:"},
    RESPONSES: {"messages": MESSAGES},
    EMBEDDINGS: {"input": "My invoice was charged twice."},
    MODERATIONS: {"input": "I will kill you."},
}
TYPES: dict[str, type[BaseModel]] = {
    CHAT: ChatCompletion,
    COMPLETIONS: Completion,
    RESPONSES: Response,
    EMBEDDINGS: CreateEmbeddingResponse,
    MODERATIONS: ModerationCreateResponse,
}
LABEL = {"type": "object", "properties": {"label": {"enum": ["bug", "billing"]}}, "required": ["label"]}
TOOL = {"type": "function", "function": {"name": "label", "parameters": LABEL}}


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
def server(running: LocalServer) -> LocalServer:
    running.set_scenario({})
    return running


def one_row(server: LocalServer, folder: Path, template: RequestTemplate, body: Any) -> tuple[Row, Any]:
    """Send one request as the engine does; return its row, and the body that the server wrote for it."""

    async def whole(backend: Backend) -> tuple[Row, Any]:
        local = folder / "upload.jsonl"
        local.write_bytes(backend.line_encoder(template)("w-1", jsonl.dumps(body)))
        metadata = {META_TOKEN: "t", META_ORIGIN: "o"}
        order = CreateOrder(template, await backend.upload(local, "batch-0"), metadata)
        batch = await backend.create(order)
        for _ in range(600):
            if batch.status.terminal:
                break
            await asyncio.sleep(0.02)
            batch = await backend.retrieve(batch.id)
        [file] = batch.files
        await backend.download(batch, file, folder / "result.jsonl")
        [line] = (folder / "result.jsonl").read_bytes().splitlines()
        row = backend.decode(line)
        assert row.wire_id == "w-1"
        return row, json.loads(line)["response"]["body"]

    async def call() -> tuple[Row, Any]:
        backend = make_backend("openai", base_url=server.url, api_key=server.api_key, options={})
        try:
            return await whole(backend)
        finally:
            await backend.aclose()

    return asyncio.run(call())


@pytest.mark.parametrize("endpoint", BODIES)
def test_an_answer_of_each_endpoint_is_of_the_sdks_type_and_decoded(
    server: LocalServer, tmp_path: Path, endpoint: str
) -> None:
    row, body = one_row(server, tmp_path, RequestTemplate(endpoint, "m-1"), BODIES[endpoint])
    TYPES[endpoint].model_validate(body, strict=True)
    assert (row.verdict, row.model) == (Verdict.OK, "m-1")
    assert (row.usage.input > 0) == (endpoint != MODERATIONS)
    if endpoint == EMBEDDINGS:
        assert row.text is None and row.output == body["data"][0]["embedding"]
    elif endpoint == MODERATIONS:
        assert row.text is None
        assert row.output["flagged"] and row.output["categories"]["violence"]
        assert set(row.output) == {"flagged", "categories", "category_scores"}
    else:
        assert row.text and row.output is None


def test_a_vector_is_the_same_in_both_encodings(server: LocalServer, tmp_path: Path) -> None:
    rows = [
        one_row(
            server,
            tmp_path,
            RequestTemplate(EMBEDDINGS, "m-1", {"dimensions": 64, "encoding_format": encoding}),
            BODIES[EMBEDDINGS],
        )[0]
        for encoding in ("float", "base64")
    ]
    assert len(rows[0].output) == 64
    assert rows[0] == rows[1]


def test_several_inputs_of_a_native_body_come_back_as_several_vectors(
    server: LocalServer, tmp_path: Path
) -> None:
    body = {"model": "m-1", "input": ["one", "two"], "dimensions": 8}
    row, _ = one_row(server, tmp_path, RequestTemplate(EMBEDDINGS, "", native=True), body)
    assert [len(vector) for vector in row.output] == [8, 8]


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
def test_one_prompt_with_a_schema_or_a_tool_is_answered_alike_by_chat_and_responses(
    server: LocalServer, tmp_path: Path, endpoint: str
) -> None:
    template = RequestTemplate(endpoint, "m-1", {"max_tokens": 50}, LABEL)
    row, _ = one_row(server, tmp_path, template, BODIES[endpoint])
    assert json.loads(row.text or "") == {"label": "billing"}
    choice = {"type": "function", "function": {"name": "label"}}
    template = RequestTemplate(endpoint, "m-1", {"tools": [TOOL], "tool_choice": choice})
    row, _ = one_row(server, tmp_path, template, BODIES[endpoint])
    [call] = row.output
    assert (call["type"], call["function"]["name"]) == ("function", "label")
    assert json.loads(call["function"]["arguments"]) == {"label": "billing"}


VERDICTS = {
    "error_in_200": (Verdict.SERVER_ERROR, tuple(BODIES)),
    "empty": (Verdict.EMPTY, tuple(BODIES)),
    "truncated": (Verdict.TRUNCATED, (CHAT, COMPLETIONS, RESPONSES)),
    "content_filter": (Verdict.FILTERED, (CHAT, COMPLETIONS, RESPONSES)),
    "refusal": (Verdict.REFUSED, (CHAT, RESPONSES)),
    "context_length_exceeded": (Verdict.TOO_LARGE, tuple(BODIES)),
}


@pytest.mark.parametrize(
    ("fault", "verdict", "endpoint"),
    [(fault, verdict, path) for fault, (verdict, paths) in VERDICTS.items() for path in paths],
)
def test_a_spoiled_answer_has_its_verdict_whatever_the_endpoint(
    server: LocalServer, tmp_path: Path, fault: str, verdict: Verdict, endpoint: str
) -> None:
    server.set_scenario({"rows": [{"fault": fault}]})
    row, _ = one_row(server, tmp_path, RequestTemplate(endpoint, "m-1"), BODIES[endpoint])
    assert row.verdict is verdict and row.code and not row.output


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES])
def test_an_output_limit_truncates(server: LocalServer, tmp_path: Path, endpoint: str) -> None:
    row, body = one_row(
        server, tmp_path, RequestTemplate(endpoint, "m-1", {"max_tokens": 2}), BODIES[endpoint]
    )
    assert (row.verdict, row.usage.output) == (Verdict.TRUNCATED, 2)
    TYPES[endpoint].model_validate(body, strict=True)


#: Bodies in each endpoint's own form, as a user of the SDK writes them.
OWN: dict[str, dict[str, Any]] = {
    CHAT: BODIES[CHAT],
    COMPLETIONS: {"prompt": ["one", "two"], "max_tokens": 40},
    RESPONSES: {"input": "Say it.", "instructions": "Be kind.", "max_output_tokens": 40},
    EMBEDDINGS: {"input": ["one", "two"], "dimensions": 32},
    MODERATIONS: {"input": [{"type": "text", "text": "hello"}]},
}


@pytest.mark.parametrize("endpoint", OWN)
def test_a_whole_batch_by_the_sdk(server: LocalServer, endpoint: str) -> None:
    lines = [
        {
            "custom_id": f"row {i}",
            "method": "POST",
            "url": endpoint,
            "body": {"model": "m-1", **OWN[endpoint]},
        }
        for i in range(3)
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with openai.OpenAI(base_url=server.url, api_key=server.api_key, max_retries=0) as client:
        stored = client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
        batch = client.batches.create(
            input_file_id=stored.id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window="24h",
        )
        for _ in range(20_000):
            if batch.status == "completed":
                break
            batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.endpoint, batch.error_file_id) == ("completed", endpoint, None)
        rows = [json.loads(row) for row in client.files.content(batch.output_file_id or "").iter_lines()]
    assert [row["custom_id"] for row in rows] == ["row 0", "row 1", "row 2"]
    for row in rows:
        TYPES[endpoint].model_validate(row["response"]["body"], strict=True)


def test_every_endpoint_that_a_job_can_name_is_served() -> None:
    assert set(BODIES) == set(TYPES) == set(OWN) == set(ENDPOINTS.values())
