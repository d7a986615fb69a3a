"""The waiting itself: looks at batches, from time to time, until calling the engine again is worth it.

The trigger and the blocking mode both wait here. It only reads, so two copies may run and any copy
may start over.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    BatchLLMError,
    NotFound,
    ProviderError,
    RateLimited,
)

if TYPE_CHECKING:
    from airflow_batch_llm.core.ports import Backend

log = logging.getLogger("airflow_batch_llm.waiting")

#: 401 or 403 this many times in a row ends the wait: the key is wrong, not the moment.
AUTH_TRIES = 4
#: Errors of our own (not the provider's) this many times in a row end the wait.
ODD_TRIES = 10
_GROWTH = 1.5
#: Up to this many batches are looked at one by one; more are looked up in a list.
_SINGLE_LOOKS = 3


@dataclass(frozen=True)
class WaitOrder:
    """What is waited for. All times are seconds since the epoch by this machine's clock.

    :param batches: provider batch ids.
    :param more_planned: further batches wait to be sent: one that ended is worth a call.
    :param not_before: when something can be sent or looked up again, None if nothing is.
    :param deadline: when waiting ends in any case, None for no bound.
    :param first_look_at: no look before; an Airflow 3.3 bug fails tasks whose trigger fires a few
        seconds after the defer.
    :param interval_min: first pause between looks, in seconds; grows to ``interval_max``.
    """

    batches: tuple[str, ...]
    more_planned: bool = False
    not_before: float | None = None
    deadline: float | None = None
    first_look_at: float = 0.0
    interval_min: float = 15.0
    interval_max: float = 300.0


@dataclass
class _Look:
    """What the looks so far came to."""

    running: set[str]
    ended: int = 0
    pause: float = 0.0
    auth_failures: int = 0
    odd_failures: int = 0
    extra_pause: float = 0.0
    codes: list[str] = field(default_factory=list)


async def wait(
    order: WaitOrder,
    open_backend: Callable[[], Awaitable[Backend]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Wait and return a small event: ``{"status": …, "ended": n}`` and a ``code`` for errors.

    Status: ``ended`` (all batches, or one while others are planned), ``due`` (``not_before`` came),
    ``deadline``, ``gone`` (the provider answers 404: the engine looks again), ``auth``, ``account`` and
    ``error`` (the wait was given up; the engine meets the same error and raises it).

    :param open_backend: reads the connection again; called at the start and after a 401.
    """
    look = _Look(set(order.batches), pause=order.interval_min)
    backend: Backend | None = None
    await _sleep_until(order.first_look_at, order, sleep, clock)
    try:
        while True:
            if order.deadline is not None and clock() >= order.deadline:
                return _event("deadline", look)
            if order.not_before is not None and clock() >= order.not_before:
                return _event("due", look)
            if look.running:
                try:
                    backend = backend or await open_backend()
                    await _look(backend, look)
                    look.auth_failures = look.odd_failures = 0
                except NotFound:
                    return _event("gone", look)
                except (AuthError, AccountError) as error:
                    look.auth_failures += 1
                    if look.auth_failures >= AUTH_TRIES:
                        return _event("auth" if isinstance(error, AuthError) else "account", look, error)
                    if backend is not None:
                        await backend.aclose()
                    backend = None
                except ProviderError as error:
                    look.extra_pause = error.retry_after or 0.0 if isinstance(error, RateLimited) else 0.0
                    log.warning(
                        "a look at %d batches failed (%s); trying again", len(look.running), error.code
                    )
                except Exception as error:
                    look.odd_failures += 1
                    log.warning("a look at %d batches failed: %s", len(look.running), type(error).__name__)
                    if look.odd_failures >= ODD_TRIES:
                        return _event("error", look, error)
                if not look.running or (look.ended and order.more_planned):
                    return _event("ended", look)
            elif order.not_before is None:
                return _event("due", look)
            pause = max(look.pause * random.uniform(0.8, 1.2), look.extra_pause)
            look.extra_pause = 0.0
            look.pause = min(look.pause * _GROWTH, order.interval_max)
            await _sleep_until(clock() + pause, order, sleep, clock)
    finally:
        if backend is not None:
            await backend.aclose()


async def _look(backend: Backend, look: _Look) -> None:
    """Take ended batches out of ``look.running``."""
    if len(look.running) > _SINGLE_LOOKS:
        missing = set(look.running)

        def seen_all(remote: Any) -> bool:
            missing.discard(remote.id)
            return not missing

        for remote in await backend.list_recent(stop_at=seen_all):
            if remote.id in look.running and remote.status.terminal:
                look.running.discard(remote.id)
                look.ended += 1
        singles = missing
    else:
        singles = set(look.running)
    for batch_id in sorted(singles):
        remote = await backend.retrieve(batch_id)
        if remote.status.terminal:
            look.running.discard(batch_id)
            look.ended += 1


async def _sleep_until(
    until: float, order: WaitOrder, sleep: Callable[[float], Awaitable[None]], clock: Callable[[], float]
) -> None:
    """Sleep to ``until``, or only to ``not_before`` or the deadline if that is sooner (never before the
    first look)."""
    for bound in (order.not_before, order.deadline):
        if bound is not None:
            until = min(until, max(bound, order.first_look_at))
    if (pause := until - clock()) > 0:
        await sleep(pause)


def _event(status: str, look: _Look, error: Exception | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"version": 1, "status": status, "ended": look.ended}
    if error is not None:
        event["code"] = error.code if isinstance(error, BatchLLMError) else type(error).__name__
    return event
