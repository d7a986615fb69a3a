"""A provider's replies as objects: JSON that is not what was asked for counts as no reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from airflow_batch_llm.backends.base import Call
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus
from airflow_batch_llm.exceptions import Refused, Unreachable

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

#: Bytes of a reply that take more than a few milliseconds to read.
_LARGE_REPLY = 256 * 1024


def parse(model: type[M], reply: httpx.Response, call: Call) -> M:
    """Return a reply as an object.

    :raises Unreachable: it is no JSON, or not of this shape. What the provider sent is not quoted.
    """
    try:
        return model.model_validate(reply.json())
    except (ValidationError, ValueError, RecursionError):
        # Not chained: the cause would quote what the provider sent.
        raise Unreachable(f"{call}: HTTP {reply.status_code} without the expected JSON") from None


def kind_of(reply: httpx.Response, member: str) -> str | None:
    """Return what a reply, which is known to be an object, calls itself; None where it does not say."""
    kind = reply.json().get(member)
    return kind if isinstance(kind, str) and kind.strip() else None


async def read_apart(reply: httpx.Response, read: Callable[[], T]) -> T:
    """Return what ``read`` makes of a reply. A large one is read outside of the event loop, which belongs
    to others as well: batches that name an error for each line make megabytes."""
    return read() if len(reply.content) <= _LARGE_REPLY else await asyncio.to_thread(read)


def quoted(identifier: str) -> str:
    """Return an id as one path part. An empty one would ask for something else (``/files//content``).

    :raises Refused: the id is empty.
    """
    if not identifier.strip():
        raise Refused("an empty id cannot be asked for", reason="empty_id")
    return quote(identifier, safe="")


class StrangeStatuses:
    """Tells of each status that is not known, once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, remote: RemoteBatch) -> RemoteBatch:
        """Return the batch, having logged its status where that is unknown and was not met before."""
        if remote.status is RemoteStatus.UNKNOWN and remote.raw_status not in self._told:
            self._told.add(remote.raw_status)
            log.warning("Batch %s: unknown status %s counts as running", remote.id, remote.raw_status)
        return remote
