"""Google's resumable upload: a file in pieces, each of which can be taken up again where it broke off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call, raise_for, unreachable
from airflow_batch_llm.backends.content import unlogged_addresses
from airflow_batch_llm.backends.gemini_objects import FileObject, Uploaded
from airflow_batch_llm.backends.replies import parse
from airflow_batch_llm.backends.retrying import Again
from airflow_batch_llm.exceptions import Refused, TransferError, Unreachable

#: Bytes of a piece: a multiple of the 256 KiB that pieces must come in.
PIECE = 8 * 1024 * 1024
#: How often a piece is taken up again before the whole upload is started anew.
_RESUMES = 3
_TYPE = "application/jsonl"


@dataclass(frozen=True, slots=True)
class _Progress:
    """What the server says that it holds. ``status`` is ``active``, ``final`` or ``cancelled``."""

    status: str
    received: int | None


class ResumableUpload:
    """Uploads by way of one path.

    :param path: where an upload begins, e.g. ``/upload/v1beta/files``.
    :param seconds: without a byte before a call fails.
    """

    def __init__(self, client: ApiClient, path: str, seconds: float, *, piece: int = PIECE) -> None:
        self._client = client
        self._call = client.named("POST", path)
        self._timeout = client.timeout(seconds)
        self._piece = piece

    async def send(self, local: Path, name: str) -> str:
        """Send a file, never whole in memory, and return its name (``files/…``).

        :raises TransferError: it did not arrive whole, after some tries.
        """
        size = local.stat().st_size

        async def attempt() -> str:
            with local.open("rb") as file, unlogged_addresses():
                stored = await self._send_all(await self._begin(size, name), file, size)
            if stored.size is not None and stored.size < size:
                raise Again(TransferError(f"file {stored.name} holds {stored.size} of {size} bytes sent"))
            return stored.name

        return await self._client.repeat(attempt)

    async def _begin(self, size: int, name: str) -> httpx.URL:
        """Return the address that the pieces go to. It is a credential by itself: it is never logged."""
        url = self._client.url(self._call.path)
        headers = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(size),
            "X-Goog-Upload-Header-Content-Type": _TYPE,
        }
        reply = await self._post(url, headers, json={"file": {"display_name": name}})
        if not reply.is_success:
            _raise_begin(reply, self._call)
        try:
            return url.join(reply.headers["x-goog-upload-url"])
        except (KeyError, httpx.InvalidURL) as e:
            raise Again(TransferError(f"{self._call}: the reply names no address to upload to")) from e

    async def _send_all(self, url: httpx.URL, file: BinaryIO, size: int) -> FileObject:
        offset = resumes = 0
        while True:
            file.seek(offset)
            piece = file.read(self._piece)
            last = offset + len(piece) >= size
            reply = await self._try_piece(url, piece, offset, last=last)
            if reply is not None and _status(reply) == "active" and not last:
                offset, resumes = offset + len(piece), 0
                continue
            if reply is not None and last and _status(reply) in ("final", ""):
                return _uploaded(reply, self._call)
            resumes += 1
            held = await self._ask(url) if resumes <= _RESUMES else None
            if held is None or held.status != "active" or held.received is None or held.received > size:
                # Taken back, or ended with a reply that was lost: its name will never be known.
                raise Again(TransferError(f"{self._call}: broken off at byte {offset} of {size}"))
            resumes = 0 if held.received > offset else resumes
            offset = held.received

    async def _try_piece(
        self, url: httpx.URL, piece: bytes, offset: int, *, last: bool
    ) -> httpx.Response | None:
        """Send a piece; None where it broke off, and may be taken up again."""
        headers = {
            "X-Goog-Upload-Command": "upload, finalize" if last else "upload",
            "X-Goog-Upload-Offset": str(offset),
        }
        try:
            reply = await self._post(url, headers, content=piece)
        except Again:
            return None
        if reply.is_success:
            return reply
        if reply.status_code >= 500 or reply.status_code in (408, 409, 429):
            return None
        if reply.status_code == 413:
            raise_for(reply, self._call)
        # The address of this upload has run out, or was ended: the key was good when it began.
        raise Again(TransferError(f"{self._call}: broken off at byte {offset}: HTTP {reply.status_code}"))

    async def _ask(self, url: httpx.URL) -> _Progress | None:
        """Ask how far an upload came; None where nobody knows."""
        try:
            reply = await self._post(url, {"X-Goog-Upload-Command": "query"}, content=b"")
        except Again:
            return None
        received = reply.headers.get("x-goog-upload-size-received", "")
        return _Progress(_status(reply), int(received) if received.isdecimal() else None)

    async def _post(self, url: httpx.URL, headers: dict[str, str], **arguments: Any) -> httpx.Response:
        try:
            return await self._client.http().post(
                url, headers=self._client.headers_for(url) | headers, timeout=self._timeout, **arguments
            )
        except httpx.HTTPError as e:
            raise Again(unreachable(self._call, e)) from e


def _raise_begin(reply: httpx.Response, call: Call) -> NoReturn:
    if reply.status_code == 404:
        what = f"{call}: HTTP 404: no such endpoint; check dialect, base URL and api_version"
        raise Refused(what, status_code=404, reason="not_found")
    raise_for(reply, call)


def _uploaded(reply: httpx.Response, call: Call) -> FileObject:
    """Return the file of the reply that ends an upload; now and then it holds none, and nothing was kept."""
    try:
        return parse(Uploaded, reply, call).file
    except Unreachable as e:
        raise Again(TransferError(f"{call}: the last reply names no file")) from e


def _status(reply: httpx.Response) -> str:
    return str(reply.headers.get("x-goog-upload-status", "")).strip().lower()
