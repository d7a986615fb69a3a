"""Asking for the cancellation of a batch, whatever a provider says of one that has already ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus
from airflow_batch_llm.exceptions import NotFound, Refused, Unreachable

#: Statuses with which the cancel of a batch that has ended may be refused.
REFUSALS = frozenset({400, 404, 405, 409, 412, 422})


async def ask_cancel(
    client: ApiClient,
    path: str,
    *,
    read: Callable[[httpx.Response, Call], RemoteBatch],
    retrieve: Callable[[], Awaitable[RemoteBatch]],
    refusals: frozenset[int] = REFUSALS,
) -> RemoteBatch:
    """Ask for cancellation and return the batch; one that has already ended is returned as it is.

    :param path: of the call.
    :param read: makes the batch of the reply. :raises Unreachable: it holds none.
    :param retrieve: looks at the batch.
    :raises Refused: the provider will not cancel a batch that still runs.
    """
    try:
        reply = await client.call("POST", path, keep=refusals)
    except (Refused, NotFound) as e:
        batch = await retrieve()
        status_code = 404 if isinstance(e, NotFound) else e.status_code
        if batch.status is RemoteStatus.CANCELLING or (batch.status.terminal and status_code in refusals):
            return batch
        raise
    try:
        return read(reply, client.named("POST", path))
    except Unreachable:
        return await retrieve()
