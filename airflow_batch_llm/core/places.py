"""Where a batch was sent: which server, which account. A connection may name another one by now.

Seeing is believing: where the provider shows a batch, it is there, whatever was changed. Not seeing is not:
another server or another account shows nothing of ours, which proves nothing.
"""

from __future__ import annotations

import re

from airflow_batch_llm.core.ids import META_JOB
from airflow_batch_llm.core.model import Batch, Place, RemoteBatch
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.exceptions import ConfigurationError

_SLASHES = re.compile(r"/+")
_USUAL_PORT = re.compile(r":(?:80|443)$")


def place_at(backend: Backend) -> Place:
    """Return where a backend sends to."""
    return Place(backend.address, backend.account)


def place_of(tools: Tools, batch: Batch) -> Place:
    """Return where the connection of a batch sends to now."""
    return place_at(tools.backend_of(batch))


def what_moved(before: Place | None, now: Place) -> str | None:
    """Say in words what is another one now; None where all is the same, as far as both are known."""
    if before is None:
        return None
    if _server(before.address) != _server(now.address):
        return f"its address was {before.address!r} and is {now.address!r}"
    if before.account and now.account and before.account != now.account:
        return "it has another key, organization or project"
    return None


def moved(tools: Tools, batch: Batch) -> str | None:
    """Say what of a batch's connection was changed since it was sent; None where nothing was."""
    return what_moved(batch.place, place_of(tools, batch))


def refuse_moved(tools: Tools, batch: Batch) -> None:
    """See that "not there" means something, before it is concluded of a batch.

    :raises ConfigurationError: its connection names another server or account by now.
    """
    what = moved(tools, batch)
    if what is not None:
        raise ConfigurationError(
            f"connection {batch.conn_id!r} was changed since batch {batch.batch_id} was sent: {what}; and "
            "there, the batch or its results are not shown, which proves nothing. Give the connection back "
            "what it had until the job is over, and use another connection for what is new. Where that "
            "cannot be, `batch-llm adopt` says which batch it is now, and `batch-llm abandon` with "
            "--yes-pay-again gives it up"
        )


def is_it(backend: Backend, batch: Batch, remote: RemoteBatch) -> bool:
    """Say whether what is shown under the id of a batch is that batch.

    One server gives an id once; at another one it may be somebody else's. There the mark has to say so, or,
    where there are none, the number of its requests.
    """
    if batch.place is None or _server(batch.place.address) == _server(backend.address):
        return True
    if backend.marks_batches:
        return remote.metadata.get(META_JOB) == batch.job_id
    return remote.counts.get("total") in (None, 0, batch.requests)


def _server(address: str) -> str:
    """Return an address in one way of the several in which people write it."""
    host, slash, path = address.partition("/")
    host = _USUAL_PORT.sub("", host.lower()).rstrip(".")
    return host + _SLASHES.sub("/", slash + path).removesuffix("/v1").rstrip("/")
