"""Which rows are sent again, how often, and with what changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_batch_llm.core.model import Attempt
from airflow_batch_llm.core.verdicts import (
    ANSWER_FAULTS,
    CODE_DISPOSITIONS,
    DEFAULT_DISPOSITIONS,
    ROW_FAULTS,
    Disposition,
    Verdict,
)
from airflow_batch_llm.exceptions import ConfigurationError

#: Begins the names of error codes in ``RowRetry.dispositions``.
CODE = "code:"
_CODE = re.compile(r"[a-z0-9_.-]{1,64}")
_AT_OWN_CHARGE = (Disposition.RETRY, Disposition.RETRY_CHANGED)


@dataclass(frozen=True)
class RowRetry:
    """What is done with rows that have no answer after a round.

    :param max_rounds: how often a row may be sent again at its own charge (after round 0).
    :param max_free_rounds: how often a row may be sent again because of a fault of the batch
        (expired, cancelled by us, failed as a whole), which charges the row nothing.
    :param delay: seconds to wait before a retry round is sent.
    :param escalate_to: model that retry rounds ask for rows whose *answer* was at fault
        (empty, not fitting the schema, truncated without a ``max_tokens`` to raise), and for all that
        ``dispositions`` says ``retry_changed`` of.
    :param max_tokens_factor: what ``max_tokens`` is multiplied by for truncated rows; below or at 1
        truncated rows go to ``escalate_to`` or die at once.
    :param dispositions: verdict -> disposition, or ``code:<error code>`` -> disposition, where the default
        table does not fit; a code goes before its verdict.
    :raises ConfigurationError: an unknown verdict or disposition, a negative number, or a disposition that
        its verdict cannot have.
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
        for name, disposition in self.dispositions.items():
            self._check(name, disposition)
        lowered = {n.lower() if n.startswith(CODE) else n: d for n, d in self.dispositions.items()}
        object.__setattr__(self, "dispositions", lowered)

    def _check(self, name: str, disposition: str) -> None:
        """See that an override can be followed."""
        is_code = isinstance(name, str) and name.startswith(CODE)
        known = bool(_CODE.fullmatch(name[len(CODE) :].lower())) if is_code else name in set(Verdict)
        if not known or disposition not in set(Disposition):
            raise ConfigurationError(
                f"RowRetry: dispositions has {name!r}: {disposition!r}; verdicts are {', '.join(Verdict)}; "
                f"codes are written {CODE}rate_limit_exceeded; dispositions are {', '.join(Disposition)}"
            )
        if (name == Verdict.OK) != (disposition == Disposition.LAND):
            raise ConfigurationError("RowRetry: 'ok' rows land, and only they")
        if name == Verdict.TRUNCATED and disposition in (Disposition.RETRY, Disposition.RETRY_FREE):
            raise ConfigurationError("RowRetry: a truncated row is sent again changed or not at all")
        if name in ROW_FAULTS and disposition == Disposition.RETRY_FREE:
            raise ConfigurationError(
                f"RowRetry: a row that is {name!r} is at fault itself and is charged each attempt; "
                "say 'retry' or 'retry_changed'"
            )
        if disposition == Disposition.HALT and not is_code and name != Verdict.ACCOUNT:
            raise ConfigurationError(
                f"RowRetry: {name!r} cannot be 'halt': a job halts for faults of the account; name the error "
                f"code that is one ({CODE}...: halt), or let the rows be 'dead' and re-drive them"
            )
        if disposition == Disposition.RETRY_CHANGED and name != Verdict.TRUNCATED and not self.escalate_to:
            raise ConfigurationError(
                f"RowRetry: {name!r} cannot be {str(disposition)!r} without escalate_to: nothing else about "
                "such a row can be changed"
            )

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

    def wanted(self, verdict: Verdict, code: str = "") -> Disposition:
        """Return the disposition before any count is looked at.

        A code may come with any verdict. What no verdict of its kind can have becomes the nearest that
        it can: a truncated row is never sent again unchanged, a row at fault never free of charge.
        """
        given = (
            self.dispositions.get(CODE + code.lower())
            or CODE_DISPOSITIONS.get((verdict, code))
            or self.dispositions.get(verdict)
        )
        wanted = Disposition(given) if given is not None else DEFAULT_DISPOSITIONS[verdict]
        if verdict is Verdict.TRUNCATED and wanted in (Disposition.RETRY, Disposition.RETRY_FREE):
            return Disposition.RETRY_CHANGED
        if verdict in ROW_FAULTS and wanted is Disposition.RETRY_FREE:
            return Disposition.RETRY
        return wanted

    def decide(
        self, verdict: Verdict, code: str = "", *, charged: int, free: int, changeable: bool
    ) -> tuple[Disposition, bool]:
        """Return the disposition of an attempt and whether it is dead only by exhaustion.

        :param code: the row's error code.
        :param charged: attempts charged to the row before this one.
        :param free: attempts before this one that were not charged.
        :param changeable: whether :meth:`change` could change the request.
        """
        wanted = self.wanted(verdict, code)
        if wanted is Disposition.RETRY_CHANGED and not changeable:
            return Disposition.DEAD, False
        if wanted in _AT_OWN_CHARGE and charged >= self.max_rounds:
            return Disposition.DEAD, True
        if wanted is Disposition.RETRY_FREE and free >= self.max_free_rounds:
            return Disposition.DEAD, True
        return wanted, False

    def change(
        self,
        verdict: Verdict,
        code: str = "",
        *,
        model: str,
        params: Mapping[str, Any],
        overrides: Mapping[str, Any],
    ) -> tuple[str, dict[str, Any]]:
        """Return model and overrides for the next attempt of a row with this verdict and code.

        What an earlier round changed stays changed.

        :param params: the template's params; ``max_tokens`` is what can be raised.
        :param overrides: what this batch had changed already.
        """
        changed = dict(overrides)
        limit = overrides.get("max_tokens", params.get("max_tokens"))
        if verdict is Verdict.TRUNCATED and isinstance(limit, int) and self.max_tokens_factor > 1:
            changed["max_tokens"] = self.raised(limit)
            return model, changed
        asks_other = verdict in ANSWER_FAULTS or self.wanted(verdict, code) is Disposition.RETRY_CHANGED
        if asks_other and self.escalate_to:
            return self.escalate_to, changed
        return model, changed

    def raised(self, limit: int) -> int:
        """Return the output limit, in tokens, after one that cut an answer off."""
        return max(limit + 1, int(limit * self.max_tokens_factor))

    def changeable(
        self,
        verdict: Verdict,
        code: str = "",
        *,
        model: str,
        params: Mapping[str, Any],
        overrides: Mapping[str, Any],
    ) -> bool:
        """Say whether :meth:`change` makes a difference for this verdict and code."""
        return self.change(verdict, code, model=model, params=params, overrides=overrides) != (
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
