"""A file's bytes, fetched whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call, raise_for, unreachable
from airflow_batch_llm.backends.counted import holds_rows_only
from airflow_batch_llm.backends.retrying import Again
from airflow_batch_llm.exceptions import TransferError

_MAX_REDIRECTS = 5

_fetching: ContextVar[bool] = ContextVar("batch_llm_fetching", default=False)


class _NoSignedAddresses(logging.Filter):
    """Keeps addresses we are redirected to out of the HTTP library's log: their query is a credential."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _fetching.get()


for _name in ("httpx", "httpcore.http11"):
    logging.getLogger(_name).addFilter(_NoSignedAddresses())


@contextlib.contextmanager
def unlogged_addresses() -> Iterator[None]:
    """Keep the addresses of the calls within out of the HTTP library's log."""
    token = _fetching.set(True)
    try:
        yield
    finally:
        _fetching.reset(token)


async def fetch_content(
    client: ApiClient, path: str, local: Path, *, expected: int | None, timeout: httpx.Timeout
) -> bool:
    """Fetch ``path`` to ``local`` through a temporary name beside it; repeated when it is not of its size.

    Returns whether it is known to be whole: it is as long as the provider says.

    Redirects are followed (Parasail: to a signed URL); the key goes to the provider's own host only.

    :param expected: size in bytes that the provider names, None where it names none.
    :raises TransferError: fewer bytes arrived than were promised, or more that are no rows, in each try.
    :raises NotFound: the provider has the file no more.
    """

    async def attempt() -> bool:
        part = local.with_name(f".{local.name}.{uuid.uuid4().hex}.part")
        try:
            with unlogged_addresses():
                whole = await _fetch(client, path, part, expected, timeout)
            os.replace(part, local)
            return whole
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()

    return await client.repeat(attempt)


async def _fetch(
    client: ApiClient, path: str, part: Path, expected: int | None, timeout: httpx.Timeout
) -> bool:
    url = client.url(path)
    call = client.named("GET", path)
    for hop in range(_MAX_REDIRECTS + 1):
        try:
            stream = client.http().stream("GET", url, headers=client.headers_for(url), timeout=timeout)
            async with stream as reply:
                if reply.has_redirect_location:
                    url = reply.url.join(reply.headers["location"])
                    continue
                if not reply.is_success:
                    await reply.aread()
                    if hop and reply.status_code in (401, 403):
                        # The storage behind the provider: a signed URL that ran out, not a wrong key.
                        raise Again(TransferError(f"{call}: the storage said HTTP {reply.status_code}"))
                    raise_for(reply, call)
                return await _write(reply, call, part, expected)
        except httpx.InvalidURL as e:
            raise TransferError(f"{call}: redirected to what is not a URL") from e
        except httpx.HTTPError as e:
            if part.exists():
                raise Again(TransferError(f"{call}: broken off ({type(e).__name__})")) from e
            # Behind a redirect it is another host that does not answer; its address may be signed.
            what = f"{call} (redirected to {url.host})" if hop else call
            raise Again(unreachable(what, e)) from e
    raise TransferError(f"{call}: more than {_MAX_REDIRECTS} redirects")


async def _write(reply: httpx.Response, call: Call, part: Path, expected: int | None) -> bool:
    written = 0
    with part.open("wb") as file:
        async for chunk in reply.aiter_bytes():
            written += file.write(chunk)
    promised = reply.headers.get("content-length", "")
    if promised.isdigit() and reply.num_bytes_downloaded < int(promised):
        raise Again(TransferError(f"{call}: {reply.num_bytes_downloaded} of {promised} bytes arrived"))
    # A size of 0 is not believed: some servers name it for each file.
    if not expected:
        return False
    # More than the size is a page in place of the file, or the size is wrong (of the compressed file, or
    # taken while it was still written). Rows throughout tell that the size is: it is not known then.
    if written < expected or (written > expected and not await asyncio.to_thread(holds_rows_only, part)):
        raise Again(TransferError(f"{call}: {written} of {expected} bytes arrived"))
    return written == expected
