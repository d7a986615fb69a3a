"""Token counts of Anthropic: what a cache was read or written for stands beside ``input_tokens``."""

from __future__ import annotations

from typing import Any

from airflow_batch_llm.backends.openai_usage import MAX_TOKENS, NO_USAGE, whole
from airflow_batch_llm.core.model import Usage


def loose_usage(usage: Any) -> Usage:
    """Return the counts of a ``usage`` object; what is missing or no number counts as 0."""
    if not isinstance(usage, dict):
        return NO_USAGE
    details = usage.get("output_tokens_details")
    return usage_of(
        _tokens(usage.get("input_tokens")),
        _tokens(usage.get("output_tokens")),
        _tokens(usage.get("cache_read_input_tokens")),
        _tokens(usage.get("cache_creation_input_tokens")),
        _tokens(details.get("thinking_tokens")) if isinstance(details, dict) else 0,
    )


def usage_of(fresh: int, output: int, read: int, written: int, thinking: int) -> Usage:
    """Return the common counts.

    :param fresh: input that met no cache.
    :param read: input taken from a cache.
    :param written: input put into one.
    """
    return Usage(fresh + read + written, output, read, written, thinking)


def _tokens(value: Any) -> int:
    return min(max(whole(value) or 0, 0), MAX_TOKENS)
