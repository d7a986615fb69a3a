"""Gemini's resumable uploads: begun, sent in chunks, finalized. Bytes go straight to disk.

An upload that was begun is kept in memory: after a restart of the server it is not found and is to be
begun again.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import string
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest

from airflow_batch_llm.server.files import FileStore, StoredFile
from airflow_batch_llm.server.gemini_objects import FILE_LIFE, GeminiRefusal, invalid

_NAME = re.compile(r"files/([a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?)")
_LETTERS = string.ascii_lowercase + string.digits
#: Uploads that were begun and never ended: the oldest ones are given up.
_MOST_OPEN = 1_000
_PIECE = 1 << 20


def new_id(length: int) -> str:
    """Return a fresh id as the API makes them."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


@dataclass(frozen=True, slots=True)
class Announced:
    """What a client says of a file. ``size`` in bytes, None where it does not say.

    :param file_id: the id that it chose; None: a fresh one.
    """

    display_name: str
    mime_type: str
    size: int | None
    file_id: str | None = None


def announced(file: dict[str, object], *, mime_type: str | None, size: str | None) -> Announced:
    """Read the ``file`` of an upload's first call; the headers' values go first.

    :raises GeminiRefusal: a member has the wrong type, or the name is not allowed.
    """
    found = {
        name: file.get(name, file.get(other))
        for name, other in (("displayName", "display_name"), ("mimeType", "mime_type"), ("name", "name"))
    }
    for member, value in found.items():
        if not isinstance(value, str | None):
            raise invalid("This must be a string.", f"file.{member}")
    name = found["name"]
    match = _NAME.fullmatch(str(name)) if name else None
    if name and match is None:
        raise invalid("A name is files/ and up to 40 lowercase letters, digits and dashes.", "file.name")
    if size is not None and not (size.isascii() and size.isdigit()):
        raise invalid("The length must be a number of bytes.")
    return Announced(
        str(found["displayName"] or ""),
        mime_type or str(found["mimeType"] or "application/octet-stream"),
        None if size is None else int(size),
        match[1] if match else None,
    )


@dataclass(slots=True)
class OpenUpload:
    """An upload that was begun. ``stored`` once it was finalized."""

    id: str
    file: Announced
    path: Path
    received: int = 0
    stored: StoredFile | None = None
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class GeminiUploads:
    """Uploads by id."""

    def __init__(self, files: FileStore, *, dialect: str, max_bytes: int) -> None:
        self._files = files
        self._dialect = dialect
        self._max_bytes = max_bytes
        self._open: dict[str, OpenUpload] = {}

    def begin(self, file: Announced) -> OpenUpload:
        """Begin an upload. :raises GeminiRefusal: the file is too large."""
        if file.size is not None and file.size > self._max_bytes:
            raise self._too_large()
        while len(self._open) >= _MOST_OPEN:
            self.forget(next(iter(self._open)))
        upload = OpenUpload(secrets.token_urlsafe(48), file, self._files.new_temporary())
        upload.path.touch()
        self._open[upload.id] = upload
        return upload

    def require(self, upload_id: str) -> OpenUpload:
        """:raises GeminiRefusal: no upload has this id."""
        found = self._open.get(upload_id)
        if found is None:
            raise GeminiRefusal(404, "NOT_FOUND", "No upload has this id.")
        return found

    def forget(self, upload_id: str) -> None:
        """Forget an upload, and what was received of it unless it was finalized."""
        if (upload := self._open.pop(upload_id, None)) is not None:
            upload.path.unlink(missing_ok=True)

    async def receive(self, upload: OpenUpload, request: HttpRequest, offset: int) -> None:
        """Write a chunk. One that was received already, whole or in part, is written again.

        :raises GeminiRefusal: bytes before it are missing, or the file is too large.
        """
        if upload.stored is not None:
            return
        if offset > upload.received:
            raise invalid(f"The upload goes on at byte {upload.received}.")
        async with await anyio.open_file(upload.path, "r+b") as file:
            await file.truncate(offset)
            await file.seek(offset)
            upload.received = offset
            async for chunk in request.stream():
                upload.received += len(chunk)
                if upload.received <= self._max_bytes:
                    await file.write(chunk)
        if upload.received > self._max_bytes:
            self.forget(upload.id)
            raise self._too_large()

    async def finalize(self, upload: OpenUpload) -> StoredFile:
        """Keep the file; once more is no harm.

        :raises GeminiRefusal: its length is not the announced one, or its name is taken.
        """
        if upload.stored is None:
            if upload.file.size is not None and upload.file.size != upload.received:
                raise invalid(f"{upload.received} bytes were received, {upload.file.size} were announced.")
            upload.stored = await run_sync(self._keep, upload)
        return upload.stored

    def _keep(self, upload: OpenUpload) -> StoredFile:
        digest, lines = hashlib.sha256(), 0
        with upload.path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                lines += piece.count(b"\n")
        kept = {
            "mime_type": upload.file.mime_type,
            "sha256": base64.b64encode(digest.hexdigest().encode()).decode(),
        }
        try:
            return self._files.add(
                upload.path,
                filename=upload.file.display_name,
                purpose="batch",
                lines=lines,
                life=FILE_LIFE,
                file_id=upload.file.file_id or new_id(12),
                dialect=self._dialect,
                extra=kept,
            )
        except FileExistsError as e:
            raise GeminiRefusal(409, "ALREADY_EXISTS", "A file has, or had, this name.") from e

    def _too_large(self) -> GeminiRefusal:
        return invalid(f"A file has at most {self._max_bytes} bytes.")
