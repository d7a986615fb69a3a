"""A wait whose clock only moves when it sleeps, over real HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.triggers.waiting import WaitOrder, wait
from tests.unit.backends.scripted_server import Reply, ScriptedServer

START = 1_000_000.0


def batch(status: str, batch_id: str = "b1", **fields: Any) -> dict[str, Any]:
    """Return a batch object as the provider shows it."""
    return {
        "id": batch_id,
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "status": status,
        "input_file_id": "file-in",
        "created_at": int(time.time()),
        **fields,
    }


def shown(status: str, batch_id: str = "b1") -> Reply:
    """Return the reply to a look at one batch."""
    return Reply(body=batch(status, batch_id))


def page(**statuses: str) -> Reply:
    """Return the reply to a list call: batch id -> status, newest first."""
    data = [batch(status, batch_id) for batch_id, status in statuses.items()]
    return Reply(body={"object": "list", "data": data, "has_more": False})


@dataclass
class Waiting:
    """One call of :func:`wait` against the server.

    :param looks: the clock at each request that the server got, in seconds since the start.
    :param pauses: every sleep, in seconds.
    :param opened: how often the connection was read.
    """

    server: ScriptedServer
    retries: int = 0
    now: float = START
    pauses: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    opened: int = 0

    def run(self, *batches: str, **order: Any) -> dict[str, Any]:
        """Wait and return the event. Times in the order are absolute."""
        return asyncio.run(self._run(WaitOrder(batches=batches, **order)))

    async def _run(self, order: WaitOrder) -> dict[str, Any]:
        event = await wait(order, "llm_batch", self._open, sleep=self._sleep, clock=lambda: self.now)
        self._note_looks()
        return event

    async def _open(self) -> Backend:
        self.opened += 1
        return make_backend(
            "generic",
            base_url=self.server.base_url,
            api_key="k",
            options={"max_retries": self.retries, "timeout_seconds": 0.5},
        )

    async def _sleep(self, seconds: float) -> None:
        self._note_looks()
        self.pauses.append(seconds)
        self.now += seconds

    def _note_looks(self) -> None:
        self.looks += [self.now - START] * (len(self.server.received) - len(self.looks))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def waiting(server: ScriptedServer) -> Waiting:
    return Waiting(server)
