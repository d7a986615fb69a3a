"""One poller for all waits of a connection in an event loop: one client, one look for all that are due.

Times on the wire: a wait whose turn has come takes the others along whose turn comes soon, and whoever
is shown by a list counts as looked at. So a thousand waits that look once a minute cost ten pages of a
list a minute, not a thousand calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.exceptions import AuthError, NotFound, ProviderError, Refused
from airflow_batch_llm.triggers.looking import Looked, Looker, is_refusal
from airflow_batch_llm.triggers.order import WaitOrder, code_of, event_of

if TYPE_CHECKING:
    from airflow_batch_llm.core.ports import Backend

log = logging.getLogger("airflow_batch_llm.waiting")

#: Name of a poller's task.
NAME = "batch-llm-poller"
#: 401 or 403 this many times in a row ends a wait: the key is wrong, not the moment.
AUTH_TRIES = 4
#: Errors that another try should not mend, this many times in a row, end a wait.
ODD_TRIES = 10
#: Who is due within this part of his pause is looked at with those whose turn it is.
_SOON = 0.2
#: Seconds between two looks at least, so that those who come one by one are looked at together; with
#: short intervals it is a part of them.
_APART, _APART_OF_INTERVAL = 5.0, 0.2
#: The same before a look goes on with what it left for want of room.
_APART_GOING_ON = 1.0
#: Log lines in one go: each is work for the event loop.
_LINES_AT_ONCE = 20


@dataclass(eq=False)
class _Wait:
    """One wait of a connection.

    :param running: batches that have not ended.
    :param turn: those of them that are still to be looked at in this turn; empty between turns.
    :param told: code of the trouble that its log names already.
    :param context: of its task; log lines go to that task's log.
    """

    order: WaitOrder
    started: float
    done: asyncio.Future[dict[str, Any]]
    running: set[str]
    next_look: float
    pause: float = 0.0
    ended: int = 0
    turn: set[str] = field(default_factory=set)
    refusals: int = 0
    odd_errors: int = 0
    told: str | None = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def finish(self, status: str, error: Exception | None = None) -> None:
        if not self.done.done():
            self.done.set_result(event_of(status, self.ended, error))

    def end_turn(self, now: float, jitter: float) -> None:
        self.turn = set()
        self.pause = self.order.pause(now - self.started) * jitter
        self.next_look = now + self.pause

    def soon(self, now: float) -> bool:
        """Whether its turn is near enough to be looked at with others."""
        return self.started <= now and self.next_look - _SOON * self.pause <= now

    def trouble(self, looked: Looked) -> Exception | None:
        """Return why batches of this wait could not be looked at; a batch that is gone goes first."""
        errors = [looked.errors[batch_id] for batch_id in sorted(self.running & looked.errors.keys())]
        if looked.failure is not None and self.turn - looked.statuses.keys():
            errors.append(looked.failure)
        return next((error for error in errors if isinstance(error, NotFound)), errors[0] if errors else None)

    def count(self, trouble: Exception) -> None:
        """End the wait where such an error cannot be waited out, or came too often in a row."""
        if isinstance(trouble, NotFound):
            self.finish("gone")
        elif is_refusal(trouble):
            self.refusals += 1
            if self.refusals >= AUTH_TRIES:
                self.finish(_status_of(trouble), trouble)
        elif isinstance(trouble, Refused) or not isinstance(trouble, ProviderError):
            self.odd_errors += 1
            if self.odd_errors >= ODD_TRIES:
                self.finish("error", trouble)


class ConnectionPoller:
    """Looks at the batches of all waits of one connection. Its task lives as long as there are waits.

    :param open_backend: reads the connection and makes a backend.
    :param sleep: waits between looks; replaced in tests, with ``clock``.
    """

    def __init__(
        self,
        key: tuple[asyncio.AbstractEventLoop, str],
        open_backend: Callable[[], Awaitable[Backend]],
        *,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._key = key
        self._open_backend = open_backend
        self._sleep = sleep
        self._clock = clock
        self._waits: set[_Wait] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._looker: Looker | None = None
        self._refusals = 0
        self._no_look_before = 0.0

    # -- those who wait ------------------------------------------------------------------------------
    async def wait(self, order: WaitOrder) -> dict[str, Any]:
        """Return the event that ends the wait. Cancelling it leaves the other waits as they are."""
        now = self._clock()
        started = max(order.first_look_at, now)
        wait = _Wait(
            order, started, self._key[0].create_future(), running=set(order.batches), next_look=started
        )
        self._waits.add(wait)
        self._woken.set()
        if self._task is None:
            self._task = self._key[0].create_task(self._run(), name=NAME, context=_nobodys_context())
        try:
            return await wait.done
        finally:
            self._waits.discard(wait)
            if not self._waits:
                await self._close()

    async def _close(self) -> None:
        _forget(self)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- the task ------------------------------------------------------------------------------------
    async def _run(self) -> None:
        look: asyncio.Task[None] | None = None
        try:
            while True:
                self._woken.clear()
                self._end_what_is_over()
                if look is None and (wanted := self._whose_turn()):
                    look = asyncio.create_task(self._look(wanted))
                await self._rest(look)
                if look is not None and look.done():
                    finished, look = look, None
                    finished.result()
        except Exception as error:
            log.exception("the poller of connection %s failed; its waits end", self._key[1])
            for wait in self._waits:
                wait.finish("error", error)
        finally:
            _forget(self)
            for wait in self._waits:
                wait.done.cancel()
            if look is not None:
                look.cancel()
                await asyncio.wait([look])
            await self._drop_backend()

    async def _rest(self, look: asyncio.Task[None] | None) -> None:
        """Wait until the look is over, or else a time has come; or until somebody comes to wait."""
        until = self._next_bound() if look is not None else self._next_time()
        seconds = None if until is None else max(until - self._clock(), 0.0)
        helpers: list[asyncio.Task[Any]] = [asyncio.create_task(self._woken.wait())]
        if look is None and seconds is not None:
            helpers.append(asyncio.create_task(self._as_task(seconds)))
        try:
            # While a look is under way time is real: a test's clock stands still.
            timeout = seconds if look is not None else None
            tasks = [*helpers, look] if look is not None else helpers
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)

    async def _as_task(self, seconds: float) -> None:
        if seconds > 0:
            await self._sleep(seconds)

    # -- times ---------------------------------------------------------------------------------------
    def _end_what_is_over(self) -> None:
        now = self._clock()
        for wait in self._waits:
            if (status := wait.order.over(now)) is not None:
                wait.finish(status)
        self._waits = {wait for wait in self._waits if not wait.done.done()}

    def _next_bound(self) -> float | None:
        return min((b for wait in self._waits if (b := wait.order.bound()) is not None), default=None)

    def _next_time(self) -> float | None:
        times = [self._next_bound(), *(self._look_time(wait) for wait in self._waits if wait.running)]
        return min((time for time in times if time is not None), default=None)

    def _look_time(self, wait: _Wait) -> float:
        return max(wait.next_look, self._no_look_before)

    def _whose_turn(self) -> set[str]:
        """Return what to look at now: nothing, or all that is due, and due soon."""
        now = self._clock()
        if not any(wait.running and self._look_time(wait) <= now for wait in self._waits):
            return set()
        # Before all waits are ended because of the key, all are looked at.
        everybody = self._refusals >= AUTH_TRIES - 1
        wanted: set[str] = set()
        for wait in self._waits:
            if wait.soon(now) or (everybody and wait.started <= now):
                wait.turn = wait.turn or set(wait.running)
                wanted |= wait.turn
        return wanted

    # -- looks ---------------------------------------------------------------------------------------
    async def _look(self, wanted: set[str]) -> None:
        try:
            self._looker = self._looker or Looker(await self._open_backend())
            looked = await self._looker.look(wanted)
        except Exception as error:
            looked = Looked(failure=error)
        now = self._clock()
        shortest = min((wait.order.interval_min for wait in self._waits), default=0.0)
        apart = _APART_GOING_ON if looked.left else _APART
        self._no_look_before = now + max(looked.retry_after, min(apart, _APART_OF_INTERVAL * shortest))
        news = self._take_in(looked, now)
        await self._note_refusal(looked, now, shortest)
        if any(isinstance(error, NotFound) for error in looked.errors.values()):
            # The connection may name another server or account by now, which has what this one denies.
            await self._drop_backend()
        await self._tell(news)
        if self._looker is not None:
            self._looker.forget({batch_id for wait in self._waits for batch_id in wait.running})

    async def _note_refusal(self, looked: Looked, now: float, shortest: float) -> None:
        """After a 401 read the connection again: the key may have been changed while we waited."""
        refusal = looked.refusal
        if refusal is None:
            self._refusals = 0 if looked.statuses else self._refusals
            return
        self._refusals += 1
        # However many wait: a change of keys gets its time.
        self._no_look_before = max(self._no_look_before, now + shortest * self._refusals * (1 - _SOON))
        await self._drop_backend()
        if self._refusals >= AUTH_TRIES:
            for wait in self._waits:
                if wait.started <= now:
                    wait.finish(_status_of(refusal), refusal)

    def _take_in(self, looked: Looked, now: float) -> list[tuple[_Wait, str | None]]:
        """Let every wait know what was seen; returns whose log is to be told of which code."""
        # The same for all: who was looked at together is due together.
        jitter = random.uniform(1 - _SOON, 1 + _SOON)
        news = []
        for wait in self._waits:
            if wait.started > now or wait.done.done() or not wait.running:
                continue  # who waits for a time only is no look's business
            seen = wait.running & looked.statuses.keys()
            ended = {batch_id for batch_id in seen if looked.statuses[batch_id].terminal}
            wait.running -= ended
            wait.ended += len(ended)
            trouble = wait.trouble(looked)
            had_turn, wait.turn = bool(wait.turn), wait.turn & looked.left
            if not wait.running or (wait.ended and wait.order.more_planned):
                wait.finish("ended")
            elif trouble is not None:
                wait.count(trouble)
                wait.end_turn(now, jitter)
            elif seen or had_turn:
                wait.refusals = wait.odd_errors = 0
                if wait.running <= seen or (had_turn and not wait.turn):
                    wait.end_turn(now, jitter)
            else:
                continue
            code = None if trouble is None else code_of(trouble)
            if code != wait.told and not wait.done.done():
                news.append((wait, code))
        return news

    async def _tell(self, news: list[tuple[_Wait, str | None]]) -> None:
        for number, (wait, code) in enumerate(news, 1):
            wait.told = code
            if code is None:
                wait.context.run(log.info, "%d batches can be looked at again", len(wait.running))
            else:
                wait.context.run(
                    log.warning, "a look at %d batches failed (%s); trying again", len(wait.running), code
                )
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _drop_backend(self) -> None:
        looker, self._looker = self._looker, None
        if looker is not None:
            await looker.backend.aclose()


def _nobodys_context() -> contextvars.Context:
    """Return this task's context without what puts log lines into its own log."""
    context = contextvars.copy_context()

    def clear() -> None:
        for variable in context:
            if variable.name.startswith("structlog_"):
                variable.set(...)  # structlog's own sign for "not set"

    context.run(clear)
    return context


def _status_of(refusal: Exception) -> str:
    return "auth" if isinstance(refusal, AuthError) else "account"


# -- who polls for whom ------------------------------------------------------------------------------
_pollers: dict[tuple[asyncio.AbstractEventLoop, str], ConnectionPoller] = {}


def poller_of(
    conn_id: str,
    open_backend: Callable[[], Awaitable[Backend]],
    *,
    sleep: Callable[[float], Awaitable[None]],
    clock: Callable[[], float],
) -> ConnectionPoller:
    """Return the running loop's poller of the connection; wait with it at once, or it is never closed."""
    key = (asyncio.get_running_loop(), conn_id)
    for old in [old for old in _pollers if old[0].is_closed()]:
        _pollers.pop(old, None)  # of a loop that was closed in the middle
    if key not in _pollers:
        _pollers[key] = ConnectionPoller(key, open_backend, sleep=sleep, clock=clock)
    return _pollers[key]


def _forget(poller: ConnectionPoller) -> None:
    if _pollers.get(poller._key) is poller:
        del _pollers[poller._key]
