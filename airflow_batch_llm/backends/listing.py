"""A provider's list of batches, read newest first, page by page, over any kind of cursor.

What "not there" rests on: a lost create call is sent again only when the list came to an end without its
batch. A list that breaks off, repeats itself or loses entries between two pages has no end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from airflow_batch_llm.backends.base import Call
from airflow_batch_llm.core.ids import META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch
from airflow_batch_llm.exceptions import InDoubt, NotFound, Refused

#: How far the provider's clock may lag behind the ledger's, in seconds, when a batch is looked for.
_CLOCK_MARGIN = 600.0
#: Result files are gone after 30 days, so an older batch cannot be adopted any more.
_ORIGIN_AGE = 31 * 86_400.0
_MAX_FIND_PAGES = 500


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list of batches.

    :param batches: in the order of the reply.
    :param cursor: what to ask the next page with: the last id, a token, a page number. None: this page is
        the last.
    :param more: whether the provider says that a page follows; None where it does not say.
    :param total: how many batches the list holds, where the provider says so.
    """

    batches: list[RemoteBatch]
    cursor: str | None
    more: bool | None = None
    total: int | None = None


class BatchList:
    """The list of batches behind one call.

    :param call: as messages name it.
    :param read: reads the page at a cursor; None for the first.
    """

    def __init__(self, call: Call, read: Callable[[str | None], Awaitable[Page]]) -> None:
        self._call = call
        self._read = read

    async def find(
        self, token: str, *, created_after: float | None = None, upload: str | None = None
    ) -> list[RemoteBatch]:
        """Return the batches whose metadata token is ``token``.

        :param created_after: seconds since the epoch; batches older than 10 minutes before are not looked at.
        :param upload: a batch that was made of it is one of them where it shows no token: some servers take
            metadata and drop it without a word.
        :raises InDoubt: the list did not come to an end, so "not there" cannot be said.
        """
        oldest = None if created_after is None else created_after - _CLOCK_MARGIN

        def wanted(batch: RemoteBatch) -> bool:
            shown = batch.metadata.get(META_TOKEN)
            return shown == token or (not shown and bool(upload) and batch.input_file_id == upload)

        return await self.search(wanted, oldest)

    async def find_origin(self, origin: str) -> list[RemoteBatch]:
        """Return the batches of a job whose ledger was lost, as far back as results can still be read.

        :raises InDoubt: the list did not come to an end, so "none" cannot be said.
        """
        oldest = time.time() - _ORIGIN_AGE
        return await self.search(lambda batch: batch.metadata.get(META_ORIGIN) == origin, oldest)

    async def search(self, wanted: Callable[[RemoteBatch], bool], oldest: float | None) -> list[RemoteBatch]:
        """Return the batches that are ``wanted``.

        :param oldest: seconds since the epoch before which nothing is looked for; None for no bound.
        :raises InDoubt: none was found, and the list did not come to an end.
        """
        found, ended = await self._walk(
            keep=wanted,
            stop=lambda page: oldest is not None and _all_older(page, oldest),
            max_pages=_MAX_FIND_PAGES,
        )
        if not found and not ended:
            raise InDoubt(f"{self._call}: the list of batches did not come to an end; look again later")
        return found

    async def list_recent(
        self, *, stop_at: Callable[[RemoteBatch], bool], max_pages: int = 10
    ) -> list[RemoteBatch]:
        """Return batches newest first, up to and with the first for which ``stop_at`` is true."""
        stopped = False

        def keep(batch: RemoteBatch) -> bool:
            nonlocal stopped
            kept, stopped = not stopped, stopped or stop_at(batch)
            return kept

        batches, _ = await self._walk(keep=keep, stop=lambda page: stopped, max_pages=max_pages)
        return batches

    async def list_since(self, oldest: float) -> list[RemoteBatch]:
        """Return every batch created since a time, and those that tell none.

        :param oldest: seconds since the epoch.
        :raises InDoubt: the list did not come to an end, so that one may be missing.
        """
        found, ended = await self._walk(
            keep=lambda batch: batch.created_at is None or batch.created_at >= oldest,
            stop=lambda page: _all_older(page, oldest),
            max_pages=_MAX_FIND_PAGES,
        )
        if not ended:
            raise InDoubt(f"{self._call}: the list of batches did not come to an end; look again later")
        return found

    async def _walk(
        self,
        *,
        keep: Callable[[RemoteBatch], bool],
        stop: Callable[[list[RemoteBatch]], bool],
        max_pages: int,
    ) -> tuple[list[RemoteBatch], bool]:
        """Return the batches to ``keep`` and whether the list ended (or ``stop`` said that it may)."""
        kept: list[RemoteBatch] = []
        seen: set[str] = set()
        cursor: str | None = None
        total: int | None = None
        whole = True
        for _ in range(max_pages):
            try:
                page = await self._read(cursor)
            except (Refused, NotFound):
                if cursor is None:
                    raise
                return kept, False  # the cursor ran out, or names a batch that was deleted meanwhile
            # Pages that are counted move up when a batch is deleted: one may have slipped by unseen.
            whole = whole and not (total and page.total is not None and page.total < total)
            total = page.total if page.total is not None else total
            # A server that ignores the cursor sends the same page again and again.
            fresh = [batch for batch in page.batches if batch.id not in seen]
            seen.update(batch.id for batch in fresh)
            kept.extend(filter(keep, fresh))
            if page.cursor is None:
                return kept, whole and page.more is not True
            if page.batches and not fresh:
                return kept, whole and page.more is not True and (total is None or total <= len(seen))
            if fresh and stop(fresh):
                return kept, whole
            if page.cursor == cursor:
                return kept, False
            cursor = page.cursor
        return kept, False


def _all_older(page: list[RemoteBatch], oldest: float) -> bool:
    """Say whether a list that runs newest first has passed ``oldest``.

    The order is not promised. Where a page is not in it, or too short or too even to show it, nothing is
    concluded: a batch that is missed here would be paid for twice.
    """
    times = [batch.created_at for batch in page]
    known = [moment for moment in times if moment is not None]
    if len(known) < len(times) or not known:
        return False
    return known == sorted(known, reverse=True) and known[-1] < min(known[0], oldest)
