"""Sends a file's bytes in pieces: whole, cut short, or with the connection reset on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from airflow_batch_llm.server.gate import reset
from airflow_batch_llm.server.scenario import CallRule

_PIECE = 256 * 1024


class Download(Response):
    """A response that streams a file.

    A ``cut`` body has no Content-Length and ends cleanly, so that only the file's size gives it away;
    a ``reset`` one promises the whole length.

    :param sized: false: never any Content-Length, as where results are streamed.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        rule: CallRule | None,
        *,
        media_type: str = "application/octet-stream",
        sized: bool = True,
    ) -> None:
        unsized = not sized or (rule is not None and rule.fault == "cut")
        headers = {} if unsized else {"content-length": str(size)}
        # The base class would add the length of an empty body: headers are set by hand.
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (name.encode(), value.encode()) for name, value in {"content-type": media_type, **headers}.items()
        ]
        self._path = path
        self._size = size
        self._rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = self._size if self._rule is None else int(self._size * self._rule.at)
        async with await anyio.open_file(self._path, "rb") as file:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while left and (piece := await file.read(min(_PIECE, left))):
                left -= len(piece)
                await send(_body(piece, more=True))
        if self._rule is not None and self._rule.fault == "reset":
            await reset(send)
        else:
            await send(_body(b"", more=False))


def _body(piece: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}
