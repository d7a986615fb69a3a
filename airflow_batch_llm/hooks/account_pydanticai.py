"""Connections of the ``pydanticai`` types (apache-airflow-providers-common-ai), read as its hooks read them.

There the model's name says whose it is: ``openai:gpt-5``. What comes before the colon chooses the provider
here, what comes after it is the default model. ``fallback_conn_ids`` has no meaning: a batch is sent to one
provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_batch_llm.backends import providers
from airflow_batch_llm.hooks.account_fields import Account, Shared, account_of, parse, refusal
from airflow_batch_llm.hooks.account_openai import azure_version, is_azure

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: pydantic-ai's name of a provider -> ours.
_NAMES = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "azure": "azure",
    "azure-responses": "azure",
    "anthropic": "anthropic",
    "google": "gemini",
    "google-gla": "gemini",
    "mistral": "mistral",
    "groq": "groq",
    "nebius": "nebius",
    "alibaba": "alibaba",
    "litellm": "litellm",
}
#: Its names of Vertex AI, which is another service than the Gemini API.
_VERTEX = frozenset({"google-vertex", "google-cloud"})


class _PydanticAIExtra(Shared):
    api_version: str | None = None
    api_key: str | None = None
    base_url: str | None = None


def read(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of a ``pydanticai`` connection.

    :raises ConfigurationError: it cannot be used, or its model is of a provider that is not spoken to.
    """
    fields = parse(_PydanticAIExtra, connection, extra)
    provider, model = _provider_and_model(connection, fields)
    return _account(connection, fields, provider, model, connection.host, connection.password)


def read_azure(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of a ``pydanticai_azure`` connection.

    :raises ConfigurationError: as :func:`read`.
    """
    fields = parse(_PydanticAIExtra, connection, extra)
    provider, model = _provider_and_model(connection, fields, own="azure")
    return _account(connection, fields, provider, model, connection.host, connection.password)


def read_vertex(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of a ``pydanticai_vertex`` connection whose model is one of the Gemini API.

    :raises ConfigurationError: it is for Vertex AI, or as :func:`read`.
    """
    fields = parse(_PydanticAIExtra, connection, extra)
    provider, model = _provider_and_model(connection, fields, own="google-cloud")
    return _account(connection, fields, provider, model, fields.base_url, fields.api_key)


def _provider_and_model(
    connection: Connection, fields: _PydanticAIExtra, *, own: str | None = None
) -> tuple[str, str | None]:
    """Return whose the model is, and its name there.

    :param own: pydantic-ai's name of the provider whose connection type this is: a model's name may do
        without it.
    """
    named = fields.model or ""
    prefix, colon, rest = named.partition(":")
    known = prefix in _NAMES or prefix in _VERTEX
    if colon and (known or own is None):
        their, model = prefix, rest
    else:
        their, model = own or "", named
    if fields.dialect:  # says so in our own words
        return fields.dialect, model or None
    if their in _VERTEX:
        raise refusal(
            connection,
            f"is for Vertex AI ({their!r}), which is no provider of this package; a model with 'google:' "
            "before its name and an api_key in the extra is one of the Gemini API",
        )
    ours = _NAMES.get(their)
    if ours is None or ours not in providers():
        accepted = sorted(name for name, ours in _NAMES.items() if ours in providers())
        said = f"whose provider is {their!r}" if their else "that does not say whose it is"
        raise refusal(
            connection,
            f"has a model {said}; write it as provider:model, where the provider is one of "
            f"{', '.join(accepted)}. Another one is reached with a connection of type batch_llm",
        )
    return ours, model or None


def _account(
    connection: Connection,
    fields: _PydanticAIExtra,
    provider: str,
    model: str | None,
    base_url: str | None,
    api_key: str | None,
) -> Account:
    if provider == "openai" and is_azure(base_url):
        provider = "azure"
    return account_of(
        connection,
        fields,
        provider=provider,
        base_url=_with_its_path(provider, base_url),
        api_key=api_key,
        model=model,
        options=azure_version(fields.api_version) if provider == "azure" else None,
    )


def _with_its_path(provider: str, base_url: str | None) -> str | None:
    """Return the address as we write it: Groq's own client wants it without the path of its API."""
    if provider == "groq" and base_url and urlsplit(base_url).path in ("", "/"):
        return f"{base_url.rstrip('/')}/openai/v1"
    return base_url
