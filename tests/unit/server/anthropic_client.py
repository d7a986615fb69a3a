"""A bare client of the local server's Anthropic face: plain HTTP, no SDK, nothing retried."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.local_server import LocalServer

NEWER, OLDER = "2026-10-21", "2023-06-01"
_LOOKS = 20_000


def params(text: str = "hello", **changed: Any) -> dict[str, Any]:
    """Return a valid request; a change to None leaves the member out."""
    made = {"model": "m-1", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **changed}
    return {name: value for name, value in made.items() if value is not None}


def item(custom_id: str, text: str = "hello", **changed: Any) -> dict[str, Any]:
    """Return one request of a batch."""
    return {"custom_id": custom_id, "params": params(text, **changed)}


def items(count: int) -> list[dict[str, Any]]:
    """Return requests ``r-1`` to ``r-<count>``."""
    return [item(f"r-{i}", f"say {i}") for i in range(1, count + 1)]


class Anthropic:
    """Calls of one server."""

    def __init__(self, server: LocalServer, version: str | None = NEWER) -> None:
        self.server = server
        headers = {"x-api-key": server.api_key}
        if version is not None:
            headers["anthropic-version"] = version
        self.http = httpx.Client(
            base_url=f"{server.url_of('anthropic')}/v1/messages", headers=headers, timeout=60
        )

    def create(self, requests: Any) -> httpx.Response:
        return self.http.post("/batches", json={"requests": requests})

    def start(self, requests: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.create(requests).raise_for_status().json()
        return found

    def get(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/batches/{batch_id}").raise_for_status().json()
        return found

    def until(self, batch_id: str, status: str = "ended") -> dict[str, Any]:
        """Look until the batch has the status."""
        for _ in range(_LOOKS):
            batch = self.get(batch_id)
            if batch["processing_status"] == status:
                return batch
        raise AssertionError(f"{batch_id} is still {batch['processing_status']}")

    def until_held(self, batch_id: str, rows: int) -> None:
        """Look until so many rows of the batch are dealt with."""
        for _ in range(_LOOKS):
            if any(b["id"] == batch_id and b["rows_done"] == rows for b in self.server.batches()):
                return
        raise AssertionError(f"{batch_id} has not dealt with {rows} rows")

    def run(self, requests: Any) -> dict[str, Any]:
        """Create, and look until it has ended."""
        return self.until(self.start(requests)["id"])

    def results(self, batch_id: str) -> list[dict[str, Any]]:
        content = self.http.get(f"/batches/{batch_id}/results").raise_for_status().content
        return [json.loads(row) for row in content.split(b"\n") if row]

    def answers(self, requests: Any) -> list[dict[str, Any]]:
        """Run a batch and return the results in the order of the file."""
        return [row["result"] for row in self.results(self.run(requests)["id"])]


def counts(**some: int) -> dict[str, int]:
    """Return request counts, 0 for what is not named."""
    return dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0) | some


def error_of(reply: httpx.Response) -> tuple[int, str, str]:
    """Return status, type and message of an error."""
    body = reply.json()
    assert body["type"] == "error"
    return reply.status_code, body["error"]["type"], body["error"]["message"]
