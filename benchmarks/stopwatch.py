"""Seconds and memory of the phases of a process, taken from inside."""

from __future__ import annotations

import functools
import inspect
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.processes import forget_peak, peak_mb

#: What is none of the phases.
OTHER = "other"


class Stopwatch:
    """Seconds and VmHWM by phase; what runs inside another phase counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.peaks: dict[str, float] = defaultdict(float)
        self._stack: list[tuple[str, float]] = []

    def times(self, owner: Any, name: str, phase: str) -> None:
        """Replace a function or method of ``owner`` by one that is timed and weighed as ``phase``."""
        setattr(owner, name, self._timed(getattr(owner, name), phase))

    def weigh(self) -> None:
        """Count the peak since the last call for the phase that is on now."""
        phase = self._stack[-1][0] if self._stack else OTHER
        self.peaks[phase] = max(self.peaks[phase], peak_mb())
        forget_peak()

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_call(*args: Any, **kwargs: Any) -> Any:
                began = self._begin(phase)
                try:
                    return await function(*args, **kwargs)
                finally:
                    self._end(phase, began)

            return timed_call

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self._begin(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._end(phase, began)

        return timed

    def _begin(self, phase: str) -> float:
        self.weigh()
        self._stack.append((phase, 0.0))
        return time.perf_counter()

    def _end(self, phase: str, began: float) -> None:
        self.weigh()
        spent = time.perf_counter() - began
        self.seconds[phase] += spent - self._stack.pop()[1]
        if self._stack:
            outer, inner = self._stack.pop()
            self._stack.append((outer, inner + spent))
