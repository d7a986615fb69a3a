"""Many waits of one connection in one event loop, whose clock only moves when the poller sleeps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.triggers.waiting import WaitOrder, wait
from tests.loopback_server import LoopbackServer

START = 1_000_000.0


@dataclass
class Fault:
    """What a call gets in place of its reply; ``hang`` says nothing until the server is closed."""

    status: int = 503
    code: str = "fault"
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False


NO_KEY = Fault(401, "invalid_api_key")


@dataclass
class Call:
    """A call as it came in: its time by the crowd's clock, its path below ``/v1``, its key."""

    time: float
    path: str
    key: str

    @property
    def is_list(self) -> bool:
        return self.path.startswith("/batches?")


class Shelf(LoopbackServer):
    """A provider's batches, newest first, in pages of 100.

    :param statuses: batch id -> status; the first is the newest.
    """

    def __init__(self, statuses: dict[str, str]) -> None:
        self.statuses = statuses
        #: Not shown by the list.
        self.unlisted: set[str] = set()
        #: How many errors each batch names.
        self.errors = 0
        self.clock: Callable[[], float] = lambda: 0.0
        self.calls: list[Call] = []
        #: Asked at every call: the fault that it gets.
        self.fault: Callable[[Call], Fault | None] = lambda call: None
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        super().__init__(_handler(self))

    def __exit__(self, *error: Any) -> None:
        self._closing.set()
        super().__exit__(*error)

    @property
    def lists(self) -> list[Call]:
        return [call for call in self.calls if call.is_list]

    @property
    def singles(self) -> list[Call]:
        return [call for call in self.calls if not call.is_list]

    def serve(self, path: str, key: str) -> tuple[int, dict[str, str], Any]:
        """Answer a call and note it."""
        call = Call(self.clock(), path, key)
        with self._lock:
            self.calls.append(call)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            fault = self.fault(call)
            if fault is not None and fault.hang:
                self._closing.wait()
            if fault is not None:
                return fault.status, fault.headers, {"error": {"message": "no", "code": fault.code}}
            if call.is_list:
                return 200, {}, self._page(parse_qs(urlsplit(path).query))
            batch_id = path.rpartition("/")[2]
            if batch_id not in self.statuses:
                return 404, {}, {"error": {"message": "no such batch", "code": "not_found"}}
            return 200, {}, self._object(batch_id)
        finally:
            with self._lock:
                self._at_once -= 1

    def _page(self, query: dict[str, list[str]]) -> dict[str, Any]:
        ids, limit = [name for name in self.statuses if name not in self.unlisted], int(query["limit"][0])
        start = ids.index(query["after"][0]) + 1 if "after" in query else 0
        page = [self._object(batch_id) for batch_id in ids[start : start + limit]]
        return {"object": "list", "data": page, "has_more": start + limit < len(ids)}

    def _object(self, batch_id: str) -> dict[str, Any]:
        return {
            "id": batch_id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "status": self.statuses[batch_id],
            "errors": {
                "data": [{"code": "invalid", "line": n, "message": "x" * 300} for n in range(self.errors)]
            },
            "input_file_id": "file-in",
            "created_at": 1,
        }


def _handler(shelf: Shelf) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            key = self.headers.get("authorization", "").removeprefix("Bearer ")
            status, headers, value = shelf.serve(self.path.removeprefix("/v1"), key)
            body = json.dumps(value).encode()
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


@dataclass
class Crowd:
    """Waits that share a poller.

    :param agenda: (time, what is done then), in seconds since the start and in order.
    :param listless: the provider is known to have no list call.
    """

    shelf: Shelf
    now: float = START
    key: str = "k"
    agenda: list[tuple[float, Callable[[], Any]]] = field(default_factory=list)
    listless: bool = False
    opened: int = 0
    closed: int = 0

    def __post_init__(self) -> None:
        self.shelf.clock = lambda: self.now - START

    @property
    def time(self) -> float:
        """Seconds since the start."""
        return self.now - START

    def run(self, *orders: WaitOrder) -> list[dict[str, Any]]:
        """Wait for all of them at once and return the events, in order. Nothing may be left behind."""

        async def main() -> list[dict[str, Any]]:
            events = await asyncio.gather(*map(self.wait, orders))
            assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"
            assert self.opened == self.closed, "a client was left open"
            return events

        return asyncio.run(main())

    async def wait(self, order: WaitOrder) -> dict[str, Any]:
        return await wait(order, "llm_batch", self._open, sleep=self._sleep, clock=lambda: self.now)

    async def _open(self) -> Backend:
        self.opened += 1
        options = {"max_retries": 0, "timeout_seconds": 30.0}
        backend = make_backend("generic", base_url=self.shelf.url, api_key=self.key, options=options)
        close = backend.aclose

        async def aclose() -> None:
            self.closed += 1
            await close()

        backend.aclose = aclose  # type: ignore[method-assign]
        if self.listless:
            backend.lists_batches = False
        return backend

    async def _sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.agenda and self.agenda[0][0] + START <= until:
            at, do = self.agenda.pop(0)
            self.now = max(self.now, at + START)
            do()
            for _ in range(5):  # whoever came to wait wakes the poller, which stops this sleep
                await asyncio.sleep(0)
        self.now = max(self.now, until)
