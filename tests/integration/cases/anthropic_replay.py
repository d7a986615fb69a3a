"""Anthropic's Message Batches over real HTTP, as far as a recorded case needs them.

Ids that the service refuses are refused. The first batch ends with the case's result lines, byte for byte,
except that the case's ids are replaced by those that were really sent for those requests; every later one is
answered in full, in reverse.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback_server import LoopbackServer

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BATCHES = "/v1/messages/batches"


class Refusal(Exception):
    """The provider says no."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class ReplayAnthropic(LoopbackServer):
    """``/v1/messages/batches`` on loopback.

    :param results: lines of the first batch; None answers it in full, too.
    :param texts: the case's id -> text of the request's last message, which tells it among those sent.
    """

    api_key = "test-key"

    def __init__(self, results: bytes | None = None, texts: Mapping[str, str] | None = None) -> None:
        self.results, self.texts = results, dict(texts or {})
        #: The requests of each create call that was taken, in order.
        self.sent: list[list[dict[str, Any]]] = []
        #: (method, path, status) of every call, in order.
        self.calls: list[tuple[str, str, int]] = []
        self._lines: dict[str, bytes] = {}
        super().__init__(_handler(self))

    def url_of(self, protocol: str) -> str:
        """Return the base URL; this server speaks one protocol."""
        assert protocol == "anthropic"
        return self.url.removesuffix("/v1")

    def texts_sent(self) -> list[list[str]]:
        """Return what the requests of each batch say."""
        return [[text_of(request) for request in requests] for requests in self.sent]

    def summary(self) -> dict[str, int]:
        """Return how many requests were answered, and how many of them in more than one batch."""
        rows = [json.loads(line) for lines in self._lines.values() for line in lines.splitlines()]
        good = Counter(row["custom_id"] for row in rows if row["result"]["type"] == "succeeded")
        return {"answered": len(good), "answered_twice": sum(n > 1 for n in good.values())}

    def serve(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer one call and note it."""
        try:
            status, reply = 200, self._reply(method, path, body)
        except Refusal as refusal:
            error = {"type": refusal.kind, "message": str(refusal)}
            status, reply = refusal.status, _encode({"type": "error", "error": error, "request_id": "req_1"})
        self.calls.append((method, path, status))
        return status, reply

    def _reply(self, method: str, path: str, body: bytes) -> bytes:
        batch_id, _, part = path.removeprefix(_BATCHES).strip("/").partition("/")
        if method == "POST" and path == _BATCHES:
            return _encode(self._create(json.loads(body)["requests"]))
        if method == "GET" and path == _BATCHES:
            shown = [self._shown(one) for one in reversed(self._lines)]
            return _encode({"data": shown, "has_more": False, "first_id": None, "last_id": None})
        if method == "GET" and batch_id in self._lines:
            return self._lines[batch_id] if part == "results" else _encode(self._shown(batch_id))
        raise Refusal(404, "not_found_error", "no such batch")

    def _create(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for place, request in enumerate(requests):
            custom_id = request["custom_id"]
            if not _ID.fullmatch(custom_id) or custom_id in seen:
                raise Refusal(
                    400, "invalid_request_error", f"requests.{place}.custom_id: String should match"
                )
            seen.add(custom_id)
        self.sent.append(requests)
        batch_id = f"msgbatch_{len(self.sent)}"
        replayed = self.results is not None and len(self.sent) == 1
        self._lines[batch_id] = self._replayed(requests) if replayed else _answered(requests)
        return self._shown(batch_id)

    def _replayed(self, requests: list[dict[str, Any]]) -> bytes:
        data = self.results or b""
        wire_ids = {text_of(request): request["custom_id"] for request in requests}
        for case_id, text in self.texts.items():
            data = data.replace(_named(case_id), _named(wire_ids[text]))
        return data

    def _shown(self, batch_id: str) -> dict[str, Any]:
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        for line in self._lines[batch_id].splitlines():
            kind = json.loads(line)["result"]["type"]
            # The service counts five ways to end; a type that it does not name is among those that erred.
            counts[kind if kind in counts else "errored"] += 1
        return {
            "id": batch_id,
            "type": "message_batch",
            "processing_status": "ended",
            "request_counts": counts,
            "created_at": "2026-11-01T10:00:00Z",
            "expires_at": "2026-11-02T10:00:00Z",
        }


def text_of(request: Mapping[str, Any]) -> str:
    """Return the text of a request's last message."""
    text: str = request["params"]["messages"][-1]["content"]
    return text


def _named(custom_id: str) -> bytes:
    return b'"custom_id":' + _encode(custom_id)


def _answered(requests: list[dict[str, Any]]) -> bytes:
    return b"".join(_encode(_answer(request)) + b"\n" for request in reversed(requests))


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request["params"]["model"],
        "content": [{"type": "text", "text": f"answer to {text_of(request)}"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    return {"custom_id": request["custom_id"], "result": {"type": "succeeded", "message": message}}


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _handler(provider: ReplayAnthropic) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, reply = provider.serve(self.command, self.path.partition("?")[0], body)
            self.send_response(status)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
