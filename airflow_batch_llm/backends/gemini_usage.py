"""Token counts of Gemini answers: cached ones are in the prompt's count, thoughts are beside the answer's."""

from __future__ import annotations

from typing import Any

from airflow_batch_llm.backends.openai_usage import MAX_TOKENS, NO_USAGE, whole
from airflow_batch_llm.core.model import Usage


def loose_usage(usage: Any) -> Usage:
    """Return the counts of ``usageMetadata``; what is missing or no number counts as 0."""
    if not isinstance(usage, dict):
        return NO_USAGE
    return usage_of(
        prompt=_tokens(usage.get("promptTokenCount")),
        tools=_tokens(usage.get("toolUsePromptTokenCount")),
        cached=_tokens(usage.get("cachedContentTokenCount")),
        said=_tokens(usage.get("candidatesTokenCount")),
        thought=_tokens(usage.get("thoughtsTokenCount")),
    )


def usage_of(*, prompt: int, tools: int, cached: int, said: int, thought: int) -> Usage:
    """Return the counts as this package has them: what tools brought is input, thoughts are output."""
    return Usage(input=prompt + tools, output=said + thought, cached=cached, reasoning=thought)


def vector_usage(response: dict[str, Any]) -> Usage:
    """Return the counts of an answer with a vector: ``tokenCount``, or ``usageMetadata``."""
    counted = _tokens(response.get("tokenCount"))
    return Usage(input=counted) if counted else loose_usage(response.get("usageMetadata"))


def _tokens(value: Any) -> int:
    return min(max(whole(value) or 0, 0), MAX_TOKENS)
