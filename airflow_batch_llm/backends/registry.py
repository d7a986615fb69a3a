"""Every provider that can be spoken to: the rows of the OpenAI family, and one for each other protocol."""

from __future__ import annotations

from airflow_batch_llm.backends import anthropic, azure, gemini, mistral, openai
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.exceptions import ConfigurationError


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
        raise ConfigurationError(
            f"unknown provider {name!r}: known providers are {known}. A server that speaks OpenAI's batch "
            "protocol but is not listed works as 'generic' with its base URL"
        ) from None
