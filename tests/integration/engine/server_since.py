"""A running server as one test sees it: only what happened since the test began."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import httpx

from tests.local_server import LocalServer


class ServerSince:
    """The part of :class:`LocalServer` that tests of the engine use.

    :param server: a running server that other tests have used before.
    """

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._calls_before = len(server.requests())
        self._batches_before = {batch["id"] for batch in server.batches()}
        # A batch that was deleted is listed no more; its charges stay.
        self._batches_before |= {charge["batch_id"] for charge in server.charges()}

    @property
    def url(self) -> str:
        return self._server.url

    def url_of(self, protocol: str) -> str:
        """Return the base URL of a protocol."""
        return self._server.url_of(protocol)

    @property
    def api_key(self) -> str:
        return self._server.api_key

    def set_scenario(self, scenario: dict[str, Any]) -> None:
        """Put a scenario in force; its counters start at nothing."""
        self._server.set_scenario(scenario)

    def release(self, batch_id: str | None = None) -> int:
        """End the waits of unfinished batches."""
        return self._server.release(batch_id)

    def requests(self, method: str | None = None, path: str | None = None) -> list[dict[str, Any]]:
        """Return the calls made to the APIs, in order."""
        return [
            call
            for call in self._server.requests()[self._calls_before :]
            if method in (None, call["method"]) and path in (None, call["path"])
        ]

    def batches(self) -> list[dict[str, Any]]:
        """Return the batches, newest first."""
        return [batch for batch in self._server.batches() if batch["id"] not in self._batches_before]

    def statuses(self) -> list[str]:
        """Return the batches' states, oldest first."""
        return [batch["status"] for batch in reversed(self.batches())]

    def wait_for(self, *statuses: str, in_order: bool = True) -> None:
        """Look until the batches, oldest first, are in these states."""
        shown: list[str] = []
        for _ in range(2000):
            shown = self.statuses()
            if (shown if in_order else sorted(shown)) == (list(statuses) if in_order else sorted(statuses)):
                return
        raise AssertionError(f"the batches are {shown}, not {list(statuses)}")

    def wait_until_held(self) -> None:
        """Look until every batch has run as far as its pace says and waits there."""
        for _ in range(2000):
            if all(batch["status"] == "in_progress" and batch["held"] for batch in self.batches()):
                return
        raise AssertionError(f"the batches are {self.statuses()}, and not all of them are held")

    def charges(self) -> list[dict[str, Any]]:
        """Return every executed request."""
        return [charge for charge in self._server.charges() if charge["batch_id"] not in self._batches_before]

    def summary(self) -> dict[str, int]:
        """Sum the charges up, as the server's own summary does."""
        charges = self.charges()
        answers: dict[tuple[str, str], int] = defaultdict(int)
        after = 0
        for charge in charges:
            row = (charge["custom_id"], charge["body_sha256"])
            after += bool(answers[row])
            answers[row] += charge["charged"] and charge["fault"] is None
        return {
            "executed": len(charges),
            "charged": sum(charge["charged"] for charge in charges),
            "answered": sum(answers.values()),
            "answered_twice": sum(number > 1 for number in answers.values()),
            "sent_after_answer": after,
        }

    def cancel_by_hand(self, batch_id: str) -> None:
        """Cancel a batch as somebody else would, in the provider's own console."""
        reply = httpx.post(
            f"{self.url}/batches/{batch_id}/cancel", headers={"Authorization": f"Bearer {self.api_key}"}
        )
        reply.raise_for_status()

    def make_batch(self, custom_ids: list[str], metadata: dict[str, str]) -> str:
        """Create a batch as somebody else would, with a client of their own; returns its id."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        body = {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}
        line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        lines = "".join(json.dumps({"custom_id": custom_id, **line}) + "\n" for custom_id in custom_ids)
        with httpx.Client(base_url=self.url, headers=headers) as client:
            files = {"file": ("in.jsonl", lines.encode()), "purpose": (None, "batch")}
            uploaded = client.post("/files", files=files).raise_for_status().json()
            order = {
                "input_file_id": uploaded["id"],
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
                "metadata": metadata,
            }
            made: str = client.post("/batches", json=order).raise_for_status().json()["id"]
            return made
