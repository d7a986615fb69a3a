"""A backend for Mistral that talks to a scripted server, made as a connection makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.ports import Backend
from tests.unit.backends.scripted_server import Received, ScriptedServer

T = TypeVar("T")


class Mistral:
    """A scripted server, and calls to it."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server

    def run(self, call: Callable[[Backend], Awaitable[T]], **options: Any) -> T:
        """Make one call with a fresh backend."""

        async def whole() -> T:
            backend = make_backend(
                "mistral",
                base_url=self.server.base_url,
                api_key="key-1",
                options={"retry_budget_seconds": 0, **options},
            )
            try:
                return await call(backend)
            finally:
                await backend.aclose()

        return asyncio.run(whole())

    @property
    def last(self) -> Received:
        """The request that came in last."""
        return self.server.received[-1]


@pytest.fixture
def mistral() -> Iterator[Mistral]:
    with ScriptedServer() as server:
        yield Mistral(server)
