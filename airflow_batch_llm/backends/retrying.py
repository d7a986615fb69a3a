"""When a call that is safe to repeat is repeated, and how long is waited before.

The rule of the vendors' own clients: 408, 409, 429, 5xx and transport faults; ``x-should-retry`` wins;
the server's own delay is obeyed if it fits the budget, else the caller gets it to wait elsewhere.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from airflow_batch_llm.exceptions import ProviderError

T = TypeVar("T")

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 8.0
#: Most seconds that a server's own delay is taken for: more is a fault of theirs, and may fit no calendar.
LONGEST_WAIT = 86_400.0


class Again(Exception):
    """A failed attempt that may be repeated. ``delay`` is what the server asked for, in seconds."""

    def __init__(self, error: ProviderError, delay: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.delay = delay


class SafeRetry:
    """Repeats an attempt that raises :class:`Again`.

    :param retries: tries after the first.
    :param budget: seconds that may be spent waiting between the tries of one call, all in all.
    :param sleep: waits; replaced in tests.
    """

    def __init__(
        self,
        *,
        retries: int = 2,
        budget: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._retries = retries
        self._budget = budget
        self._sleep = sleep

    async def pause(self, seconds: float) -> None:
        """Wait between two looks at the same thing, not longer than may be waited at all."""
        await self._sleep(min(seconds, self._budget))

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what ``attempt`` returns in the end, or raise the last :class:`Again`'s error."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Again),
            wait=_delay,
            stop=self._enough,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except Again as e:
            raise e.error from e.__cause__

    def _enough(self, state: RetryCallState) -> bool:
        waited = state.idle_for + state.upcoming_sleep
        return state.attempt_number > self._retries or waited > self._budget


def _delay(state: RetryCallState) -> float:
    failure = state.outcome.exception() if state.outcome else None
    if isinstance(failure, Again) and failure.delay is not None:
        return failure.delay
    longest = min(_FIRST_DELAY * 2.0 ** (state.attempt_number - 1), _LONGEST_DELAY)
    return longest * (1 - 0.25 * random.random())


def retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds a server asks to wait, None where it names none or something unreadable.

    ``retry-after-ms`` goes first, then ``Retry-After`` in seconds or as an HTTP date (never below 0, never
    above a day).
    """
    asked = _asked_delay(headers)
    return min(asked, LONGEST_WAIT) if asked is not None else None


def _asked_delay(headers: httpx.Headers) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


def should_retry(status: int, headers: httpx.Headers) -> bool:
    """Say whether a reply invites another try of a safe call."""
    said = str(headers.get("x-should-retry", "")).strip().lower()
    if said in ("true", "false"):
        return said == "true"
    return status in (408, 409, 429) or status >= 500


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
