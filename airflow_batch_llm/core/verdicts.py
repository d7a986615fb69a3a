"""What a row says (verdict) and what is done about it (disposition)."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What one result row says about its request. Every provider's codes are mapped into these."""

    OK = "ok"
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    REFUSED = "refused"
    EMPTY = "empty"
    INVALID_OUTPUT = "invalid_output"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    MISSING = "missing"
    ACCOUNT = "account"
    UNKNOWN = "unknown"


class Disposition(StrEnum):
    """What is done about a verdict.

    ``retry`` charges the row an attempt, ``retry_free`` does not, ``retry_changed`` charges one and
    sends a changed request (larger ``max_tokens``, other model), ``halt`` leaves the row pending and
    stops the job for a person.
    """

    LAND = "land"
    RETRY = "retry"
    RETRY_FREE = "retry_free"
    RETRY_CHANGED = "retry_changed"
    DEAD = "dead"
    HALT = "halt"


#: The default policy: one place, read by the engine, the docs and ``RowRetry``.
DEFAULT_DISPOSITIONS: dict[Verdict, Disposition] = {
    Verdict.OK: Disposition.LAND,
    Verdict.TRUNCATED: Disposition.RETRY_CHANGED,
    Verdict.FILTERED: Disposition.DEAD,
    Verdict.REFUSED: Disposition.DEAD,
    Verdict.EMPTY: Disposition.RETRY,
    Verdict.INVALID_OUTPUT: Disposition.RETRY,
    Verdict.BAD_REQUEST: Disposition.DEAD,
    Verdict.TOO_LARGE: Disposition.DEAD,
    Verdict.RATE_LIMITED: Disposition.RETRY,
    Verdict.SERVER_ERROR: Disposition.RETRY,
    Verdict.TIMEOUT: Disposition.RETRY,
    Verdict.EXPIRED: Disposition.RETRY_FREE,
    Verdict.CANCELLED: Disposition.RETRY_FREE,
    Verdict.MISSING: Disposition.RETRY,
    Verdict.ACCOUNT: Disposition.HALT,
    Verdict.UNKNOWN: Disposition.DEAD,
}

#: Verdicts whose cause lies in the answer, not in the transport: another model or a larger limit may help.
ANSWER_FAULTS = frozenset({Verdict.TRUNCATED, Verdict.EMPTY, Verdict.INVALID_OUTPUT})
