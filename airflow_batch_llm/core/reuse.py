"""Reuse: an answer that was bought for the same request is not bought again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from airflow_batch_llm.exceptions import ConfigurationError


class Scope(StrEnum):
    """Where an answer may come from: ``job`` (this job only), ``task`` (earlier runs of the same task),
    ``connection`` (any task that sends with the same connection)."""

    JOB = "job"
    TASK = "task"
    CONNECTION = "connection"


@dataclass(frozen=True)
class Reuse:
    """Which answers are taken in place of sending a request.

    Identical requests inside a job are sent once, whatever the scope.

    :param scope: ``job``, ``task`` or ``connection``.
    :param max_age: older answers are bought again; None for no bound.
    :param version: part of what makes requests the same: another one buys everything again.
    :raises ConfigurationError: an unknown scope, or an age that is not positive.
    """

    scope: str = Scope.TASK
    max_age: timedelta | None = None
    version: str = ""

    def __post_init__(self) -> None:
        if self.scope not in set(Scope):
            raise ConfigurationError(f"Reuse: scope is {self.scope!r}; it can be {', '.join(Scope)}")
        if self.max_age is not None and (
            not isinstance(self.max_age, timedelta) or self.max_age <= timedelta(0)
        ):
            raise ConfigurationError("Reuse: max_age must be a timedelta above zero")
        if not isinstance(self.version, str):
            raise ConfigurationError(f"Reuse: version must be text, not {type(self.version).__name__}")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as plain JSON types (``max_age`` in seconds)."""
        return {
            "scope": str(self.scope),
            "max_age": self.max_age.total_seconds() if self.max_age is not None else None,
            "version": self.version,
        }
