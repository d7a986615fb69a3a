"""Others who use the same key at a provider without marks: their batches look like ours and are let be."""

from __future__ import annotations

from typing import Any

import httpx

from airflow_batch_llm.storage.ledger import SqlLedger
from tests.local_server import LocalServer

#: What the ids of their requests begin with.
_PREFIX = "stranger-"
_PATH = "/v1/messages/batches"
_VERSION = "2023-06-01"
_SECONDS = 60.0


class Strangers:
    """Others with batches at the server.

    :param server: the local server.
    """

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self.batches: list[str] = []

    def send(self, sizes: range) -> None:
        """Create a batch of each size."""
        headers = {"x-api-key": self._server.api_key, "anthropic-version": _VERSION}
        with httpx.Client(headers=headers, timeout=_SECONDS) as client:
            for size in sizes:
                requests = [_request(size, row) for row in range(size)]
                reply = client.post(
                    f"{self._server.url_of('anthropic')}{_PATH}", json={"requests": requests}
                ).raise_for_status()
                self.batches.append(reply.json()["id"])

    def harmed(self, ledger: SqlLedger) -> list[str]:
        """Return the calls that changed, or would have changed, one of their batches, and those of them that
        the ledger holds for ours in the end."""
        calls = [
            f"{call['method']} {call['path']}"
            for call in self._server.requests()
            if any(batch in call["path"] for batch in self.batches)
            and (call["method"] == "DELETE" or call["path"].endswith("/cancel"))
        ]
        return calls + [batch for batch in self.batches if ledger.batches_at_provider(batch)]


def _request(size: int, row: int) -> dict[str, Any]:
    params = {
        "model": "m-1",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": f"A stranger's row {row} of {size}."}],
    }
    return {"custom_id": f"{_PREFIX}{size}-{row}", "params": params}
