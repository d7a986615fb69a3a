"""A provider's files over HTTP, in the form that OpenAI gave them: upload, description, content, deletion."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
from pydantic import BaseModel, Field

from airflow_batch_llm.backends.base import ApiClient, Call
from airflow_batch_llm.backends.content import fetch_content
from airflow_batch_llm.backends.counted import fetch_counted
from airflow_batch_llm.backends.fields import Text, Whole
from airflow_batch_llm.backends.replies import parse, quoted
from airflow_batch_llm.backends.uploads import Stored, send_file
from airflow_batch_llm.exceptions import NotFound, Refused, Unreachable

log = logging.getLogger(__name__)


class FileObject(BaseModel):
    """An uploaded or written file."""

    id: str = Field(min_length=1)
    bytes: Whole = None
    status: Text = None


class FileStore:
    """The files behind one path.

    :param path: of the collection, e.g. ``/files``.
    :param seconds: without a byte before a try of an upload or a download fails.
    """

    def __init__(self, client: ApiClient, path: str, seconds: float) -> None:
        self._client = client
        self._path = path
        self._seconds = seconds

    async def upload(
        self,
        local: Path,
        name: str,
        fields: Mapping[str, str],
        refused: Callable[[httpx.Response, Call], None] = lambda reply, call: None,
    ) -> str:
        """Send a file as a stream of known length and return its id; see
        :func:`~airflow_batch_llm.backends.uploads.send_file`.

        :raises TransferError: the provider holds fewer bytes than were sent.
        """
        return await send_file(
            self._client,
            self._path,
            local,
            name,
            fields=fields,
            seconds=self._seconds,
            read=_stored,
            refused=refused,
        )

    async def describe(self, file_id: str) -> FileObject:
        """Return what the provider says about a file. :raises NotFound: it is gone."""
        path = self._path_of(file_id)
        return parse(FileObject, await self._client.call("GET", path), self._client.named("GET", path))

    async def download(self, file_id: str, local: Path, *, rows: int) -> None:
        """Fetch a file whole to ``local``. Where its description names no size, its rows are counted.

        :param rows: how many it holds by the provider's count; 0 where it does not say.
        :raises TransferError: it did not arrive whole, after some tries.
        :raises NotFound: the provider has it no more.
        :raises Unreachable: its description, or the file, was not to be had.
        """
        path = f"{self._path_of(file_id)}/content"
        fetch = functools.partial(
            fetch_content,
            self._client,
            path,
            expected=await self._size_of(file_id),
            timeout=self._client.timeout(self._seconds),
        )
        await fetch_counted(
            fetch, local, rows=rows, what=str(self._client.named("GET", path)), pause=self._client.pause
        )

    async def delete(self, file_id: str) -> None:
        """Delete a file; one that is gone already is fine."""
        try:
            await self._client.call("DELETE", self._path_of(file_id))
        except NotFound:
            log.debug("File %s was gone already", file_id)

    async def _size_of(self, file_id: str) -> int | None:
        """Return the size the provider names for a file, None where it names none.

        :raises Unreachable: it did not answer. Its silence for a minute does not make the size unknown: a cut
            file would be taken for a whole one.
        """
        path = self._path_of(file_id)
        try:
            reply = await self._client.call("GET", path)
        except (NotFound, Refused) as e:
            # Some gateways serve the content only; whether the file is there, the content call says.
            log.debug("No size of %s: %s", path, e)
            return None
        try:
            return parse(FileObject, reply, self._client.named("GET", path)).bytes
        except Unreachable as e:
            log.debug("No size of %s: %s", path, e)
            return None

    def _path_of(self, file_id: str) -> str:
        return f"{self._path}/{quoted(file_id)}"


def _stored(reply: httpx.Response, call: Call) -> Stored:
    file = parse(FileObject, reply, call)
    return Stored(file.id, file.bytes)
