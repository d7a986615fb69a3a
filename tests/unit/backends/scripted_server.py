"""A real HTTP server on loopback that plays fixed replies, one a request, and keeps what it was sent."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass
class Reply:
    """One reply. ``body`` is sent as JSON unless it is bytes.

    :param promised: value of Content-Length where it is not the body's true size.
    :param drop: close the connection without a word, once the request was read.
    :param hang: say nothing until the server is closed.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    promised: int | None = None
    drop: bool = False
    hang: bool = False

    @property
    def payload(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()


@dataclass
class Received:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedServer:
    """Plays ``script`` in order; a request beyond its end gets 599, so that the test sees it.

    Replies put under ``routes["GET /path"]`` are played first, always the same one.
    """

    def __init__(self, *script: Reply) -> None:
        self.script = list(script)
        self.routes: dict[str, Reply] = {}
        self.received: list[Received] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def seen(self, method: str, path: str) -> list[Received]:
        """Return the requests for a path below the base URL, without regard to the query."""
        return [r for r in self.received if r.method == method and r.path.split("?")[0] == f"/v1{path}"]

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _next(self, request: Received) -> Reply:
        with self._lock:
            self.received.append(request)
            route = self.routes.get(f"{request.method} {request.path.split('?')[0]}")
            if route is not None:
                return route
            return self.script.pop(0) if self.script else Reply(599, b"beyond the script")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = server._next(Received(self.command, self.path, headers, body))
                if reply.hang:
                    server._closing.wait()
                if reply.hang or reply.drop:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                payload = reply.payload
                self.send_header(
                    "content-length", str(len(payload) if reply.promised is None else reply.promised)
                )
                self.end_headers()
                self.wfile.write(payload)
                if reply.promised is not None:
                    self.close_connection = True

            do_GET = do_POST = do_DELETE = _serve

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler
