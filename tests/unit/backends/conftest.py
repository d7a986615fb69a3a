"""Backends of the tests: real HTTP, waits recorded instead of waited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from airflow_batch_llm.backends.base import ApiClient
from airflow_batch_llm.backends.dialects import DIALECTS, Dialect
from airflow_batch_llm.backends.openai import OpenAIBackend
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.retrying import SafeRetry
from tests.unit.backends.scripted_server import ScriptedServer

T = TypeVar("T")

CASES = Path(__file__).parents[2] / "cases"


class Bench:
    """A scripted server and a backend that talks to it."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.waits: list[float] = []

    def backend(self, row: Dialect | str = "openai", **options: Any) -> OpenAIBackend:
        """Return a backend; ``options`` are those of a connection."""
        chosen = BackendOptions(**options)

        async def record(seconds: float) -> None:
            self.waits.append(seconds)

        client = ApiClient(
            self.server.base_url,
            headers={"Authorization": "Bearer key-1"},
            connect_timeout=chosen.connect_timeout_seconds,
            timeout=chosen.timeout_seconds,
            retry=SafeRetry(retries=chosen.max_retries, budget=chosen.retry_budget_seconds, sleep=record),
        )
        return OpenAIBackend(DIALECTS[row] if isinstance(row, str) else row, client, chosen)

    def run(
        self, call: Callable[[OpenAIBackend], Awaitable[T]], row: Dialect | str = "openai", **options: Any
    ) -> T:
        """Make one call with a fresh backend and close it."""

        async def whole() -> T:
            backend = self.backend(row, **options)
            try:
                return await call(backend)
            finally:
                await backend.aclose()

        return asyncio.run(whole())


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def bench(server: ScriptedServer) -> Bench:
    return Bench(server)
