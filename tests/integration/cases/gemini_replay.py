"""The Gemini API over real HTTP, whose first batch ends with the rows of a recorded case.

The case's keys are replaced by those that were really sent for its requests. Later batches are answered in
full.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback_server import LoopbackServer

_PIECES = "/pieces/"


class GeminiReplay(LoopbackServer):
    """``/upload``, ``/v1beta`` and ``/download`` on loopback.

    :param rows: result lines of the first batch, with the case's keys; all are answered where None.
    :param texts: the case's key -> text of its request.
    """

    api_key = "test-key"

    def __init__(self, rows: bytes | None, texts: Mapping[str, str]) -> None:
        self._rows, self._texts = rows, texts
        self.uploads: list[bytes] = []
        self._batches: dict[str, dict[str, Any]] = {}
        self._results: dict[str, bytes] = {}
        self._lock = threading.Lock()
        super().__init__(_handler(self))

    def url_of(self, protocol: str) -> str:
        """Return the base URL. It speaks one protocol only."""
        return self.url.removesuffix("/v1")

    def sent(self) -> list[list[str]]:
        """Return the texts of each batch's requests, in order."""
        return [list(_asked(data)) for data in self.uploads]

    def summary(self) -> dict[str, int]:
        """Return how many requests were answered, and how many of them in more than one batch."""
        good = Counter(
            row["key"]
            for data in self._results.values()
            for row in map(json.loads, data.splitlines())
            if "candidates" in row.get("response", {})
        )
        return {"answered": len(good), "answered_twice": sum(count > 1 for count in good.values())}

    # -- what is served ------------------------------------------------------------------------------
    def serve(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[bytes, dict[str, str]]:
        """Answer one call. :raises LookupError: there is no such thing."""
        with self._lock:
            if (method, path) == ("POST", "/upload/v1beta/files"):
                return b"{}", {"X-Goog-Upload-URL": f"{self.url_of('gemini')}{_PIECES}{len(self.uploads)}"}
            if path.startswith(_PIECES):
                return _encode({"file": self._stored(body, headers)}), {"X-Goog-Upload-Status": "final"}
            if method == "POST" and path.endswith(":batchGenerateContent"):
                return _encode(self._create(json.loads(body)["batch"])), {}
            if (method, path) == ("GET", "/v1beta/batches"):
                return _encode({"operations": list(self._batches.values())[::-1]}), {}
            kind, _, name = path.removeprefix("/download").removeprefix("/v1beta/").partition("/")
            if path.startswith("/download/"):
                return self._results[name.removesuffix(":download")], {}
            if method == "GET" and kind == "batches":
                return _encode(self._batches[f"batches/{name}"]), {}
            if kind == "files":
                return _encode({"name": f"files/{name}", "state": "ACTIVE"}), {}
            raise LookupError(path)

    def _stored(self, data: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        assert headers["x-goog-upload-command"] == "upload, finalize"
        self.uploads.append(data)
        return {"name": f"files/in-{len(self.uploads)}", "sizeBytes": str(len(data)), "state": "ACTIVE"}

    def _create(self, order: Mapping[str, Any]) -> dict[str, Any]:
        data = self.uploads[int(order["inputConfig"]["fileName"].rpartition("-")[2]) - 1]
        number = len(self._batches) + 1
        asked = _asked(data)
        rows = b"".join(_answer(key) for key in asked.values())
        if number == 1 and self._rows is not None:
            rows = self._rows
            for key, text in self._texts.items():
                rows = rows.replace(f'"key":"{key}"'.encode(), f'"key":"{asked[text]}"'.encode())
        self._results[f"batch-{number}"] = rows
        stats = {"requestCount": str(len(asked)), "successfulRequestCount": str(len(asked))}
        metadata = {
            "displayName": order["displayName"],
            "state": "JOB_STATE_SUCCEEDED",
            "createTime": f"2026-01-01T00:00:{number:02}Z",
            "batchStats": stats,
        }
        name, handle = f"batches/{number}", {"responsesFile": f"files/batch-{number}"}
        self._batches[name] = {"name": name, "metadata": metadata, "done": True, "response": handle}
        return self._batches[name]


def _asked(data: bytes) -> dict[str, str]:
    """Return the text of each request of an upload, and its key."""
    lines = map(json.loads, data.splitlines())
    return {line["request"]["contents"][0]["parts"][0]["text"]: line["key"] for line in lines}


def _answer(key: str) -> bytes:
    content = {"role": "model", "parts": [{"text": "answered"}]}
    return (
        _encode({"key": key, "response": {"candidates": [{"content": content, "finishReason": "STOP"}]}})
        + b"\n"
    )


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _handler(provider: GeminiReplay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = 200
            try:
                reply, extra = provider.serve(self.command, self.path.partition("?")[0], headers, body)
            except LookupError:
                status, reply, extra = 404, _encode({"error": {"code": 404, "status": "NOT_FOUND"}}), {}
            self.send_response(status)
            for name, value in ({"content-type": "application/json"} | extra).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
