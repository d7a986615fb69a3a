"""What every request passes: the key, a request id, the request log, and connections closed on purpose."""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from anyio.to_thread import run_sync
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from airflow_batch_llm.server.envelopes import envelope_of
from airflow_batch_llm.server.mistral_paths import needs_no_key
from airflow_batch_llm.server.request_log import RequestLog

HEALTH = "/health"
#: The query's name of a Gemini upload that was begun.
UPLOAD_ID = "upload_id"
_UPLOADS = "/gemini/upload/"
_KEY_HEADERS = frozenset({b"x-api-key", b"x-goog-api-key", b"api-key"})
_TRANSPORT = "batch_llm.transport"
_NO_REPLY = "batch_llm.no_reply"


class DroppableProtocol(HttpToolsProtocol):
    """Hands the connection to the application, so that a scenario can close it without a reply."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_TRANSPORT: {"transport": self.transport}}


class NoReply(Response):
    """In place of a response: the connection is closed, after the call was logged with status 0."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": _NO_REPLY})


async def reset(send: Send) -> None:
    """Close the connection in the middle of a response."""
    await send({"type": _NO_REPLY})


class Gate:
    """ASGI middleware around everything.

    Every path but the health check needs the key, in any of the headers that protocols have for it or as
    the query's ``key``; the address that a Gemini upload is sent to is a secret itself, and some of Mistral's
    paths are answered without. Calls of an API are logged before the reply leaves; administration is not.
    """

    def __init__(self, app: ASGIApp, *, key: str, log: RequestLog) -> None:
        self._app = app
        self._expected = key.encode("ascii")
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exit_ = _Exit(scope, receive, send, self._log)
        path = scope["path"]
        open_ = path == HEALTH or needs_no_key(path)
        app: ASGIApp = self._app if open_ or self._knows(scope) else _refusal(path)
        await app(scope, receive, exit_.send)

    def _knows(self, scope: Scope) -> bool:
        headers = scope["headers"]
        given = [value for name, value in headers if name in _KEY_HEADERS]
        given += [v[7:] for name, v in headers if name == b"authorization" and v.startswith(b"Bearer ")]
        query = QueryParams(scope["query_string"])
        if query.get(UPLOAD_ID) and scope["path"].startswith(_UPLOADS):
            return True  # an upload that nobody began is not found
        given += [value.encode() for value in query.getlist("key")]
        return any(hmac.compare_digest(value, self._expected) for value in given)


class _Exit:
    """The way out of one request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, log: RequestLog) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._log = log
        self._request_id = "req_" + secrets.token_hex(16)
        self._logged = False

    async def send(self, message: Message) -> None:
        if message["type"] == _NO_REPLY:
            await self._record(0)
            self._scope["extensions"][_TRANSPORT]["transport"].abort()
            while (await self._receive())["type"] != "http.disconnect":
                pass
            return
        if message["type"] == "http.response.start":
            await self._record(message["status"])
            name = b"request-id" if self._scope["path"].startswith("/anthropic/") else b"x-request-id"
            message["headers"] = [*message.get("headers", ()), (name, self._request_id.encode())]
        await self._send(message)

    async def _record(self, status: int) -> None:
        path = self._scope["path"]
        if not self._logged and not path.startswith(("/admin", HEALTH)):
            self._logged = True
            await run_sync(self._log.add, self._scope["method"], path, status, self._request_id)


def _refusal(path: str) -> Response:
    message, kind = "The API key is missing or wrong.", "invalid_request_error"
    body: Any = envelope_of(path)(401, message, kind, "invalid_api_key", None)
    return JSONResponse(body, status_code=400 if path.startswith("/gemini/") else 401)
