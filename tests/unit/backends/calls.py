"""Calls over real HTTP to a scripted server, each with a fresh backend; waits are recorded, not waited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.backends.base import ApiClient
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.retrying import SafeRetry
from airflow_batch_llm.core.ports import Backend
from tests.unit.backends.scripted_server import Received, ScriptedServer

AnyBackend = TypeVar("AnyBackend", bound=Backend)
T = TypeVar("T")


def call_once(make: Callable[[], AnyBackend], call: Callable[[AnyBackend], Awaitable[T]]) -> T:
    """Make one call with a fresh backend and close it."""

    async def whole() -> T:
        backend = make()
        try:
            return await call(backend)
        finally:
            await backend.aclose()

    return asyncio.run(whole())


def recorded(waits: list[float], **options: Any) -> SafeRetry:
    """Return how safe calls are repeated, with waits that end at once and are noted."""

    async def record(seconds: float) -> None:
        waits.append(seconds)

    return SafeRetry(**options, sleep=record)


def client_for(
    base_url: str, headers: Mapping[str, str], options: BackendOptions, waits: list[float]
) -> ApiClient:
    """Return a client whose waits are noted."""
    return ApiClient(
        base_url,
        headers=headers,
        connect_timeout=options.connect_timeout_seconds,
        timeout=options.timeout_seconds,
        retry=recorded(waits, retries=options.max_retries, budget=options.retry_budget_seconds),
    )


class Scripted:
    """A scripted server, and calls to it by backends that are made as a connection makes them.

    :param root: the address that a connection would hold.
    """

    def __init__(self, provider: str, server: ScriptedServer, root: str) -> None:
        self.provider = provider
        self.server = server
        self.root = root

    def run(self, call: Callable[[Backend], Awaitable[T]], *, address: str = "", **options: Any) -> T:
        """Make one call; ``address`` is what follows the root."""

        def make() -> Backend:
            return make_backend(
                self.provider,
                base_url=self.root + address,
                api_key="key-1",
                options={"retry_budget_seconds": 0, **options},
            )

        return call_once(make, call)

    @property
    def last(self) -> Received:
        """The request that came in last."""
        return self.server.received[-1]
