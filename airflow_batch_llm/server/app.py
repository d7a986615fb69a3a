"""The ASGI application: routes, errors, the gate around it, and the engine's life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter, run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from airflow_batch_llm.server.admin_api import AdminApi
from airflow_batch_llm.server.envelopes import envelope_of
from airflow_batch_llm.server.gate import HEALTH, Gate, NoReply
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.protocols import routes
from airflow_batch_llm.server.services import Services

#: Threads for database calls; each keeps one connection.
_THREADS = 8


def build_app(services: Services, *, key: str) -> ASGIApp:
    """Return the application. Starting it starts the engine, stopping it stops the engine."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = _THREADS
        services.engine.start()
        try:
            yield
        finally:
            await run_sync(services.engine.stop)

    app = Starlette(
        routes=[Route(HEALTH, _health), *routes(services), *AdminApi(services).routes()],
        exception_handlers={
            BadCall: _bad_call,
            HTTPException: _no_route,
            ClientDisconnect: _gone,
            500: _failed,
        },
        lifespan=lifespan,
    )
    return Gate(app, key=key, log=services.requests)


async def _health(request: HttpRequest) -> Response:
    return JSONResponse({"status": "ok"})


async def _no_route(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"Invalid URL ({request.method} {request.url.path})"
    return _told(request, error.status_code, message)


async def _gone(request: HttpRequest, error: Exception) -> Response:
    """The client went away in the middle of its request."""
    return NoReply()


async def _failed(request: HttpRequest, error: Exception) -> Response:
    return _told(request, 500, "The server failed.", kind="server_error")


async def _bad_call(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, BadCall)
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return _told(request, error.status, str(error), kind=kind, code=error.code, param=error.param)


def _told(
    request: HttpRequest,
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> Response:
    return JSONResponse(envelope_of(request.url.path)(status, message, kind, code, param), status)
