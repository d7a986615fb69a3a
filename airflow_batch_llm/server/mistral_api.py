"""Mistral's API below ``/mistral``: files, batch jobs, models."""

from __future__ import annotations

from typing import Any

import httpx
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from airflow_batch_llm.server.call_faults import spoiled
from airflow_batch_llm.server.mistral_files import MistralFiles
from airflow_batch_llm.server.mistral_jobs import MistralJobs
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.services import Services

_ABLE = {"completion_chat": True, "function_calling": True, "completion_fim": False, "fine_tuning": False}


class MistralApi:
    """The handlers of ``/mistral``."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._files = MistralFiles(services)
        self._jobs = MistralJobs(services, self._files)

    def routes(self) -> list[Route]:
        """Return the routes, each with the scenario's faults around it."""
        scenarios = self._services.scenarios
        return [
            Route(
                f"/mistral{path}",
                handler if on is None else spoiled(on, handler, scenarios),
                methods=[method],
            )
            for method, path, on, handler in (
                *self._files.table(),
                *self._jobs.table(),
                ("GET", "/v1/models", None, self._models),
            )
        ]

    async def _models(self, request: HttpRequest) -> Response:
        try:
            data = await run_sync(self._services.upstream.models)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
            raise BadCall("The upstream does not list its models.", status=502) from e
        return JSONResponse({"object": "list", "data": [_model(model) for model in data]})


def _model(model: dict[str, Any]) -> dict[str, Any]:
    return {**model, "capabilities": _ABLE, "type": "base"}
