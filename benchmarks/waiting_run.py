"""The measured process of ``waiting``: one event loop, and in it a trigger for each batch.

Batch ids come in on standard input; lines go out: ``ready`` and ``done`` around the time that is measured,
then one of JSON with what was found.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from benchmarks.processes import peak_mb

#: A timer of so many seconds tells by how late it fires how long the loop was busy.
_TICK = 0.02
_IDLE_SECONDS = 20.0


async def measure(seconds: float) -> dict[str, float]:
    """Return CPU per cent of one core and the loop's lag in milliseconds, over so many seconds."""
    loop, lags = asyncio.get_running_loop(), []
    cpu, began = time.process_time(), time.monotonic()
    while time.monotonic() < began + seconds:
        due = loop.time() + _TICK
        await asyncio.sleep(_TICK)
        lags.append(1000 * (loop.time() - due))
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    lags.sort()
    return {"cpu": 100 * cpu / took, "lag_p99": lags[int(len(lags) * 0.99)], "lag_max": lags[-1]}


def ours(batch_ids: list[str], interval: float) -> list[Any]:
    """Return a trigger a batch; their first looks come at any time of the first interval."""
    from airflow_batch_llm.triggers.batches import BatchLLMTrigger

    now = time.time()
    return [
        BatchLLMTrigger(
            conn_id="llm_batch",
            batches=[batch_id],
            first_look_at=now + random.uniform(0, interval),
            interval_min=interval,
            interval_max=interval,
            deadline=now + 86_400,
        )
        for batch_id in batch_ids
    ]


def common_ai(batch_ids: list[str], interval: float) -> list[Any]:
    """Return the trigger of the other package for each batch."""
    from airflow.providers.common.ai.triggers.llm_batch import LLMBatchTrigger

    return [
        LLMBatchTrigger(
            llm_conn_id="common_ai",
            adapter="openai",
            batch_id=batch_id,
            poll_interval=int(interval),
            end_time=time.time() + 86_400,
            cancel_on_kill=False,
            cancel_on_timeout=False,
        )
        for batch_id in batch_ids
    ]


#: Whose triggers -> (what makes them, whether they begin by themselves at different times).
KINDS: dict[str, tuple[Callable[[list[str], float], list[Any]], bool]] = {
    "ours": (ours, True),
    "common-ai": (common_ai, False),
}


async def main(kind: str, interval: float, seconds: float, batch_ids: list[str]) -> None:
    """Measure and print."""
    make, spread_out = KINDS[kind]
    triggers = make(batch_ids, interval)
    idle = await measure(_IDLE_SECONDS)

    async def event_of(events: AsyncIterator[Any], delay: float) -> Any:
        await asyncio.sleep(delay)
        async for event in events:
            return event.payload

    waits = [
        asyncio.create_task(event_of(trigger.run(), 0.0 if spread_out else random.uniform(0, interval)))
        for trigger in triggers
    ]
    await asyncio.sleep(3 * interval)
    print("ready", flush=True)
    found = await measure(seconds)
    print("done", flush=True)
    statuses = Counter(payload["status"] for payload in await asyncio.gather(*waits))
    alone = {f"idle_{name}": value for name, value in idle.items()}
    print(json.dumps({**found, **alone, "statuses": statuses, "peak": peak_mb()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), json.load(sys.stdin)))
