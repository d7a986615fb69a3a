"""Simulated prompt caching: which tokens of a request would have been written to a cache, or read from it.

Nothing is cached here. The first request of a batch, in order, that has a marked prefix writes it; each later
one with the same prefix (and model) reads it. Whatever the real service's hit rate is, here it is the same
every time. Other than there, a prefix of any length counts, and only within its batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_batch_llm.server.anthropic_content import blocks_of, mark_of

_encoder = msgspec.json.Encoder(order="deterministic")


class Cached(msgspec.Struct, array_like=True, frozen=True):
    """Tokens of one request: read from the cache, and written to it for five minutes, for an hour."""

    read: int = 0
    written_5m: int = 0
    written_1h: int = 0


@dataclass(frozen=True, slots=True)
class _Mark:
    """One marked place: everything before it, and how many tokens that is."""

    digest: bytes
    tokens: int
    lifetime: str


class PrefixLedger:
    """The prefixes that the requests of one batch have marked so far. Holds 16 bytes for each."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def account(self, params: dict[str, Any]) -> Cached:
        """Return what a request reads and writes, and remember its prefixes."""
        marks = _marks(params)
        read = max((mark.tokens for mark in marks if mark.digest in self._seen), default=0)
        written = {"5m": 0, "1h": 0}
        before = read
        for mark in marks:
            if mark.tokens > before:
                written[mark.lifetime] += mark.tokens - before
                before = mark.tokens
        self._seen.update(mark.digest for mark in marks)
        return Cached(read, written["5m"], written["1h"])


def _marks(params: dict[str, Any]) -> list[_Mark]:
    digest = hashlib.blake2b(str(params.get("model")).encode("utf-8", "surrogatepass"), digest_size=16)
    marks: list[_Mark] = []
    size = 0
    for where, block, bytes_ in blocks_of(params):
        lifetime = mark_of(block)
        bare = {name: value for name, value in block.items() if name != "cache_control"}
        digest.update(_encoder.encode([where, bare]))
        size += bytes_
        if lifetime is not None:
            marks.append(_Mark(digest.digest(), -(-size // 4), lifetime))
    whole = mark_of(params)
    if whole is not None:
        marks.append(_Mark(digest.digest(), -(-size // 4), whole))
    return marks
