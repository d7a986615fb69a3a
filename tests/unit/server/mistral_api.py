"""A bare client of the local server's Mistral paths: plain HTTP, no SDK, nothing retried."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.local_server import LocalServer

ENDPOINT = "/v1/chat/completions"
ENDED = ("SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED")
_LOOKS = 20_000


def request(custom_id: str | None, text: str = "hello", **body: Any) -> dict[str, Any]:
    """Return one request; without an id where it is None."""
    named = {} if custom_id is None else {"custom_id": custom_id}
    return {**named, "body": {"messages": [{"role": "user", "content": text}], **body}}


def requests(count: int, **body: Any) -> list[dict[str, Any]]:
    """Return requests ``r-1`` to ``r-<count>``."""
    return [request(f"r-{i}", f"say {i}", **body) for i in range(1, count + 1)]


def lines(*given: dict[str, Any] | bytes) -> bytes:
    """Return a file of requests, or of lines as they are."""
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in given)


class MistralApi:
    """Calls of one server."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.http = httpx.Client(
            base_url=server.url_of("mistral"),
            headers={"Authorization": f"Bearer {server.api_key}"},
            timeout=60,
        )

    def upload(self, data: bytes, name: str = "in.jsonl", **fields: str) -> httpx.Response:
        files = {"file": (name, data, "application/jsonl")}
        return self.http.post("/v1/files", data={"purpose": "batch", **fields}, files=files)

    def file(self, *given: dict[str, Any] | bytes) -> str:
        found: str = self.upload(lines(*given)).raise_for_status().json()["id"]
        return found

    def create(self, **order: Any) -> httpx.Response:
        return self.http.post("/v1/batch/jobs", json={"endpoint": ENDPOINT, "model": "m-1", **order})

    def start(self, *given: dict[str, Any] | bytes, **order: Any) -> dict[str, Any]:
        """Upload and create."""
        found: dict[str, Any] = (
            self.create(input_files=[self.file(*given)], **order).raise_for_status().json()
        )
        return found

    def get(self, job_id: str, **query: Any) -> dict[str, Any]:
        found: dict[str, Any] = (
            self.http.get(f"/v1/batch/jobs/{job_id}", params=query).raise_for_status().json()
        )
        return found

    def until(self, job_id: str, statuses: tuple[str, ...] = ENDED, done: int = 0) -> dict[str, Any]:
        """Look until the job has one of the statuses and so many requests are processed."""
        for _ in range(_LOOKS):
            job = self.get(job_id)
            if job["status"] in statuses and job["completed_requests"] >= done:
                return job
        raise AssertionError(f"{job_id} is still {job['status']}")

    def run(self, *given: dict[str, Any] | bytes, **order: Any) -> dict[str, Any]:
        """Upload, create, and look until it has ended."""
        return self.until(self.start(*given, **order)["id"])

    def rows(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the rows of a file; none for a file that is not there."""
        if not file_id:
            return []
        content = self.http.get(f"/v1/files/{file_id}/content").raise_for_status().content
        return [json.loads(row) for row in content.split(b"\n") if row]

    def output(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        return self.rows(job["output_file"])

    def errors(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        return self.rows(job["error_file"])

    def list(self, **query: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/v1/batch/jobs", params=query).raise_for_status().json()
        return found
