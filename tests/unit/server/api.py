"""A bare client of the local server for its own tests: plain HTTP, no SDK, nothing retried."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from tests.local_server import LocalServer

ENDPOINT = "/v1/chat/completions"
_ENDED = ("completed", "failed", "expired", "cancelled")
_LOOKS = 20_000


def line(custom_id: str, text: str = "hello", **body: Any) -> bytes:
    """Return one valid input line with its 0x0A."""
    message = {"role": "user", "content": text}
    request = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT}
    return json.dumps({**request, "body": {"model": "m-1", "messages": [message], **body}}).encode() + b"\n"


def lines(count: int, **body: Any) -> bytes:
    """Return lines ``r-1`` to ``r-<count>``."""
    return b"".join(line(f"r-{i}", f"say {i}", **body) for i in range(1, count + 1))


class Api:
    """Calls of one server."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.http = httpx.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {server.api_key}"}, timeout=60
        )

    def upload(self, data: bytes, name: str = "in.jsonl", **fields: str) -> httpx.Response:
        return self.http.post(
            "/files", data={"purpose": "batch", **fields}, files={"file": (name, data, "application/jsonl")}
        )

    def file(self, data: bytes) -> str:
        found: str = self.upload(data).raise_for_status().json()["id"]
        return found

    def create(self, file_id: str, **extra: Any) -> httpx.Response:
        order = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        return self.http.post("/batches", json={**order, **extra})

    def start(self, data: bytes, **extra: Any) -> dict[str, Any]:
        """Upload and create."""
        found: dict[str, Any] = self.create(self.file(data), **extra).raise_for_status().json()
        return found

    def get(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/batches/{batch_id}").raise_for_status().json()
        return found

    def until(self, batch_id: str, statuses: Sequence[str] = _ENDED, rows: int = 0) -> dict[str, Any]:
        """Look until the batch has one of the statuses and so many rows are dealt with."""
        for _ in range(_LOOKS):
            batch = self.get(batch_id)
            counts = batch["request_counts"]
            if batch["status"] in statuses and counts["completed"] + counts["failed"] >= rows:
                return batch
        raise AssertionError(f"{batch_id} is still {batch['status']}")

    def run(self, data: bytes, **extra: Any) -> dict[str, Any]:
        """Upload, create, and look until it has ended."""
        return self.until(self.start(data, **extra)["id"])

    def content(self, file_id: str) -> bytes:
        return self.http.get(f"/files/{file_id}/content").raise_for_status().content

    def rows(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the rows of a file; none for a file that is not there."""
        if not file_id:
            return []
        return [json.loads(row) for row in self.content(file_id).split(b"\n") if row]

    def output(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        return self.rows(batch.get("output_file_id"))

    def errors(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        return self.rows(batch.get("error_file_id"))


def ids(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the custom ids in order."""
    return [row["custom_id"] for row in rows]


def answer(row: dict[str, Any]) -> Any:
    """Return the text of an output row."""
    return row["response"]["body"]["choices"][0]["message"]["content"]
