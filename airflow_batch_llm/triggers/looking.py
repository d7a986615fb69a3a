"""One look at the batches of a connection: as few calls as it takes.

A list call shows a page of batches, newest first; a GET shows one. A list is read for as long as its
pages show what is asked for, the rest is asked for one by one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    NotFound,
    RateLimited,
    Refused,
    Unreachable,
)

if TYPE_CHECKING:
    from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus
    from airflow_batch_llm.core.ports import Backend

#: Up to this many batches are looked at one by one; more are looked up in a list.
FEW = 3
#: Batches asked for one by one in one look at most; the others follow in the next.
SINGLES_A_LOOK = 20
#: Calls under way at the same time.
_AT_ONCE = 4
#: Pages of a list at most, and how many batches count as one page where it is judged what it was worth.
_MAX_PAGES = 100
_PAGE = 100
#: So many batches that are still missing are worth a page that shows none of them.
_WORTH_A_PAGE = 20
#: Looks after which the list gets another chance to show what it did not show.
_LOOKS_REMEMBERED = 20
#: Calls without a usable reply that end a look: the provider is not well.
_ENOUGH_FAULTS = 3
#: Errors with which a provider may say how long to stay away.
_FOR_NOW = (RateLimited, Unreachable)


@dataclass
class Looked:
    """What a look came to.

    :param statuses: of every batch that was shown, those of others included.
    :param errors: batch id -> why it could not be looked at.
    :param left: not asked for in this look.
    :param failure: what ended the list call, and with it the look.
    :param retry_after: seconds the provider asks to stay away.
    """

    statuses: dict[str, RemoteStatus] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    failure: Exception | None = None
    retry_after: float = 0.0

    @property
    def refusal(self) -> Exception | None:
        """The error of a look in which key or account was refused and no call succeeded."""
        if self.statuses:
            return None
        found = [self.failure, *self.errors.values()]
        return next((error for error in found if is_refusal(error)), None)


def is_refusal(error: Exception | None) -> bool:
    """Say whether the key or the account was refused."""
    return isinstance(error, (AuthError, AccountError))


@dataclass
class Looker:
    """Looks with one backend, and remembers for some looks what its list does not show.

    :param unlisted: batches that the list did not show; they are asked for one by one.
    """

    backend: Backend
    unlisted: set[str] = field(default_factory=set)
    lists: bool = True
    looks: int = 0

    def __post_init__(self) -> None:
        self.lists = self.backend.lists_batches

    async def look(self, wanted: Collection[str]) -> Looked:
        """Look at the batches ``wanted``. What the provider refuses is part of what is returned."""
        found = Looked()
        self.looks += 1
        if self.looks % _LOOKS_REMEMBERED == 0:
            self.unlisted.clear()  # a list may lag, or be empty once
        listed = {batch_id for batch_id in wanted if batch_id not in self.unlisted}
        if self.lists and len(listed) > FEW:
            await self._list(listed, found)
        if found.failure is None:
            await self._ask([batch_id for batch_id in wanted if batch_id not in found.statuses], found)
        return found

    def forget(self, kept: Collection[str]) -> None:
        """Forget all batches but those."""
        self.unlisted.intersection_update(kept)

    async def _list(self, listed: set[str], found: Looked) -> None:
        missing, vain = set(listed), 0

        def enough(remote: RemoteBatch) -> bool:
            nonlocal vain
            found.statuses[remote.id] = remote.status
            vain = 0 if remote.id in missing else vain + 1
            missing.discard(remote.id)
            # Reading on must not cost much more calls than asking for what is missing would. Others may
            # stand in front in their hundreds: foreign ones, and ours that are not due.
            return vain >= _PAGE * max(min(len(missing), FEW), len(missing) // _WORTH_A_PAGE)

        try:
            await self.backend.list_recent(stop_at=enough, max_pages=_MAX_PAGES)
        except (NotFound, Refused):
            self.lists = False
        except _FOR_NOW as error:
            found.failure, found.retry_after = error, error.retry_after or 0.0
        except Exception as error:
            found.failure = error
        else:
            self.unlisted |= missing
        self.unlisted.difference_update(found.statuses)

    async def _ask(self, batch_ids: list[str], found: Looked) -> None:
        # In any order: a batch whose calls always fail must not stand in front of the others for ever.
        random.shuffle(batch_ids) if len(batch_ids) > FEW else batch_ids.sort()
        found.left.update(batch_ids[SINGLES_A_LOOK:])
        batch_ids = batch_ids[:SINGLES_A_LOOK]
        at_once = 1 if len(batch_ids) <= FEW else _AT_ONCE
        faults = 0
        for start in range(0, len(batch_ids), at_once):
            errors = await self._ask_at_once(batch_ids[start : start + at_once], found)
            rest = batch_ids[start + at_once :]
            if any(map(is_refusal, errors)):
                # Maybe of this one batch only: the others are asked for in the next look.
                found.left.update(rest)
                return
            asked = [error.retry_after or 0.0 for error in errors if isinstance(error, _FOR_NOW)]
            found.retry_after = max([found.retry_after, *asked])
            limited = any(isinstance(error, RateLimited) for error in errors)
            faults += sum(isinstance(error, Unreachable) for error in errors)
            if limited or faults >= _ENOUGH_FAULTS:
                found.errors.update(dict.fromkeys(rest, errors[-1]))
                return

    async def _ask_at_once(self, batch_ids: list[str], found: Looked) -> list[Exception]:
        replies = await asyncio.gather(*map(self.backend.retrieve, batch_ids), return_exceptions=True)
        errors: list[Exception] = []
        for batch_id, reply in zip(batch_ids, replies, strict=True):
            if isinstance(reply, Exception):
                found.errors[batch_id] = reply
                errors.append(reply)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                found.statuses[batch_id] = reply.status
        return errors
