"""The chat server behind OGX: answers every prompt, fails where told, holds its answers back where told."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback_server import LoopbackServer

#: What a prompt holds that is answered only when the gate is open.
SLOW = "slowly"


class ChatServer:
    """One model on loopback. A test says beforehand how often, and with what, a prompt fails."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self._faults: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._gate = threading.Event()
        self._gate.set()
        self._server = LoopbackServer(_handler_of(self))

    @property
    def root(self) -> str:
        """The address without ``/v1``."""
        return self._server.url.removesuffix("/v1")

    def __enter__(self) -> ChatServer:
        self._server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._gate.set()
        self._server.__exit__(*error)

    def fail(self, prompt: str, *faults: tuple[int, dict[str, Any]]) -> None:
        """Let the next calls for a prompt fail: (HTTP status, error object) for each."""
        with self._lock:
            self._faults[prompt] = list(faults)

    def hold(self) -> None:
        """Answer prompts that hold :data:`SLOW` no more."""
        self._gate.clear()

    def release(self) -> None:
        """Answer everything again."""
        self._gate.set()

    def wait_until_asked(self, prompts: Sequence[str]) -> None:
        """Look until each of the prompts has been asked for."""
        for _ in range(6000):
            if all(self.asked[prompt] for prompt in prompts):
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"never asked for: {[p for p in prompts if not self.asked[p]]}")

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body for a request."""
        prompt = body["messages"][-1]["content"]
        with self._lock:
            self.asked[prompt] += 1
            faults = self._faults.get(prompt)
            if faults:
                status, error = faults.pop(0)
                return status, {"error": error}
        if SLOW in prompt:
            self._gate.wait(120)
        with self._lock:
            self.answered[prompt] += 1
        message = {"role": "assistant", "content": f"heard {prompt}"}
        return 200, {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        }


def _handler_of(server: ChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            model = {"id": "m-1", "object": "model", "created": 0, "owned_by": "peer"}
            self._send(200, {"object": "list", "data": [model]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(*server.reply(body))

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                # The OpenAI client inside OGX would try again by itself, and hide the fault.
                self.send_header("x-should-retry", "false")
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # whoever asked has been killed

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler
