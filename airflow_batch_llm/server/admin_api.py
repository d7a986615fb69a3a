"""Administration: the scenario, the charge log, the request log, the batches. Needs the same key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.scenario import parse_scenario
from airflow_batch_llm.server.services import Services

_encoder = msgspec.json.Encoder()
_PIECE = 64 * 1024


class AdminApi:
    """The handlers of ``/admin``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route("/admin/scenario", self._get_scenario, methods=["GET"]),
            Route("/admin/scenario", self._put_scenario, methods=["PUT"]),
            Route("/admin/charges", self._charges, methods=["GET"]),
            Route("/admin/requests", self._requests, methods=["GET"]),
            Route("/admin/batches", self._batches, methods=["GET"]),
            Route("/admin/release", self._release, methods=["POST"]),
        ]

    async def _get_scenario(self, request: HttpRequest) -> Response:
        _, scenario = await run_sync(self._services.scenarios.current)
        return JSONResponse(scenario.model_dump(mode="json"))

    async def _put_scenario(self, request: HttpRequest) -> Response:
        try:
            scenario = parse_scenario(await request.body())
        except ConfigurationError as e:
            raise BadCall(str(e), code="invalid_scenario") from e
        await run_sync(self._services.scenarios.put, scenario)
        return JSONResponse(scenario.model_dump(mode="json"))

    async def _charges(self, request: HttpRequest) -> Response:
        if request.query_params.get("summary") in ("1", "true"):
            return JSONResponse(await run_sync(self._services.charges.summary))
        return _stream(self._services.charges.rows(request.query_params.get("batch_id")))

    async def _requests(self, request: HttpRequest) -> Response:
        return _stream(self._services.requests.rows())

    async def _batches(self, request: HttpRequest) -> Response:
        return _stream(self._every_batch())

    async def _release(self, request: HttpRequest) -> Response:
        released = await run_sync(self._services.batches.release, request.query_params.get("batch_id"))
        self._services.engine.wake()
        return JSONResponse({"released": released})

    def _every_batch(self) -> Iterator[dict[str, Any]]:
        after = None
        while True:
            page, more = self._services.batches.page(after=after, limit=500)
            for batch in page:
                yield _shown(batch)
            if not more:
                return
            after = page[-1].id


def _shown(batch: StoredBatch) -> dict[str, Any]:
    shown = {name: getattr(batch, name) for name in StoredBatch.__slots__}
    for name in ("metadata", "errors", "fault"):
        shown[name] = json.loads(shown[name]) if shown[name] else None
    return shown


def _stream(rows: Iterable[dict[str, Any]]) -> Response:
    """Stream JSON lines in pieces of some size."""

    def pieces() -> Iterator[bytes]:
        piece = bytearray()
        for row in rows:
            piece += _encoder.encode(row) + b"\n"
            if len(piece) >= _PIECE:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece)

    return StreamingResponse(pieces(), media_type="application/x-ndjson")
