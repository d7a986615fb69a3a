"""The ASGI application: routes, errors, the gate around it, and the engine's life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter, run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from airflow_batch_llm.server.admin_api import AdminApi
from airflow_batch_llm.server.chat import error_body
from airflow_batch_llm.server.gate import HEALTH, Gate
from airflow_batch_llm.server.openai_api import OpenAIApi, bad_call
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.services import Services

#: Threads for database calls; each keeps one connection.
_THREADS = 8


def build_app(services: Services, *, key: str) -> Starlette:
    """Return the application. Starting it starts the engine, stopping it stops the engine."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = _THREADS
        services.engine.start()
        try:
            yield
        finally:
            await run_sync(services.engine.stop)

    return Starlette(
        routes=[Route(HEALTH, _health), *OpenAIApi(services).routes(), *AdminApi(services).routes()],
        middleware=[Middleware(Gate, key=key, log=services.requests)],
        exception_handlers={BadCall: bad_call, HTTPException: _no_route, 500: _failed},
        lifespan=lifespan,
    )


async def _health(request: HttpRequest) -> Response:
    return JSONResponse({"status": "ok"})


async def _no_route(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"Invalid URL ({request.method} {request.url.path})"
    return JSONResponse(error_body(message, kind="invalid_request_error", code=None), error.status_code)


async def _failed(request: HttpRequest, error: Exception) -> Response:
    return JSONResponse(error_body("The server failed.", kind="server_error", code=None), 500)
