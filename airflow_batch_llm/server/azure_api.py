"""Azure OpenAI's files and batches: ``/azure/openai/v1/…``, and ``/azure/openai/…?api-version=…`` as before.

What is not here is as with OpenAI. Nothing expires a batch but a scenario.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from airflow_batch_llm.server.azure_lines import ENDPOINTS, AzureDialect
from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.call_faults import Handler
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.looks import Look
from airflow_batch_llm.server.openai_api import OpenAIApi
from airflow_batch_llm.server.openai_objects import (
    RESULTS,
    TIMES,
    BadCall,
    CreateBatch,
    batch_object,
    check_life,
    file_object,
    parse_create,
    parse_life,
)
from airflow_batch_llm.server.scenario import Scenario

#: Seconds that a file can be kept: 14 to 30 days.
LIFE = (1_209_600, 2_592_000)


class AzureApi(OpenAIApi):
    """The handlers of ``/azure``."""

    dialect = AzureDialect.name
    default_life = None

    def routes(self) -> list[Route]:
        return [
            *self.routes_below("/azure/openai/v1"),
            *self.routes_below("/azure/openai", _with_version),
        ]

    def life_of(self, fields: dict[str, str]) -> int | None:
        """Read the expiry in either form: ``expires_after.seconds`` or ``expires_after[seconds]``."""
        dotted = {
            f"expires_after[{name}]": fields[f"expires_after.{name}"]
            for name in ("anchor", "seconds")
            if f"expires_after.{name}" in fields
        }
        return parse_life({**fields, **dotted}, self.default_life, LIFE)

    def new_file_id(self) -> str:
        return f"file-{uuid.uuid4().hex}"

    def show_file(self, stored: StoredFile, *, look: bool) -> dict[str, Any]:
        ready = stored.purpose != "batch" or self._services.scenarios.is_ready(stored.id, look=look)
        return file_object(stored, status="processed" if ready else "pending")

    def order_of(self, body: bytes) -> CreateBatch:
        order = parse_create(body, ENDPOINTS)
        if order.output_expires_after is not None:
            check_life(order.output_expires_after.seconds, LIFE, "output_expires_after.seconds")
        return order

    def check_input(self, stored: StoredFile | None) -> None:
        """A file that is too long is found by the batch's validation; one that is not ready is told here."""
        if stored is not None and not self._services.scenarios.is_ready(stored.id, look=False):
            raise BadCall(
                "The input file is not processed yet.", code="invalid_request", param="input_file_id"
            )

    def new_batch(self, order: CreateBatch) -> dict[str, Any]:
        return {
            "endpoint": ENDPOINTS[order.endpoint],
            "batch_id": f"batch_{uuid.uuid4()}",
            "extra": {"endpoint": order.endpoint, "error_file": True},
        }

    def show_batch(self, batch: StoredBatch, scenario: Scenario, look: Look) -> dict[str, Any]:
        shown = batch_object(batch, scenario, look) | {"endpoint": batch.kept["endpoint"]}
        return _drifted(shown) if scenario.type_drift else shown


def _with_version(handler: Handler) -> Handler:
    """Return a handler of a path that is there only with an ``api-version``."""

    async def handle(request: HttpRequest) -> Response:
        if not request.query_params.get("api-version"):
            async for _ in request.stream():  # a client that is still sending would not read the reply
                pass
            raise BadCall("Resource not found", status=404)
        return await handler(request)

    return handle


def _drifted(shown: dict[str, Any]) -> dict[str, Any]:
    """Return a batch in the types of Azure's older samples."""
    if shown["status"] == "failed":
        shown |= {"completed_at": shown["failed_at"], "failed_at": None}
    times = {name: _iso(shown[name]) for name in TIMES if shown[name] is not None}
    counts = {name: number or None for name, number in shown["request_counts"].items()}
    files = {name: shown.get(name) or "" for name in RESULTS}
    status = shown["status"].capitalize()
    return shown | times | files | {"status": status, "request_counts": counts, "endpoint": None}


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
