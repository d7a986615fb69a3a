"""What a row says (verdict) and what is done about it (disposition)."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a verdict means.

    :param disposition: what is done by default.
    :param says: what the row says, for people.
    :param why: why that is done about it, for people.
    """

    disposition: Disposition
    says: str
    why: str


#: The default policy: one place, read by the engine, the docs and ``RowRetry``.
MEANINGS: dict[Verdict, Meaning] = {
    Verdict.OK: Meaning(
        Disposition.LAND,
        "an answer, and it fits the output schema where there is one",
        "it is what was asked for",
    ),
    Verdict.TRUNCATED: Meaning(
        Disposition.RETRY_CHANGED,
        "cut off at the output limit",
        "the same request would be cut off again",
    ),
    Verdict.FILTERED: Meaning(
        Disposition.DEAD,
        "the provider's content filter took the prompt or the answer",
        "the same words meet the same filter",
    ),
    Verdict.REFUSED: Meaning(
        Disposition.DEAD,
        "the model declined to answer",
        "asked again it declines again, at full price",
    ),
    Verdict.EMPTY: Meaning(
        Disposition.RETRY,
        "success, but no text and no tool call",
        "sampling: the next try mostly brings an answer",
    ),
    Verdict.INVALID_OUTPUT: Meaning(
        Disposition.RETRY,
        "an answer that does not fit the output schema, or that `validate` or `echo` rejects",
        "sampling: the next try mostly fits",
    ),
    Verdict.BAD_REQUEST: Meaning(
        Disposition.DEAD,
        "the request is wrong, and would be wrong again",
        "only a changed request can pass",
    ),
    Verdict.TOO_LARGE: Meaning(
        Disposition.DEAD,
        "the request is above a limit of the model or of the provider",
        "only a shorter request can pass",
    ),
    Verdict.RATE_LIMITED: Meaning(
        Disposition.RETRY,
        "the row met a rate limit inside the batch",
        "the limit is gone a round later",
    ),
    Verdict.SERVER_ERROR: Meaning(
        Disposition.RETRY,
        "the provider's own fault",
        "mostly gone a round later; charged, as one row can be its cause",
    ),
    Verdict.TIMEOUT: Meaning(
        Disposition.RETRY,
        "the provider gave the row up",
        "mostly answered a round later; charged, as one row can be too slow for ever",
    ),
    Verdict.EXPIRED: Meaning(
        Disposition.RETRY_FREE,
        "the batch's window closed before the row's turn came; not charged by the provider",
        "a fault of the batch, not of the row",
    ),
    Verdict.CANCELLED: Meaning(
        Disposition.RETRY_FREE,
        "the batch was cancelled, lost or refused as a whole before the row's turn came",
        "a fault of the batch, not of the row",
    ),
    Verdict.MISSING: Meaning(
        Disposition.RETRY,
        "no result file has a line for it",
        "nobody knows why; charged, so that it ends",
    ),
    Verdict.ACCOUNT: Meaning(
        Disposition.HALT,
        "the key or the account: no credit, no permission",
        "every row would fail like it until a person mends the account",
    ),
    Verdict.UNKNOWN: Meaning(
        Disposition.DEAD,
        "a line that cannot be understood; its bytes are in `raw/`",
        "it may be paid for: a person looks before it is paid for again",
    ),
}
DEFAULT_DISPOSITIONS: dict[Verdict, Disposition] = {v: m.disposition for v, m in MEANINGS.items()}

#: Code of an answer that the caller's validator could not judge, because it failed itself.
VALIDATOR_FAILED = "validator_failed"
#: Where one code of a verdict is treated otherwise than the verdict: (verdict, code) -> disposition.
#: A validator's own fault would meet the next answer too: no answer is bought for it. Mended, it judges the
#: stored answers again.
CODE_DISPOSITIONS: dict[tuple[Verdict, str], Disposition] = {
    (Verdict.INVALID_OUTPUT, VALIDATOR_FAILED): Disposition.DEAD,
}

#: Verdicts whose cause lies in the answer, not in the transport: another model or a larger limit may help.
ANSWER_FAULTS = frozenset({Verdict.TRUNCATED, Verdict.EMPTY, Verdict.INVALID_OUTPUT})
#: Verdicts that are about the row itself, its request or its (paid) answer: sent again, it is always
#: charged an attempt.
ROW_FAULTS = ANSWER_FAULTS | {Verdict.FILTERED, Verdict.REFUSED, Verdict.BAD_REQUEST, Verdict.TOO_LARGE}
#: Verdicts that may come with words of the model, which are kept with the outcome.
WORDED = frozenset({Verdict.FILTERED, Verdict.REFUSED, Verdict.INVALID_OUTPUT})

#: Which of several rows for one request stands: the first of these, whatever order they came in. An answer
#: before all; then what would fail again for good, so that it is not paid for again; then what stops the
#: job; then what passes; last what says nothing.
STANDING: dict[Verdict, int] = {
    verdict: place
    for place, verdict in enumerate(
        (
            Verdict.OK,
            Verdict.FILTERED,
            Verdict.REFUSED,
            Verdict.TOO_LARGE,
            Verdict.BAD_REQUEST,
            Verdict.TRUNCATED,
            Verdict.INVALID_OUTPUT,
            Verdict.EMPTY,
            Verdict.ACCOUNT,
            Verdict.RATE_LIMITED,
            Verdict.TIMEOUT,
            Verdict.SERVER_ERROR,
            Verdict.CANCELLED,
            Verdict.EXPIRED,
            Verdict.MISSING,
            Verdict.UNKNOWN,
        )
    )
}
