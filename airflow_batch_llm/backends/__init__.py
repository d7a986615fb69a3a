"""Adapters to the providers' batch APIs, one module per wire protocol. No Airflow in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_batch_llm.backends.options import BackendOptions, read_options
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.backends.registry import provider as find_provider
from airflow_batch_llm.backends.registry import providers
from airflow_batch_llm.core.model import Row
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.exceptions import ConfigurationError

__all__ = ["BackendOptions", "Provider", "find_decoder", "find_provider", "make_backend", "providers"]


def find_decoder(provider: str) -> Callable[[bytes], Row]:
    """Return what reads the result lines of a provider. :raises ConfigurationError: there is none such."""
    return find_provider(provider).decode


def make_backend(provider: str, *, base_url: str | None, api_key: str, options: Mapping[str, Any]) -> Backend:
    """Return the backend of a connection. No call is made.

    :param provider: a name of :func:`providers`, such as ``openai``, ``anthropic`` or ``generic``.
    :param base_url: where the provider is; None for its own address.
    :param api_key: sent to the provider's host only; may be "" where none is needed.
    :param options: fields of :class:`~airflow_batch_llm.backends.options.BackendOptions`.
    :raises ConfigurationError: unknown provider, an option that is unknown or that the provider lacks, no
        address, no usable key.
    """
    row = find_provider(provider)
    chosen = read_options(options)
    row.check(chosen)
    address = base_url or row.base_url
    if not address:
        example = row.example_url or "http://host:8000/v1"
        raise ConfigurationError(f"provider {provider!r} needs a base URL, e.g. {example}")
    key = api_key.strip()
    if row.key_required and not key:
        raise ConfigurationError(f"provider {provider!r} needs an API key (the connection's password)")
    return row.build(row.limited(chosen), address, key, chosen)
