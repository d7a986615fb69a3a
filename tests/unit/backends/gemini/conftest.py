"""A Gemini backend over real HTTP to a server that plays fixed replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from airflow_batch_llm.backends.gemini import GeminiBackend, providers
from airflow_batch_llm.backends.options import BackendOptions
from tests.unit.backends.calls import call_once, client_for
from tests.unit.backends.scripted_server import Received, Reply, ScriptedServer

T = TypeVar("T")

__all__ = ["Bench", "Reply", "operation"]


def operation(state: str = "BATCH_STATE_RUNNING", **changes: Any) -> dict[str, Any]:
    """Return a batch as the provider shows it; ``changes`` are members, those of ``metadata`` by its name."""
    metadata = {"state": state, "createTime": "2026-11-29T10:00:00.123456789Z", **changes.pop("metadata", {})}
    return {"name": "batches/b1", "metadata": metadata, **changes}


class Bench:
    """A scripted server and a backend that talks to it; waits are recorded, not waited."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.root = server.base_url.removesuffix("/v1")
        self.waits: list[float] = []

    def backend(self, **options: Any) -> GeminiBackend:
        """Return a backend; ``options`` are those of a connection."""
        chosen = BackendOptions(**options)
        client = client_for(self.root, {"x-goog-api-key": "key-1"}, chosen, self.waits)
        return GeminiBackend(client, chosen, limits=providers()[0].limits)

    def run(self, call: Callable[[GeminiBackend], Awaitable[T]], **options: Any) -> T:
        """Make one call with a fresh backend and close it."""

        return call_once(lambda: self.backend(**options), call)

    def plays(self, *script: Reply) -> None:
        """Have the server reply so, in this order."""
        self.server.script = list(script)

    def sent(self) -> list[tuple[str, str]]:
        """Return method and path (with its query) of each call."""
        return [(one.method, one.path) for one in self.server.received]

    @property
    def received(self) -> list[Received]:
        """The calls as they came in."""
        return self.server.received


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ScriptedServer() as server:
        yield Bench(server)
