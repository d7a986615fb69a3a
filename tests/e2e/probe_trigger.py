"""A trigger for proving the stack: it waits for a file, so that a test decides when it fires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

#: Seconds before the first look: on Airflow 3.3 a trigger that fires 2 to 5 s after the defer may
#: fail its task.
FIRST_LOOK = 6.0


class FileTrigger(BaseTrigger):
    """Fires when ``path`` exists.

    :param path: the awaited file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.e2e.probe_trigger.FileTrigger", {"path": self.path}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(FIRST_LOOK)
        while not await asyncio.to_thread(Path(self.path).exists):
            await asyncio.sleep(0.2)
        yield TriggerEvent({"path": self.path})
