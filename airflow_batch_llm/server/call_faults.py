"""Spoils API calls as the scenario says: around each handler of the API."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from airflow_batch_llm.server.envelopes import envelope_of
from airflow_batch_llm.server.faults import ScenarioStore
from airflow_batch_llm.server.gate import NoReply
from airflow_batch_llm.server.scenario import CallRule

Handler = Callable[[HttpRequest], Awaitable[Response]]


def spoiled(on: str, handler: Handler, scenarios: ScenarioStore) -> Handler:
    """Return the handler with the scenario's faults for calls of this kind around it."""

    async def handle(request: HttpRequest) -> Response:
        rule = await run_sync(scenarios.draw_call, on)
        if rule is None:
            return await handler(request)
        if rule.fault == "lost_reply":
            await handler(request)
            return NoReply()
        if rule.fault in ("cut", "reset"):
            request.state.rule = rule
            return await handler(request)
        return await _instead(request, rule)

    return handle


async def _instead(request: HttpRequest, rule: CallRule) -> Response:
    """Do nothing, and say so or not."""
    async for _ in request.stream():  # a client that is still sending would not read the reply
        pass
    if rule.fault == "error":
        return _error(rule, request.url.path)
    if rule.fault == "timeout":
        with anyio.move_on_after(rule.seconds):
            while (await request.receive())["type"] != "http.disconnect":
                pass
    return NoReply()


def _retry_after(rule: CallRule) -> dict[str, str]:
    if rule.retry_after is None:
        return {}
    if rule.retry_after_as == "milliseconds":
        return {"retry-after-ms": f"{rule.retry_after * 1000:.0f}"}
    if rule.retry_after_as == "date":
        return {"Retry-After": formatdate(time.time() + rule.retry_after, usegmt=True)}
    return {"Retry-After": f"{rule.retry_after:g}"}


def _error(rule: CallRule, path: str) -> Response:
    headers = _retry_after(rule)
    if rule.text:
        return PlainTextResponse("No.", rule.status, headers)
    if rule.html:
        return HTMLResponse("<html><body>Bad gateway</body></html>", rule.status, headers)
    kind = (
        "server_error"
        if rule.status >= 500
        else "requests"
        if rule.status == 429
        else "invalid_request_error"
    )
    code = rule.code or ("rate_limit_exceeded" if rule.status == 429 else None)
    body = envelope_of(path)(rule.status, "The scenario refuses this call.", kind, code, None)
    return JSONResponse(body, rule.status, headers)
