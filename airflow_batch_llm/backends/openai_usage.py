"""Token counts of the OpenAI family, in every form met so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_batch_llm.core.model import Usage

#: Larger counts are nonsense and would not fit the ledger.
MAX_TOKENS = 2**53
NO_USAGE = Usage()


def loose_usage(usage: Any) -> Usage:
    """Return the counts of a ``usage`` object; what is missing or no number counts as 0.

    Mistral names what came from its cache in up to three places.
    """
    if not isinstance(usage, dict):
        return NO_USAGE
    prompt = _first(usage, "prompt_tokens_details", "input_tokens_details", "prompt_token_details")
    completion = _first(usage, "completion_tokens_details", "output_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = completion if isinstance(completion, dict) else {}
    return Usage(
        input=_tokens(_first(usage, "prompt_tokens", "input_tokens")),
        output=_tokens(_first(usage, "completion_tokens", "output_tokens")),
        cached=_tokens(prompt.get("cached_tokens")) or _tokens(usage.get("num_cached_tokens")),
        cache_write=_tokens(prompt.get("cache_write_tokens")),
        reasoning=_tokens(completion.get("reasoning_tokens")),
    )


def _first(usage: Mapping[str, Any], *names: str) -> Any:
    """Return the first of the members that says something."""
    return next((usage[name] for name in names if usage.get(name)), None)


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
