"""Adapters to the providers' batch APIs, one module per wire protocol. No Airflow in here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_batch_llm.backends.base import ApiClient
from airflow_batch_llm.backends.dialects import DIALECTS, Dialect, dialect
from airflow_batch_llm.backends.openai import OpenAIBackend
from airflow_batch_llm.backends.options import BackendOptions, read_options
from airflow_batch_llm.backends.retrying import SafeRetry
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.exceptions import ConfigurationError

__all__ = ["DIALECTS", "BackendOptions", "make_backend"]


def make_backend(provider: str, *, base_url: str | None, api_key: str, options: Mapping[str, Any]) -> Backend:
    """Return the backend of a connection. No call is made.

    :param provider: a dialect's name: ``openai``, or ``generic`` for a server that speaks its protocol.
    :param base_url: with the version part; None for the provider's own.
    :param api_key: sent to the provider's host only; may be "" where the dialect needs none.
    :param options: fields of :class:`~airflow_batch_llm.backends.options.BackendOptions`.
    :raises ConfigurationError: unknown provider or option, no address, no usable key.
    """
    row = dialect(provider)
    chosen = read_options(options)
    address = base_url or row.base_url
    if not address:
        raise ConfigurationError(f"provider {provider!r} needs a base URL, e.g. http://host:8000/v1")
    row = row.limited(
        max_requests=chosen.max_requests, max_bytes=chosen.max_bytes, max_line_bytes=chosen.max_line_bytes
    )
    client = ApiClient(
        address,
        headers=_headers(row, api_key.strip(), chosen),
        connect_timeout=chosen.connect_timeout_seconds,
        timeout=chosen.timeout_seconds,
        retry=SafeRetry(retries=chosen.max_retries, budget=chosen.retry_budget_seconds),
    )
    return OpenAIBackend(row, client, chosen)


def _headers(row: Dialect, api_key: str, options: BackendOptions) -> dict[str, str]:
    if row.key_required and not api_key:
        raise ConfigurationError(f"provider {row.name!r} needs an API key (the connection's password)")
    headers = dict(options.headers)
    if api_key:
        headers[row.auth_header] = row.auth_prefix + api_key
    if options.organization:
        headers["OpenAI-Organization"] = options.organization
    if options.project:
        headers["OpenAI-Project"] = options.project
    for name, value in headers.items():
        if not (name.isascii() and value.isascii() and value.isprintable()):
            raise ConfigurationError(f"header {name!r} holds characters that HTTP headers cannot carry")
    return headers
