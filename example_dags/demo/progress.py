"""Lines about what goes on, written only when something has changed."""

from __future__ import annotations

import time
from typing import Any

from example_dags.demo.batch_server import BatchServer
from example_dags.demo.rest import AirflowClient

_QUIET = ("completed", "failed", "expired", "cancelled")


class Progress:
    """Prints lines with the seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""
        self._tasks: dict[str, None] = {}

    def say(self, text: str) -> None:
        """Print a line, unless it says the same as the one before."""
        if text != self._last:
            print(f"[{time.monotonic() - self._start:4.0f} s] {text}", flush=True)
            self._last = text

    def watch(self, client: AirflowClient, server: BatchServer, dag_id: str, run_id: str) -> None:
        """Print the states of a run's tasks and of the server's batches."""
        states = client.task_states(dag_id, run_id)
        # Before anything runs they come in the order of the DAG, later in that of their starts.
        self._tasks.update(dict.fromkeys(states))
        tasks = ", ".join(
            f"{name.rpartition('.')[2]} {states[name] or '-'}" for name in self._tasks if name in states
        )
        batches = server.batches()
        done = sum(batch["status"] in _QUIET for batch in batches)
        running = [
            f"{_rows(batch)} rows {batch['status']}" for batch in batches if batch["status"] not in _QUIET
        ]
        self.say(f"{tasks} | batches: {', '.join([f'{done} ended', *running])}")


def _rows(batch: dict[str, Any]) -> str:
    counts = batch["request_counts"]
    return f"{counts['completed'] + counts['failed']}/{counts['total']}"
