"""Reads a multipart upload, or a body as it is, straight to disk, in the pieces in which it arrives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request as HttpRequest

from airflow_batch_llm.server.openai_objects import BadCall

_MAX_FIELD = 4_096


class UploadRefused(Exception):
    """The form is not acceptable; ``status`` and ``param`` for the reply."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


@dataclass(slots=True)
class Upload:
    """A form as received: its fields, and its file, whose bytes are on disk."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    size: int = 0
    lines: int = 0


async def receive_upload(request: HttpRequest, target: Path, *, max_bytes: int) -> Upload:
    """Write the form's ``file`` to ``target``. A form that is too long is read to its end, then refused.

    :raises UploadRefused: not a multipart form, broken, without a file, or the file is above ``max_bytes``.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise UploadRefused("The body must be multipart/form-data.")
    with target.open("wb") as file:
        reader = _FormReader(file, max_bytes)
        parser = MultipartParser(options[b"boundary"], callbacks=reader.callbacks())  # type: ignore[arg-type]
        with _as_refusal():
            async for chunk in request.stream():
                parser.write(chunk)
            parser.finalize()
    if reader.upload.filename is None:
        raise UploadRefused("The form has no file.", param="file")
    if reader.upload.size > max_bytes:
        raise UploadRefused(f"The file is larger than {max_bytes} bytes.", status=413, param="file")
    return reader.upload


async def receive_body(request: HttpRequest, target: Path, *, max_bytes: int) -> None:
    """Write the body to a file. One that is too long is read to its end, then refused.

    :raises BadCall: 413, above ``max_bytes``.
    """
    size = 0
    with target.open("wb") as file:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= max_bytes:
                file.write(chunk)
    if size > max_bytes:
        raise BadCall(f"The request exceeds the maximum size of {max_bytes} bytes.", status=413)


@contextlib.contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except (FormParserError, UnicodeDecodeError) as e:
        raise UploadRefused("The multipart form is broken.") from e


class _FormReader:
    """Takes the parser's events of one form."""

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        self.upload = Upload()
        self._file = file
        self._max = max_bytes
        self._header = [b"", b""]
        self._disposition = b""
        self._name = ""
        self._in_file = False
        self._value = bytearray()
        self._ended = True

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
        }

    def _begin(self) -> None:
        self._disposition = b""
        self._header = [b"", b""]
        self._value = bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _header_end(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = self._header[1]
        self._header = [b"", b""]

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8")
        self._in_file = self._name == "file" and b"filename" in options
        if self._in_file:
            if self.upload.filename is not None:
                raise UploadRefused("The form has more than one file.", param="file")
            self.upload.filename = options[b"filename"].decode("utf-8")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._in_file:
            if len(self._value) + end - start > _MAX_FIELD:
                raise UploadRefused("A field of the form is too long.")
            self._value += data[start:end]
            return
        upload = self.upload
        upload.size += end - start
        if upload.size <= self._max:
            piece = data[start:end]
            upload.lines += piece.count(b"\n")
            self._ended = piece.endswith(b"\n")
            self._file.write(piece)

    def _end(self) -> None:
        if self._in_file:
            self.upload.lines += 0 if self._ended else 1
        elif self._name:
            self.upload.fields[self._name] = self._value.decode("utf-8")
