"""Which kind of process Airflow takes this one for, where it cannot know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PROCESS_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


@contextmanager
def outside_of_tasks() -> Iterator[None]:
    """Let connections be looked up as ``airflow connections`` does, Airflow's own database included.

    Without it Airflow takes an unknown process for a worker's supervisor and knows only connections from
    the environment and from secrets backends. In a process that Airflow started this changes nothing.
    """
    before = os.environ.get(_PROCESS_CONTEXT)
    os.environ[_PROCESS_CONTEXT] = before or "server"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PROCESS_CONTEXT]
