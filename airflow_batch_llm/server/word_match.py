"""Which of several options a text is about, by the words they share. Crude, and always the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")
_SUFFIXES = ("ing", "ed", "es", "s")
#: Only the end of a long prompt is looked at: instructions come first, the row's text last.
_WINDOW = 4_000

#: Words that speak for an option whose name holds one of the words before the colon.
_HINTS = """
billing payment payments invoice invoices: bill invoice charge refund pay payment card subscription price
billing payment invoice: receipt twice
refund refunds: refund money back return reimburse
bug technical technical_issue problem incident: error crash bug broken fail slow freeze screen exception
bug technical incident: timeout outage
account access login authentication: password login log account locked sign reset email profile username 2fa
shipping delivery order orders: ship deliver delivery package parcel tracking arrive order courier late
feature feature_request idea suggestion: feature add wish suggest idea support would please integrate
question how_to information: how what where question wonder documentation guide
cancel cancellation churn: cancel close unsubscribe leave terminate stop
security abuse spam: hack phish spam suspicious leak breach security scam
urgent high critical: urgent asap immediately critical down outage now losing deadline production
low minor: minor whenever small cosmetic typo someday nice
positive happy: thank great love excellent happy perfect awesome wonderful
negative angry unhappy: angry terrible worst hate awful disappointed unacceptable frustrated broken
neutral: okay fine question information
"""


def best_option(text: str, options: Sequence[str]) -> int | None:
    """Return the place of the option that the text speaks for most; None where no word speaks for any.

    The first of equals wins.
    """
    words = stems(text[-_WINDOW:])
    scores = [_score(option, words) for option in options]
    best = max(scores, default=0)
    return scores.index(best) if best else None


def stems(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without common endings."""
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()))


@lru_cache(maxsize=4_096)
def _speaking_for(option: str) -> tuple[frozenset[str], frozenset[str]]:
    own = stems(option.replace("_", " ").replace("-", " "))
    hints: set[str] = set()
    for line in _HINTS.strip().splitlines():
        names, words = line.split(":")
        if stems(names.replace("_", " ")) & own:
            hints |= stems(words)
    return own, frozenset(hints)


def _score(option: str, words: frozenset[str]) -> int:
    own, hints = _speaking_for(option)
    return len(own & words) + 2 * len(hints & words)


@lru_cache(maxsize=16_384)
def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if len(word) > len(suffix) + 3 and word.endswith(suffix):
            word = word.removesuffix(suffix)
            break
    return word.removesuffix("e") if len(word) > 4 else word
