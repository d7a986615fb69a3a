"""Backends of the tests: real HTTP, waits recorded instead of waited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from airflow_batch_llm.backends.dialects import DIALECTS, Dialect
from airflow_batch_llm.backends.openai import OpenAIBackend
from airflow_batch_llm.backends.options import BackendOptions
from tests.unit.backends.calls import call_once, client_for
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
        client = client_for(self.server.base_url, {"Authorization": "Bearer key-1"}, chosen, self.waits)
        return OpenAIBackend(DIALECTS[row] if isinstance(row, str) else row, client, chosen)

    def run(
        self, call: Callable[[OpenAIBackend], Awaitable[T]], row: Dialect | str = "openai", **options: Any
    ) -> T:
        """Make one call with a fresh backend and close it."""

        return call_once(lambda: self.backend(row, **options), call)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def bench(server: ScriptedServer) -> Bench:
    return Bench(server)
