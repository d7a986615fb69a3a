"""A scripted server and Anthropic's backend before it: real HTTP, waits recorded instead of waited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.backends.anthropic import AnthropicBackend
from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import CreateOrder
from tests.unit.backends.calls import call_once, recorded
from tests.unit.backends.scripted_server import ScriptedServer

T = TypeVar("T")

BATCH: dict[str, Any] = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "in_progress",
    "request_counts": {"processing": 2, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
    "created_at": "2026-11-01T10:00:00+00:00",
    "expires_at": "2026-11-02T10:00:00+00:00",
    "ended_at": None,
    "cancel_initiated_at": None,
    "archived_at": None,
    "results_url": None,
}
TEMPLATE = RequestTemplate(CHAT, "claude-test", {"max_tokens": 100})


def ended(**counts: int) -> dict[str, Any]:
    """Return the batch as it looks when it has ended."""
    none = dict.fromkeys(BATCH["request_counts"], 0)
    return BATCH | {"processing_status": "ended", "request_counts": none | counts}


def failure(kind: str, message: str = "x", error_code: str | None = None) -> dict[str, Any]:
    """Return an error as the provider writes it."""
    error: dict[str, Any] = {"type": kind, "message": message}
    if error_code:
        error["details"] = {"error_visibility": "user_facing", "error_code": error_code}
    return {"type": "error", "error": error, "request_id": "req_1"}


class Bench:
    """Makes calls with a fresh backend each."""

    def __init__(self, server: ScriptedServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.waits: list[float] = []

    def backend(self, **options: Any) -> AnthropicBackend:
        made = make_backend("anthropic", base_url=self.server.base_url, api_key="key-1", options=options)
        assert isinstance(made, AnthropicBackend)

        made._client._retry = recorded(self.waits, retries=options.get("max_retries", 2))
        return made

    def run(self, call: Callable[[AnthropicBackend], Awaitable[T]], **options: Any) -> T:
        return call_once(lambda: self.backend(**options), call)

    def order(self, *lines: bytes) -> CreateOrder:
        path = self.folder / "lines.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return CreateOrder(TEMPLATE, "", {}, lines=path, requests=len(lines))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def bench(server: ScriptedServer, tmp_path: Path) -> Bench:
    return Bench(server, tmp_path)
