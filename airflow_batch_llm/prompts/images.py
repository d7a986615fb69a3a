"""Images of a row: by their address, or read when the row is staged and sent inside the request."""

from __future__ import annotations

import base64
import binascii
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from airflow_batch_llm.exceptions import FileUnavailable, PromptError
from airflow_batch_llm.prompts.columns import column_of
from airflow_batch_llm.prompts.faults import RowFault
from airflow_batch_llm.prompts.templates import Render, Row, Templates

#: First bytes of the kinds that models take -> media type.
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_DETAILS = ("auto", "low", "high", "original")
_WAYS = ("url", "column", "path")
#: Local faults of a name that a row made up; any other may go away.
_BAD_NAME = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTDIR})


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that goes along with a row's text.

    :param url: template of its address (``http``, ``https`` or a data URL), which the provider fetches.
    :param column: instead, a column that holds the image: bytes, their base64 text, or a list of these.
    :param path: instead, template of a path that is read while the rows are staged: local (relative to the
        DAG file's folder) or any address of ``ObjectStoragePath``.
    :param within: the folder that ``path`` may not leave, templated by Airflow. Left out: the fixed text
        that ``path`` begins with, up to its last ``/``.
    :param conn_id: Airflow connection of the storage of ``path``.
    :param max_bytes: a larger image kills its row (``image_too_large``), bytes before base64.
    :param detail: how closely the model looks: ``auto``, ``low``, ``high``, ``original``; None says nothing.
        Mistral takes no ``original``, Anthropic and Gemini nothing but ``auto``.
    :param optional: an empty address or path, or a NULL column, leaves the image out; otherwise it kills the
        row (``image_missing``).
    :raises PromptError: not exactly one of ``url``, ``column`` and ``path``, or ``path`` with neither fixed
        folder nor ``within``.
    """

    url: str | None = None
    column: str | None = None
    path: str | None = None
    within: str | None = None
    conn_id: str | None = None
    max_bytes: int = 20_000_000
    detail: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        given = [name for name in _WAYS if getattr(self, name) is not None]
        if len(given) != 1:
            raise PromptError("an image takes exactly one of url, column and path")
        for name in (*given, "within", "conn_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise PromptError(f"the image's {name} must be a non-empty string")
        if self.path is None and (self.within is not None or self.conn_id is not None):
            raise PromptError("within and conn_id of an image belong to path")
        if self.path is not None and not (self.within or _fixed_folder(self.path)):
            raise PromptError(
                "the image's path must begin with the folder it is in, as "
                "'s3://bucket/photos/{{ row.name }}'; where rows hold whole addresses, name the folder that "
                "they may not leave as within="
            )
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            raise PromptError("the image's max_bytes must be a whole number of at least 1")
        if self.detail is not None and self.detail not in _DETAILS:
            raise PromptError(f"the image's detail is {self.detail!r}; it can be {', '.join(_DETAILS)}")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments that say something, as JSON types."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


def as_image(value: Any, number: int) -> Image:
    """Return an entry of ``images``: a text is the template of an address.

    :raises PromptError: it is neither.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, str):
        return Image(url=value)
    raise PromptError(
        f"image {number} of the prompt is a {type(value).__name__}; give a template or Image(…)"
    )


class ImageReader:
    """One image of a prompt, ready to be read for every row.

    :param within: the folder for ``path``, rendered and absolute; "" for the other ways.
    :param folder: folder of the DAG file, "" where there is none.
    :raises PromptError: a template does not compile, or no storage takes the folder.
    """

    def __init__(self, image: Image, templates: Templates, where: str, *, within: str, folder: str) -> None:
        if "://" in within:
            _check_storage(within, image.conn_id, where)
        self._image, self._folder = image, folder
        self._within = within.rstrip("/") + "/"
        self._extra = {"detail": image.detail} if image.detail is not None else {}
        text = image.url if image.url is not None else image.path
        self._render: Render = _nothing
        if image.column is not None:
            templates.note_column(image.column)
        else:
            self._render = templates.compile(text, where).render

    def parts(self, row: Row) -> Iterator[dict[str, Any]]:
        """Yield the content parts of a row's images.

        :raises RowFault: an image is missing, too large, of no known kind or outside its folder.
        :raises FileUnavailable: the storage does not answer.
        """
        if self._image.column is not None:
            addresses = self._of_column(row, self._image.column)
        else:
            text = self._render(row).strip()
            addresses = [self._of_url(text) if self._image.url is not None else self._of_path(text)]
        found = False
        for address in addresses:
            if address:
                found = True
                yield {"type": "image_url", "image_url": {"url": address, **self._extra}}
        if not found and not self._image.optional:
            raise RowFault("image_missing", "there is no image")

    def _of_url(self, text: str) -> str:
        if text and not text.lower().startswith(("http://", "https://", "data:image/")):
            raise RowFault(
                "image_url", "the image's address is neither http, https nor a data URL of an image"
            )
        return text

    def _of_column(self, row: Row, column: str) -> list[str]:
        value = column_of(row, column, "an image")
        values = value if isinstance(value, (list, tuple)) else [value]
        return [self._of_value(item) for item in values]

    def _of_value(self, value: Any) -> str:
        if value is None or value == "":
            return ""
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._data_url(bytes(value))
        if not isinstance(value, str):
            raise RowFault("image_shape", f"the image is a {type(value).__name__}, not bytes or base64 text")
        if value.startswith("data:"):
            return self._of_url(value)
        try:
            data = base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError):
            raise RowFault("image_shape", "the image is text that is no base64") from None
        return self._data_url(data)

    def _of_path(self, path: str) -> str:
        if not path:
            return ""
        if "://" not in path and not os.path.isabs(path) and self._folder:
            path = os.path.join(self._folder, path)
        outside = not path.startswith(self._within) or ".." in path.split("/") or "::" in path
        if outside:
            raise RowFault("image_outside", "the image's path leads out of the folder that it may be in")
        return self._data_url(_read(path, self._image.conn_id, self._image.max_bytes + 1))

    def _data_url(self, data: bytes) -> str:
        if len(data) > self._image.max_bytes:
            raise RowFault("image_too_large", f"the image is larger than {self._image.max_bytes} bytes")
        kind = media_type(data)
        if kind is None:
            raise RowFault("image_kind", "the image is neither PNG, JPEG, GIF nor WebP")
        return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def media_type(data: bytes) -> str | None:
    """Return what kind of image some bytes are, by how they begin; None for none that models take."""
    for begins, kind in _SIGNATURES:
        if data.startswith(begins):
            return kind
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def image_folder(image: Image, within: str | None, folder: str) -> str:
    """Return the folder that an image's path may not leave, absolute; "" for images without a path.

    :param within: ``image.within`` as Airflow rendered it.
    :param folder: folder of the DAG file, "" where there is none.
    """
    if image.path is None:
        return ""
    found = within or _fixed_folder(image.path)
    if "://" not in found and not os.path.isabs(found) and folder:
        found = os.path.join(folder, found)
    return found


def _fixed_folder(path: str) -> str:
    """Return the folder that a path's template names before anything in it is rendered."""
    starts = [place for mark in ("{{", "{%", "{#") if (place := path.find(mark)) >= 0]
    fixed = path[: min(starts, default=len(path))]
    folder = fixed.rpartition("/")[0]
    # "s3://{{ row.name }}" names a storage and no folder of it.
    return "" if folder.endswith(":/") else folder


def _check_storage(folder: str, conn_id: str | None, where: str) -> None:
    """:raises PromptError: no storage takes addresses of this form; later each row would be refused."""
    from airflow.sdk import ObjectStoragePath

    try:
        _ = ObjectStoragePath(folder, conn_id=conn_id).fs
    except ValueError:
        raise PromptError(f"{where} is in {folder}, and Airflow knows no storage of that scheme") from None


def _nothing(row: Row) -> str:
    return ""


def _read(path: str, conn_id: str | None, size: int) -> bytes:
    from airflow_batch_llm.sources.locations import open_location

    try:
        with open_location(path, conn_id) as file:
            return file.read(size)
    except (FileNotFoundError, IsADirectoryError):
        raise RowFault("image_missing", "there is no such image file") from None
    except PermissionError:
        raise RowFault("image_unreadable", "the image file may not be read") from None
    except ValueError:
        raise RowFault("image_unreadable", "the image's path is none that a storage takes") from None
    except OSError as e:
        if e.errno in _BAD_NAME:
            raise RowFault("image_unreadable", "the image's path is none that a storage takes") from None
        fault = type(e).__name__
    except Exception as e:
        fault = type(e).__name__
    # Outside of the handlers: what a storage says may hold the path, which a row made.
    raise FileUnavailable(f"an image cannot be read: the storage failed with {fault}")
