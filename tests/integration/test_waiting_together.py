"""Triggers of one connection in one event loop, against the local server in its own process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from airflow_batch_llm.triggers.batches import BatchLLMTrigger
from tests.local_server import LocalServer

ENDED = {"version": 1, "status": "ended", "ended": 1}
HELD = {"pace": {"seconds": 3600, "hold_at": 0.0}}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(scenario=HELD) as server:
        yield server


@pytest.fixture
def batches(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Twelve batches that run until they are released; the connection ``llm_batch`` leads to them."""
    define(monkeypatch, server)
    body = {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.api_key}"}) as client:
        file = {"file": ("one.jsonl", json.dumps(line).encode() + b"\n")}
        sent = client.post("/files", data={"purpose": "batch"}, files=file).raise_for_status()
        order = {"input_file_id": sent.json()["id"], "endpoint": line["url"], "completion_window": "24h"}
        return [client.post("/batches", json=order).raise_for_status().json()["id"] for _ in range(12)]


def define(monkeypatch: pytest.MonkeyPatch, server: LocalServer, key: str | None = None) -> None:
    fields = {"conn_type": "batch_llm", "host": server.url, "password": key or server.api_key}
    monkeypatch.setenv("AIRFLOW_CONN_LLM_BATCH", json.dumps({**fields, "extra": {"dialect": "generic"}}))


def run(
    batch_ids: list[str], meanwhile: Callable[[], Awaitable[None]], *, interval_min: float = 0.1
) -> list[Any]:
    """Run a trigger for each batch and return the events; what they are serialized to is what runs."""

    async def event_of(batch_id: str) -> Any:
        trigger = BatchLLMTrigger(
            conn_id="llm_batch",
            batches=[batch_id],
            interval_min=interval_min,
            interval_max=3 * interval_min,
            deadline=time.time() + 300,
        )
        again = BatchLLMTrigger(**trigger.serialize()[1])
        return [event.payload async for event in again.run()]

    async def main() -> list[Any]:
        waits = [asyncio.create_task(event_of(batch_id)) for batch_id in batch_ids]
        await meanwhile()
        events = await asyncio.gather(*waits)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return events

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Wait in the loop, without blocking it, until the condition holds."""
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


def lists(server: LocalServer) -> int:
    return len(server.requests("GET", "/v1/batches"))


def test_triggers_look_together_and_only_read(server: LocalServer, batches: list[str]) -> None:
    before, seen = len(server.requests()), lists(server)

    while_all_ran: list[dict[str, Any]] = []

    async def release() -> None:
        await until(lambda: lists(server) >= seen + 3)
        while_all_ran.extend(server.requests()[before:])
        server.release()

    assert run(batches, release) == [[ENDED]] * 12
    assert {call["path"] for call in while_all_ran} == {"/v1/batches"}, "one call looks at all of them"
    assert {call["method"] for call in server.requests()[before:]} == {"GET"}


def test_triggers_go_on_after_the_server_was_killed(server: LocalServer, batches: list[str]) -> None:
    seen = lists(server)

    async def kill_and_restart() -> None:
        await until(lambda: lists(server) > seen)
        server.kill9()
        await asyncio.to_thread(server.restart)
        server.release()

    assert run(batches, kill_and_restart) == [[ENDED]] * 12


def test_triggers_go_on_with_a_key_that_was_changed_while_they_waited(
    server: LocalServer, batches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, server, key="revoked")

    def refused() -> bool:
        return any(call["status"] == 401 for call in server.requests())

    async def change_key() -> None:
        await until(refused)
        define(monkeypatch, server)
        server.release()

    # Long enough between looks for the change to come before the wait is given up.
    assert run(batches, change_key, interval_min=2.0) == [[ENDED]] * 12
