"""A file sent as a multipart form: a stream of known length, repeated while the provider has a fault."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call, raise_for, unreachable
from airflow_batch_llm.backends.retrying import Again
from airflow_batch_llm.exceptions import TransferError


class Stored(NamedTuple):
    """What the provider says that it holds: the file's id, and its size in bytes where it names one."""

    id: str
    size: int | None


async def send_file(
    client: ApiClient,
    path: str,
    local: Path,
    name: str,
    *,
    fields: Mapping[str, str],
    seconds: float,
    read: Callable[[httpx.Response, Call], Stored],
    refused: Callable[[httpx.Response, Call], None] = lambda reply, call: None,
) -> str:
    """Send a file and return its id.

    :param fields: further fields of the form, sent before the file, as some servers need them.
    :param seconds: without a byte before a try fails.
    :param read: makes the stored file of the reply.
    :param refused: is shown each reply that is not 2xx, and may raise what it stands for.
    :raises TransferError: the provider holds fewer bytes than were sent.
    """
    size = local.stat().st_size
    name = name if name.endswith(".jsonl") else f"{name}.jsonl"  # another ending is refused (OpenAI)
    timeout = client.timeout(seconds)
    call = client.named("POST", path)
    # One boundary for all tries: a repeat sends the same bytes, and can be told for one.
    form = {"content-type": f"multipart/form-data; boundary={secrets.token_hex(16)}"}

    async def attempt() -> str:
        url = client.url(path)
        with local.open("rb") as file:
            try:
                reply = await client.http().post(
                    url,
                    headers=client.headers_for(url) | form,
                    data=dict(fields),
                    files={"file": (name, file, "application/jsonl")},
                    timeout=timeout,
                )
            except httpx.HTTPError as e:
                raise Again(unreachable(call, e)) from e
        if not reply.is_success:
            refused(reply, call)
            raise_for(reply, call)
        stored = read(reply, call)
        if stored.size and stored.size < size:
            raise Again(TransferError(f"file {stored.id} holds {stored.size} of {size} bytes sent"))
        return stored.id

    return await client.repeat(attempt)
