"""What the backends have in common, whatever they speak: a client, and a list of batches, newest first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call
from airflow_batch_llm.backends.listing import BatchList, Page
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.replies import StrangeStatuses, kind_of
from airflow_batch_llm.core.ids import META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus
from airflow_batch_llm.core.ports import CreateOrder, Limits
from airflow_batch_llm.exceptions import InDoubt, Refused, Unreachable


class ListedBackend(ABC):
    """The part of a :class:`~airflow_batch_llm.core.ports.Backend` that is alike for every protocol.

    :param provider: its name in the capability table.
    :param client: the HTTP API.
    :param options: the connection's options.
    :param limits: what one batch may hold.
    :param batches: path of the list of batches.
    :param inline: whether requests go along with the create call.
    :param marks_batches: whether a batch shows the token that it was created with.
    """

    #: The member of a batch in which the protocol names the kind of an object; its name says "batch".
    _kind_member: ClassVar[str] = "object"

    def __init__(
        self,
        provider: str,
        client: ApiClient,
        options: BackendOptions,
        limits: Limits,
        *,
        batches: str,
        inline: bool = False,
        marks_batches: bool = True,
    ) -> None:
        self.provider = provider
        self.address = client.address
        self.account = client.account
        self.limits = limits
        #: Seconds for a create call, beside those that its requests take on the way; a lease must be longer.
        self.create_timeout = options.create_timeout_seconds
        self.lists_batches = True
        self.inline = inline
        self.marks_batches = marks_batches
        self._client = client
        self._options = options
        self._batches = batches
        self._list = BatchList(client.named("GET", batches), self._read_page)
        self._strange = StrangeStatuses()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ready(self, file_id: str, *, waited: float = 0.0) -> float | None:
        """Return None: an upload can be used at once, where there are any."""
        return None

    async def find(
        self, token: str, *, created_after: float | None = None, upload: str | None = None
    ) -> list[RemoteBatch]:
        """Return the batches whose token is ``token``; see :meth:`BatchList.find`.

        All are read: a server's own filter might hide one, which would be paid for twice.

        :raises Refused: the provider keeps no marks.
        """
        return await self._marked().find(token, created_after=created_after, upload=upload)

    async def find_origin(self, origin: str) -> list[RemoteBatch]:
        """Return the batches of a job whose ledger was lost; see :meth:`BatchList.find_origin`.

        :raises Refused: the provider keeps no marks.
        """
        return await self._marked().find_origin(origin)

    async def list_recent(
        self, *, stop_at: Callable[[RemoteBatch], bool], max_pages: int = 10
    ) -> list[RemoteBatch]:
        """Return batches newest first, up to and with the first for which ``stop_at`` is true."""
        return await self._list.list_recent(stop_at=stop_at, max_pages=max_pages)

    async def list_since(self, oldest: float) -> list[RemoteBatch]:
        """Return every batch created since ``oldest``, in seconds since the epoch.

        :raises InDoubt: the list did not come to an end.
        """
        return await self._list.list_since(oldest)

    def _marked(self) -> BatchList:
        if not self.marks_batches:
            what = f"{self.provider} keeps no mark with a batch: it cannot be found by one"
            raise Refused(what, reason="no_metadata")
        return self._list

    async def _look(self, path: str) -> RemoteBatch:
        """Return the batch at ``path``. :raises NotFound: the provider denies it."""
        return self._batch(await self._client.call("GET", path), self._client.named("GET", path))

    def _created(self, reply: httpx.Response, call: Call, order: CreateOrder) -> RemoteBatch:
        """Return the batch that a create call made.

        :raises InDoubt: the reply shows none, though the call succeeded.
        """
        doubt = f"{call}: the reply is not a batch; it may have taken effect"
        try:
            remote = self._batch(reply, call)
        except Unreachable as e:
            raise InDoubt(doubt) from e
        if not self._is_made(remote, order, kind_of(reply, self._kind_member)):
            raise InDoubt(doubt)
        return remote

    def _is_made(self, remote: RemoteBatch, order: CreateOrder, kind: str | None) -> bool:
        """Say whether an object with an id is the batch that was ordered: other things have one as well (an
        error that a gateway tells with 200). Not every server names the kind, or shows the metadata at once.
        """
        token = order.metadata.get(META_TOKEN)
        if token and remote.metadata.get(META_TOKEN) == token:
            return True
        if kind is not None:
            return "batch" in kind.lower()
        uploaded = bool(order.input_file_id) and remote.input_file_id == order.input_file_id
        return uploaded or remote.status is not RemoteStatus.UNKNOWN

    @abstractmethod
    def _batch(self, reply: httpx.Response, call: Call) -> RemoteBatch:
        """Return the batch that a reply holds. :raises Unreachable: it holds none."""

    @abstractmethod
    async def _read_page(self, cursor: str | None) -> Page:
        """Return the page of the list at a cursor; None for the first."""
