"""A bare client of the local server's Gemini face: plain HTTP, no SDK, nothing retried."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from tests.local_server import LocalServer

MODEL = "m-1"
START = {"X-Goog-Upload-Protocol": "resumable", "X-Goog-Upload-Command": "start"}
_LOOKS = 20_000


def request(text: str = "hello", **changed: Any) -> dict[str, Any]:
    """Return a valid GenerateContentRequest."""
    return {"contents": [{"role": "user", "parts": [{"text": text}]}], **changed}


def line(key: str | None, text: str = "hello", **changed: Any) -> bytes:
    """Return one input line with its 0x0A."""
    named = {} if key is None else {"key": key}
    return json.dumps({**named, "request": request(text, **changed)}).encode() + b"\n"


def lines(count: int) -> bytes:
    """Return lines ``r-1`` to ``r-<count>``."""
    return b"".join(line(f"r-{i}", f"say {i}") for i in range(1, count + 1))


def inlined(*requests: dict[str, Any]) -> dict[str, Any]:
    """Return the input of a batch whose requests go along, with the keys ``r-1``, ``r-2``, …"""
    items = [
        {"request": one, "metadata": {"key": f"r-{number}"}} for number, one in enumerate(requests, start=1)
    ]
    return {"requests": {"requests": items}}


class Gemini:
    """Calls of one server."""

    def __init__(self, server: LocalServer, version: str = "v1beta", **headers: str) -> None:
        self.server = server
        self.version = version
        self.http = httpx.Client(
            base_url=server.url_of("gemini"),
            headers=headers or {"x-goog-api-key": server.api_key},
            timeout=60,
        )

    # -- files ---------------------------------------------------------------------------------------
    def begin(self, **headers: str) -> httpx.Response:
        return self.http.post(
            f"/upload/{self.version}/files",
            headers={**START, **{name.replace("_", "-"): value for name, value in headers.items()}},
            json={"file": {"display_name": "in", "mime_type": "application/jsonl"}},
        )

    def begun(self) -> str:
        """Return the address that an upload is sent to."""
        return self.begin().raise_for_status().headers["x-goog-upload-url"]

    def chunk(
        self, url: str, data: bytes, offset: int = 0, command: str = "upload, finalize"
    ) -> httpx.Response:
        headers = {"X-Goog-Upload-Command": command, "X-Goog-Upload-Offset": str(offset)}
        return self.http.post(url, content=data, headers=headers)

    def file(self, data: bytes) -> str:
        """Upload and return the name, ``files/…``."""
        found: str = self.chunk(self.begun(), data).raise_for_status().json()["file"]["name"]
        return found

    def content(self, name: str) -> bytes:
        path = f"/download/{self.version}/{name}:download"
        return self.http.get(path, params={"alt": "media"}).raise_for_status().content

    # -- batches -------------------------------------------------------------------------------------
    def create(
        self, source: Any, *, call: str = "batchGenerateContent", model: str = MODEL, **extra: Any
    ) -> httpx.Response:
        """Create a batch. :param source: the ``input_config``."""
        batch = {"display_name": "nightly", "input_config": source, **extra}
        return self.http.post(f"/{self.version}/models/{model}:{call}", json={"batch": batch})

    def start(self, data: bytes) -> str:
        """Upload, create, and return the batch's name, ``batches/…``."""
        found: str = self.create({"file_name": self.file(data)}).raise_for_status().json()["name"]
        return found

    def start_inline(self, *requests: dict[str, Any], **how: Any) -> str:
        found: str = self.create(inlined(*requests), **how).raise_for_status().json()["name"]
        return found

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/{self.version}/{name}").raise_for_status().json()
        return found

    def until_done(self, name: str) -> dict[str, Any]:
        for _ in range(_LOOKS):
            batch = self.get(name)
            if batch.get("done"):
                return batch
        raise AssertionError(f"{name} is still {batch['metadata']['state']}")

    def until_held(self, name: str, rows: int) -> None:
        """Look until so many rows of the batch are dealt with."""
        batch_id = name.removeprefix("batches/")
        for _ in range(_LOOKS):
            if any(b["id"] == batch_id and b["rows_done"] == rows for b in self.server.batches()):
                return
        raise AssertionError(f"{name} has not dealt with {rows} rows")

    def run(self, data: bytes) -> list[dict[str, Any]]:
        """Run a batch of a file and return the rows of its results."""
        return self.rows(self.until_done(self.start(data)))

    def run_inline(self, *requests: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
        """Run a batch of inline requests and return its results."""
        batch = self.until_done(self.start_inline(*requests, **how))
        found: list[dict[str, Any]] = batch["response"]["inlinedResponses"]["inlinedResponses"]
        return found

    def rows(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        content = self.content(batch["response"]["responsesFile"])
        return [json.loads(row) for row in content.split(b"\n") if row]

    def list(self, what: str = "batches", **query: str) -> dict[str, Any]:
        found: dict[str, Any] = (
            self.http.get(f"/{self.version}/{what}", params=query).raise_for_status().json()
        )
        return found


def text_of(row: dict[str, Any]) -> str:
    """Return the text of a result."""
    found: str = row["response"]["candidates"][0]["content"]["parts"][0]["text"]
    return found


def keys(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the keys in order, None for a row without one."""
    return [row.get("key") for row in rows]


def error_of(reply: httpx.Response) -> tuple[int, str]:
    """Return HTTP status and google.rpc's word of an error."""
    error = reply.json()["error"]
    assert error["code"] == reply.status_code and error["message"]
    return reply.status_code, error["status"]


def places(reply: httpx.Response) -> list[str]:
    """Return the members that an error names."""
    return [
        violation["field"]
        for detail in reply.json()["error"].get("details", ())
        for violation in detail.get("fieldViolations", ())
    ]
