"""Every provider that can be spoken to: the rows of the OpenAI family, and one for each other protocol."""

from __future__ import annotations

import difflib

from airflow_batch_llm.backends import anthropic, azure, gemini, mistral, openai
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.exceptions import ConfigurationError

#: Names that people try for a provider, and its own.
_ALSO_CALLED = {
    "azure_openai": "azure",
    "claude": "anthropic",
    "google": "gemini",
    "vertex": "gemini",
}
#: How alike a name must be (0 to 1) for a question.
_ALIKE = 0.6


def providers() -> dict[str, Provider]:
    """Return all providers by name, in the order of the capability table."""
    rows = (
        *openai.providers(),
        *azure.providers(),
        *anthropic.providers(),
        *gemini.providers(),
        *mistral.providers(),
    )
    return {provider.name: provider for provider in rows}


def provider(name: str) -> Provider:
    """Return a provider.

    :raises ConfigurationError: there is none of this name; the message lists those that are known.
    """
    try:
        return providers()[name]
    except KeyError:
        known = ", ".join(sorted(providers()))
        near = _nearest(name)
        meant = f" (is {near!r} meant?)" if near else ""
        raise ConfigurationError(
            f"unknown provider {name!r}{meant}: known providers are {known}. A server that speaks OpenAI's "
            "batch protocol but is not listed works as 'generic' with its base URL"
        ) from None


def _nearest(name: str) -> str | None:
    """Return the provider that a name likely stands for, None where none is like it."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    called = {**{one.replace("-", "_"): one for one in providers()}, **_ALSO_CALLED}
    found = difflib.get_close_matches(plain, called, n=1, cutoff=_ALIKE)
    return called[found[0]] if found else None
