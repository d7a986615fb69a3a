"""What a task waits for, as plain values, and the event that ends the wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.exceptions import BatchLLMError


@dataclass(frozen=True)
class WaitOrder:
    """What is waited for. All times are seconds since the epoch by this machine's clock.

    :param batches: provider batch ids.
    :param more_planned: further batches wait to be sent: one that ended is worth a call.
    :param not_before: when something can be sent or looked up again, None if nothing is.
    :param deadline: when waiting ends in any case, None for no bound.
    :param first_look_at: no look and no event before; an Airflow 3.3 bug fails tasks whose trigger fires
        a few seconds after the defer.
    :param interval_min: first pause between looks, in seconds; grows to ``interval_max``.
    """

    batches: tuple[str, ...]
    more_planned: bool = False
    not_before: float | None = None
    deadline: float | None = None
    first_look_at: float = 0.0
    interval_min: float = 15.0
    interval_max: float = 300.0

    def pause(self, waited: float) -> float:
        """Return the pause to the next look, seconds: a third of what was waited so far, within bounds."""
        return min(max(waited / 3, self.interval_min), max(self.interval_max, self.interval_min))

    def over(self, now: float) -> str | None:
        """Return the status of the event that is due whatever the batches do, None before that."""
        if now < self.first_look_at:
            return None
        if self.deadline is not None and now >= self.deadline:
            return "deadline"
        if self.not_before is not None and now >= self.not_before:
            return "due"
        return "due" if not self.batches and self.not_before is None else None

    def bound(self) -> float | None:
        """Return when :meth:`over` will say so at the latest, None for never."""
        bounds = [bound for bound in (self.not_before, self.deadline) if bound is not None]
        if not self.batches and self.not_before is None:
            bounds.append(self.first_look_at)
        return max(min(bounds), self.first_look_at) if bounds else None


def event_of(status: str, ended: int, error: Exception | None = None) -> dict[str, Any]:
    """Return the event of a wait: ``status``, how many batches ``ended``, and the ``code`` of an error."""
    event: dict[str, Any] = {"version": 1, "status": status, "ended": ended}
    if error is not None:
        event["code"] = code_of(error)
    return event


def code_of(error: Exception) -> str:
    """Name an error without its text: our code, or the class of what is not ours."""
    return error.code if isinstance(error, BatchLLMError) else type(error).__name__
