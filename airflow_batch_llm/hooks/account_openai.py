"""Connections of type ``openai`` (apache-airflow-providers-openai), read as that provider's hook reads them.

Azure OpenAI is reached through them too: by a base URL at Azure, as ``OpenAI(base_url=…)`` is, or with the
arguments of ``AzureOpenAI``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from airflow_batch_llm.hooks.account_fields import (
    NONE_IF_EMPTY,
    Account,
    ClientArguments,
    Shared,
    account_of,
    given,
    parse,
    provider_of,
    refusal,
)
from airflow_batch_llm.hooks.account_names import tell_once

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_batch_llm.backends import Provider

#: Ends of the host names that Azure gives to OpenAI resources.
_AZURE_HOSTS = (
    ".openai.azure.com",
    ".openai.azure.us",
    ".cognitiveservices.azure.com",
    ".services.ai.azure.com",
)
_TEAM_HEADERS = {"organization": "OpenAI-Organization", "project": "OpenAI-Project"}
#: Versions that stand for Azure's paths without a version.
_V1_VERSIONS = frozenset({"preview", "latest", "v1"})


class _Client(ClientArguments):
    organization: str | None = None
    project: str | None = None
    azure_endpoint: str | None = None
    azure_ad_token: str | None = None
    api_version: str | None = None
    default_query: dict[str, Any] | None = None


class _OpenAIExtra(Shared):
    auth_type: str | None = None
    api_type: str | None = None
    azure_endpoint: str | None = None
    api_version: str | None = None
    openai_client_kwargs: Annotated[_Client, NONE_IF_EMPTY] = Field(default_factory=_Client)


def read(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of an ``openai`` connection; the client's arguments win, as in its own hook.

    :raises ConfigurationError: it cannot be used, or its key is made by a workload identity.
    """
    fields = parse(_OpenAIExtra, connection, extra)
    if fields.auth_type not in (None, "api_key"):
        raise refusal(connection, f"has auth_type {fields.auth_type!r}; only api_key is supported")
    client = fields.openai_client_kwargs
    azure_endpoint = client.azure_endpoint or fields.azure_endpoint
    base_url = client.base_url or azure_endpoint or connection.host
    provider = fields.dialect
    if provider is None:
        at_azure = azure_endpoint is not None or fields.api_type in ("azure", "azure_ad")
        provider = "azure" if at_azure or is_azure(base_url) else "openai"
    row = provider_of(connection, provider)
    options = {**given(client, timeout="timeout_seconds"), **_team(client, row)}
    if row.name == "azure":
        by_token = client.azure_ad_token is not None or fields.api_type == "azure_ad"
        options |= _azure_options(client, fields, by_token=by_token)
    if (client.default_query or {}).keys() - ({"api-version"} if row.name == "azure" else set()):
        name = "openai_client_kwargs.default_query"
        tell_once(connection.conn_id, name, "its parameters are not sent, but for Azure's api-version")
    return account_of(
        connection,
        fields,
        provider=row.name,
        base_url=base_url,
        api_key=client.azure_ad_token or client.api_key or connection.password,
        model=fields.model,
        options=options,
    )


def _team(client: _Client, row: Provider) -> dict[str, Any]:
    """Return the headers and whose they are: options where the provider has them.

    Others get them as the vendor's client sends them to any address: as headers, which they may ignore.
    """
    team = given(client, "organization", "project")
    if team.keys() <= row.options.keys():
        return {**team, **given(client, default_headers="headers")}
    sent = {_TEAM_HEADERS[name]: value for name, value in team.items()}
    own = {name.lower() for name in client.default_headers or {}}
    kept = {name: value for name, value in sent.items() if name.lower() not in own}
    return {"headers": {**kept, **(client.default_headers or {})}}


def is_azure(url: str | None) -> bool:
    """Say whether an address is one that Azure gives to OpenAI resources."""
    try:
        host = urlsplit((url or "").strip()).hostname or ""
    except ValueError:
        return False
    return host.endswith(_AZURE_HOSTS)


def azure_version(version: str | None) -> dict[str, Any]:
    """Return the option that chooses Azure's older paths, where a version asks for them."""
    return {} if version is None or version.lower() in _V1_VERSIONS else {"api_version": version}


def _azure_options(client: _Client, fields: _OpenAIExtra, *, by_token: bool) -> dict[str, Any]:
    asked = (client.default_query or {}).get("api-version")
    version = client.api_version or fields.api_version or (str(asked) if asked else None)
    return {**azure_version(version), **({"auth": "bearer"} if by_token else {})}
