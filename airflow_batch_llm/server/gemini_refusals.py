"""How the Gemini API says no: around every handler, whoever refused the call."""

from __future__ import annotations

import json

from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from airflow_batch_llm.server.call_faults import Handler
from airflow_batch_llm.server.faults import ScenarioStore
from airflow_batch_llm.server.gemini_objects import GeminiRefusal, retry_info


def refusals_told(handler: Handler, scenarios: ScenarioStore) -> Handler:
    """Return the handler with its refusals as replies.

    A time to wait stands in the body (``RetryInfo``), and a refused upload is over.
    """

    async def handle(request: HttpRequest) -> Response:
        try:
            response = await handler(request)
        except GeminiRefusal as e:
            headers = {"X-Goog-Upload-Status": "final"} if "/upload/" in request.url.path else {}
            response = JSONResponse(e.body(), e.status, headers)
        if response.status_code < 400 or not isinstance(response, JSONResponse):
            return response
        _, scenario = await run_sync(scenarios.current)
        return _told(response, in_list=scenario.gemini.errors_in_list)

    return handle


def _told(response: JSONResponse, *, in_list: bool) -> Response:
    body = json.loads(bytes(response.body))
    if wait := response.headers.get("retry-after"):
        body["error"].setdefault("details", []).append(retry_info(float(wait)))
    status = response.headers.get("x-goog-upload-status")
    headers = {"X-Goog-Upload-Status": status} if status else {}
    return JSONResponse([body] if in_list else body, response.status_code, headers)
