"""Processes that die at a named point: forked from the test, killed with SIGKILL by themselves."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import airflow_batch_llm.core

_CORE = Path(airflow_batch_llm.core.__path__[0])


def fault_points() -> list[str]:
    """Return the names of all fault points of the engine, as its source has them."""
    names = [
        name for path in _CORE.glob("*.py") for name in re.findall(r'\.fault\("([^"]+)"\)', path.read_text())
    ]
    return sorted(names)


def die_at(point: str, *, time: int = 1) -> Callable[[str], None]:
    """Return a fault callback that kills its process where ``point`` is met for the ``time``-th time."""
    met: Counter[str] = Counter()

    def fault(name: str) -> None:
        met[name] += 1
        if name == point and met[name] == time:
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def die_at_new_points(deaths: Path) -> Callable[[str], None]:
    """Kill this process at the first fault point that is not in the file yet, and note it there."""
    deaths.touch()

    def fault(name: str) -> None:
        if name not in deaths.read_text().split():
            with deaths.open("a") as file:
                file.write(f"{name}\n")
            die_at(name)(name)

    return fault


def was_killed(action: Callable[[], object]) -> bool:
    """Run ``action`` in a process of its own; say whether that was killed with SIGKILL.

    :raises AssertionError: it ended with an exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        assert os.WTERMSIG(ended) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(ended) == 0, "the process ended with an exception"
    return False
