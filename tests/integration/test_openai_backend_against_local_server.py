"""The OpenAI backend against the local batch server: two implementations of one protocol, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.ids import META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.jsonl import iter_lines
from airflow_batch_llm.core.model import RemoteBatch, RequestTemplate, Row
from airflow_batch_llm.core.ports import Backend, CreateOrder
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import AuthError, InDoubt, NotFound, TransferError
from tests.local_server import LocalServer

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["bug", "question"]}, "sure": {"type": "boolean"}},
    "required": ["label"],
}
TEMPLATE = RequestTemplate("/v1/chat/completions", "m-1", {"max_tokens": 50}, SCHEMA)
SHORT_ON_PATIENCE = {"retry_budget_seconds": 0, "create_timeout_seconds": 20}


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
def server(running: LocalServer) -> LocalServer:
    running.set_scenario({})
    return running


def call(
    server: LocalServer, use: Callable[[Backend], Awaitable[Any]], key: str | None = None, **options: Any
) -> Any:
    async def whole() -> Any:
        backend = make_backend("openai", base_url=server.url, api_key=key or server.api_key, options=options)
        try:
            return await use(backend)
        finally:
            await backend.aclose()

    return asyncio.run(whole())


def order(file_id: str, token: str) -> CreateOrder:
    return CreateOrder(TEMPLATE, file_id, {META_TOKEN: token, META_ORIGIN: f"origin-{token}"})


async def upload(backend: Backend, folder: Path, rows: int) -> str:
    encode = backend.line_encoder(TEMPLATE)
    local = folder / "upload.jsonl"
    with local.open("wb") as file:
        for number in range(rows):
            body = {"messages": [{"role": "user", "content": f"Ticket {number}: it does not start."}]}
            file.write(encode(f"w-{number}", json.dumps(body).encode()))
    return await backend.upload(local, "batch-0")


async def ended(backend: Backend, batch: RemoteBatch) -> RemoteBatch:
    for _ in range(600):
        if batch.status.terminal:
            return batch
        await asyncio.sleep(0.05)
        batch = await backend.retrieve(batch.id)
    raise AssertionError(f"batch is still {batch.raw_status}")


async def read(backend: Backend, batch: RemoteBatch, folder: Path) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for file in batch.files:
        local = folder / file.kind
        await backend.download(batch, file, local)
        for _, line in iter_lines([local.read_bytes()]):
            row = backend.decode(line)
            assert row.wire_id not in rows
            rows[row.wire_id] = row
    return rows


def run_batch(
    server: LocalServer, folder: Path, token: str, rows: int = 4
) -> tuple[RemoteBatch, dict[str, Row]]:
    async def use(backend: Backend) -> tuple[RemoteBatch, dict[str, Row]]:
        created = await backend.create(order(await upload(backend, folder, rows), token))
        batch = await ended(backend, created)
        return batch, await read(backend, batch, folder)

    result: tuple[RemoteBatch, dict[str, Row]] = call(server, use)
    return result


def test_structured_answers_come_back_under_their_ids(server: LocalServer, tmp_path: Path) -> None:
    batch, rows = run_batch(server, tmp_path, "whole")
    assert batch.raw_status == "completed"
    assert sorted(rows) == ["w-0", "w-1", "w-2", "w-3"]
    for row in rows.values():
        assert row.verdict is Verdict.OK
        assert set(json.loads(row.text or "")) == {"label", "sure"}
        assert row.usage.input > 0
        assert row.usage.output > 0


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("server_error", Verdict.SERVER_ERROR),
        ("rate_limited", Verdict.RATE_LIMITED),
        ("insufficient_quota", Verdict.ACCOUNT),
        ("bad_request", Verdict.BAD_REQUEST),
        ("context_length_exceeded", Verdict.TOO_LARGE),
        ("request_timeout", Verdict.TIMEOUT),
        ("error_in_200", Verdict.SERVER_ERROR),
        ("truncated", Verdict.TRUNCATED),
        ("content_filter", Verdict.FILTERED),
        ("refusal", Verdict.REFUSED),
        ("empty", Verdict.EMPTY),
    ],
)
def test_each_fault_of_a_row_has_its_verdict(
    server: LocalServer, tmp_path: Path, fault: str, verdict: Verdict
) -> None:
    server.set_scenario({"rows": [{"fault": fault, "match": {"custom_id": "^w-1$"}}]})
    _, rows = run_batch(server, tmp_path, f"fault-{fault}", rows=2)
    assert {wire_id: row.verdict for wire_id, row in rows.items()} == {"w-0": Verdict.OK, "w-1": verdict}
    assert rows["w-1"].code


@pytest.mark.parametrize("absent", ["null", "empty", "absent", "object", "empty_file"])
def test_an_absent_file_is_never_asked_for(server: LocalServer, tmp_path: Path, absent: str) -> None:
    server.set_scenario({"absent_file_id": absent})
    _, rows = run_batch(server, tmp_path, f"absent-{absent}", rows=2)
    assert sorted(rows) == ["w-0", "w-1"]


def test_what_was_answered_before_an_expiry_is_read(server: LocalServer, tmp_path: Path) -> None:
    server.set_scenario({"batches": [{"fault": "expire", "after": 0.5}]})
    batch, rows = run_batch(server, tmp_path, "expiry")
    assert batch.raw_status == "expired"
    assert sorted(row.verdict for row in rows.values()) == ["expired", "expired", "ok", "ok"]


def test_a_full_queue_is_a_failed_batch_with_its_code(server: LocalServer, tmp_path: Path) -> None:
    server.set_scenario({"batches": [{"fault": "queue_full"}]})
    batch, rows = run_batch(server, tmp_path, "queue")
    assert (batch.raw_status, batch.files, rows) == ("failed", (), {})
    assert [error.code for error in batch.errors] == ["token_limit_exceeded"]


def test_a_lost_reply_is_in_doubt_and_the_batch_is_found_by_its_token(
    server: LocalServer, tmp_path: Path
) -> None:
    server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    before = len(server.requests("POST", "/v1/batches"))

    async def use(backend: Backend) -> tuple[list[RemoteBatch], list[RemoteBatch], list[RemoteBatch]]:
        file_id = await upload(backend, tmp_path, 1)
        with pytest.raises(InDoubt):
            await backend.create(order(file_id, "lost"))
        return (
            await backend.find("lost"),
            await backend.find_origin("origin-lost"),
            await backend.find("never-sent"),
        )

    found, by_origin, none = call(server, use)
    assert [batch.id for batch in found] == [batch.id for batch in by_origin]
    assert (len(found), none) == (1, [])
    assert len(server.requests("POST", "/v1/batches")) == before + 1


def test_a_create_that_failed_is_in_doubt_and_not_there(server: LocalServer, tmp_path: Path) -> None:
    server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 503}]})

    async def use(backend: Backend) -> list[RemoteBatch]:
        file_id = await upload(backend, tmp_path, 1)
        with pytest.raises(InDoubt):
            await backend.create(order(file_id, "never"))
        return await backend.find("never")

    assert call(server, use) == []


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_a_download_that_breaks_off_is_whole_in_the_end(
    server: LocalServer, tmp_path: Path, fault: str
) -> None:
    server.set_scenario({"calls": [{"on": "download", "fault": fault, "times": 1}]})
    _, rows = run_batch(server, tmp_path, f"download-{fault}")
    assert len(rows) == 4


def test_a_download_that_always_breaks_off_is_an_error(server: LocalServer, tmp_path: Path) -> None:
    async def use(backend: Backend) -> None:
        batch = await ended(
            backend, await backend.create(order(await upload(backend, tmp_path, 2), "broken"))
        )
        server.set_scenario({"calls": [{"on": "download", "fault": "cut"}]})
        await backend.download(batch, batch.files[0], tmp_path / "out")

    with pytest.raises(TransferError):
        call(server, use, **SHORT_ON_PATIENCE)
    assert not (tmp_path / "out").exists()


def test_a_batch_can_be_cancelled_again_and_again(server: LocalServer, tmp_path: Path) -> None:
    server.set_scenario({"pace": {"seconds": 600, "hold_at": 0.5}})

    async def use(backend: Backend) -> list[str]:
        created = await backend.create(order(await upload(backend, tmp_path, 4), "cancel"))
        await backend.cancel(created.id)
        batch = await ended(backend, created)
        again = await backend.cancel(created.id)
        return [batch.raw_status, again.raw_status]

    assert call(server, use) == ["cancelled", "cancelled"]


def test_pages_of_the_list_are_followed(server: LocalServer, tmp_path: Path) -> None:
    async def use(backend: Backend) -> tuple[list[str], list[str]]:
        file_id = await upload(backend, tmp_path, 1)
        made = [(await backend.create(order(file_id, f"page-{number}"))).id for number in range(105)]
        listed = await backend.list_recent(stop_at=lambda batch: batch.id == made[0])
        assert [batch.id for batch in await backend.find("page-0")] == [made[0]]
        return made, [batch.id for batch in listed]

    made, listed = call(server, use)
    assert listed == list(reversed(made))


def test_things_that_are_gone_are_not_found_and_deleting_them_is_fine(
    server: LocalServer, tmp_path: Path
) -> None:
    async def use(backend: Backend) -> None:
        batch = await ended(backend, await backend.create(order(await upload(backend, tmp_path, 1), "gone")))
        for _ in range(2):
            await backend.delete_file(batch.files[0].file_id)
        with pytest.raises(NotFound):
            await backend.download(batch, batch.files[0], tmp_path / "out")
        with pytest.raises(NotFound):
            await backend.retrieve("batch_none")

    call(server, use)


def test_the_probe_tells_a_right_key_from_a_wrong_one(server: LocalServer) -> None:
    assert "accepts the key" in call(server, lambda backend: backend.probe())
    with pytest.raises(AuthError):
        call(server, lambda backend: backend.probe(), key="wrong")
