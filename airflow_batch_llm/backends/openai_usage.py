"""Token counts of the OpenAI family, in every form met so far."""

from __future__ import annotations

from typing import Any

from airflow_batch_llm.core.model import Usage

#: Larger counts are nonsense and would not fit the ledger.
MAX_TOKENS = 2**53
NO_USAGE = Usage()


def loose_usage(usage: Any) -> Usage:
    """Return the counts of a ``usage`` object; what is missing or no number counts as 0."""
    if not isinstance(usage, dict):
        return NO_USAGE
    prompt = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    completion = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = completion if isinstance(completion, dict) else {}
    return Usage(
        input=_tokens(usage.get("prompt_tokens", usage.get("input_tokens"))),
        output=_tokens(usage.get("completion_tokens", usage.get("output_tokens"))),
        cached=_tokens(prompt.get("cached_tokens")),
        cache_write=_tokens(prompt.get("cache_write_tokens")),
        reasoning=_tokens(completion.get("reasoning_tokens")),
    )


def whole(value: Any) -> int | None:
    """Return a whole number given as int, float or digits; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(float(value)) if isinstance(value, (str, float)) else None
    except (ValueError, OverflowError):
        return None


def _tokens(value: Any) -> int:
    return min(max(whole(value) or 0, 0), MAX_TOKENS)
