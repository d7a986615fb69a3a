"""The waiting itself: the trigger and the blocking mode both wait here.

It only reads, so two copies may run and any copy may start over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.triggers.order import WaitOrder
from airflow_batch_llm.triggers.poller import poller_of

if TYPE_CHECKING:
    from airflow_batch_llm.core.ports import Backend

__all__ = ["WaitOrder", "wait"]


async def wait(
    order: WaitOrder,
    conn_id: str,
    open_backend: Callable[[], Awaitable[Backend]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Wait and return a small event: ``{"status": …, "ended": n}`` and a ``code`` for errors.

    Status: ``ended`` (all batches, or one while others are planned), ``due`` (``not_before`` came),
    ``deadline``, ``gone`` (the provider answers 404: the engine looks again), ``auth``, ``account`` and
    ``error`` (the wait was given up; the engine meets the same error and raises it).

    All waits of a connection in one event loop share one client and its looks; ``sleep`` and ``clock``
    are those of the first one.

    :param conn_id: what the waits are shared by.
    :param open_backend: reads the connection and makes a backend; called at the first look and after a
        401, not by every wait.
    """
    return await poller_of(conn_id, open_backend, sleep=sleep, clock=clock).wait(order)
