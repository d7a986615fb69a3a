"""Which rows are sent again, how often, and with what changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_batch_llm.core.model import Attempt
from airflow_batch_llm.core.verdicts import ANSWER_FAULTS, DEFAULT_DISPOSITIONS, Disposition, Verdict
from airflow_batch_llm.exceptions import ConfigurationError


@dataclass(frozen=True)
class RowRetry:
    """What is done with rows that have no answer after a round.

    :param max_rounds: how often a row may be sent again at its own charge (after round 0).
    :param max_free_rounds: how often a row may be sent again because of a fault of the batch
        (expired, cancelled by us, failed as a whole), which charges the row nothing.
    :param delay: seconds to wait before a retry round is sent.
    :param escalate_to: model that retry rounds ask for rows whose *answer* was at fault
        (empty, not fitting the schema, truncated without a ``max_tokens`` to raise).
    :param max_tokens_factor: what ``max_tokens`` is multiplied by for truncated rows; below or at 1
        truncated rows die at once.
    :param dispositions: verdict -> disposition where the default table does not fit.
    :raises ConfigurationError: an unknown verdict or disposition, a negative number, or a disposition
        that would send a truncated row again unchanged.
    """

    max_rounds: int = 3
    max_free_rounds: int = 20
    delay: float = 0.0
    escalate_to: str | None = None
    max_tokens_factor: float = 2.0
    dispositions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_rounds < 0 or self.max_free_rounds < 0 or self.delay < 0:
            raise ConfigurationError("RowRetry: max_rounds, max_free_rounds and delay must not be negative")
        for verdict, disposition in self.dispositions.items():
            if verdict not in set(Verdict) or disposition not in set(Disposition):
                raise ConfigurationError(
                    f"RowRetry: dispositions has {verdict!r}: {disposition!r}; verdicts are "
                    f"{', '.join(Verdict)}; dispositions are {', '.join(Disposition)}"
                )
            if (verdict == Verdict.OK) != (disposition == Disposition.LAND):
                raise ConfigurationError("RowRetry: 'ok' rows land, and only they")
            if verdict == Verdict.TRUNCATED and disposition in (Disposition.RETRY, Disposition.RETRY_FREE):
                raise ConfigurationError("RowRetry: a truncated row is sent again changed or not at all")

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"RowRetry({', '.join(f'{k}={v!r}' for k, v in self.serialize().items())})"

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as plain JSON types, in a fixed order."""
        return {
            "max_rounds": self.max_rounds,
            "max_free_rounds": self.max_free_rounds,
            "delay": self.delay,
            "escalate_to": self.escalate_to,
            "max_tokens_factor": self.max_tokens_factor,
            "dispositions": dict(sorted((str(k), str(v)) for k, v in self.dispositions.items())),
        }

    def wanted(self, verdict: Verdict) -> Disposition:
        """Return the disposition before any count is looked at."""
        given = self.dispositions.get(verdict)
        return Disposition(given) if given is not None else DEFAULT_DISPOSITIONS[verdict]

    def decide(
        self, verdict: Verdict, *, charged: int, free: int, changeable: bool
    ) -> tuple[Disposition, bool]:
        """Return the disposition of an attempt and whether it is dead only by exhaustion.

        :param charged: attempts charged to the row before this one.
        :param free: attempts before this one that were not charged.
        :param changeable: whether :meth:`change` could change the request.
        """
        wanted = self.wanted(verdict)
        if wanted is Disposition.RETRY_CHANGED and not changeable:
            return Disposition.DEAD, False
        if wanted in (Disposition.RETRY, Disposition.RETRY_CHANGED) and charged >= self.max_rounds:
            return Disposition.DEAD, True
        if wanted is Disposition.RETRY_FREE and free >= self.max_free_rounds:
            return Disposition.DEAD, True
        return wanted, False

    def change(
        self, verdict: Verdict, *, model: str, params: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return model and overrides for the next attempt of a row with this verdict.

        What an earlier round changed stays changed.

        :param params: the template's params; ``max_tokens`` is what can be raised.
        :param overrides: what this batch had changed already.
        """
        changed = dict(overrides)
        limit = overrides.get("max_tokens", params.get("max_tokens"))
        if verdict is Verdict.TRUNCATED and isinstance(limit, int) and self.max_tokens_factor > 1:
            changed["max_tokens"] = max(limit + 1, int(limit * self.max_tokens_factor))
            return model, changed
        if verdict in ANSWER_FAULTS and self.escalate_to:
            return self.escalate_to, changed
        return model, changed

    def changeable(
        self, verdict: Verdict, *, model: str, params: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> bool:
        """Say whether :meth:`change` makes a difference for this verdict."""
        return self.change(verdict, model=model, params=params, overrides=overrides) != (
            model,
            dict(overrides),
        )


def attempts_used(history: tuple[Attempt, ...], *, revision: int, since_round: int) -> tuple[int, int]:
    """Count (charged, free) attempts that use up the present allowance.

    A clear (new revision) and a re-drive (``since_round``) give a new allowance; what was before
    stays in the history.
    """
    charged = free = 0
    for attempt in history:
        if attempt.revision == revision and attempt.round >= since_round:
            if attempt.charged:
                charged += 1
            else:
                free += 1
    return charged, free
