"""Connections of type ``anthropic`` (apache-airflow-providers-anthropic), read as its hook reads them.

Of the platforms that its hook knows, only Anthropic's own API has message batches that a key opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_batch_llm.backends import Provider

_PLATFORMS = {
    "bedrock": "Amazon Bedrock",
    "vertex": "Google Vertex AI",
    "foundry": "Microsoft Foundry",
    "aws": "Claude Platform on AWS",
}


class _Client(ClientArguments):
    auth_token: str | None = None


class _AnthropicExtra(Shared):
    platform: str | None = None
    workload_identity: dict[str, Any] | None = None
    anthropic_client_kwargs: Annotated[_Client, NONE_IF_EMPTY] = Field(default_factory=_Client)


def read(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of an ``anthropic`` connection; the client's arguments win, as in its own hook.

    :raises ConfigurationError: it cannot be used, or is for another platform than Anthropic's own API.
    """
    fields = parse(_AnthropicExtra, connection, extra)
    platform = (fields.platform or "anthropic").lower()
    if platform != "anthropic":
        told = _PLATFORMS.get(platform)
        raise refusal(
            connection,
            f"has platform {platform!r}" + (f" ({told})" if told else "") + "; only 'anthropic' can be used",
        )
    if fields.workload_identity:
        raise refusal(connection, "has workload_identity; only an API key is supported")
    client = fields.anthropic_client_kwargs
    key = client.api_key or connection.password
    token = client.auth_token if not key else None
    row = provider_of(connection, fields.dialect or "anthropic")
    return account_of(
        connection,
        fields,
        provider=row.name,
        base_url=client.base_url or connection.host,
        api_key=key or token,
        model=fields.model,
        options={**_headers(client, row), **given(client, timeout="timeout_seconds"), **_bearer(token, row)},
    )


def _headers(client: _Client, row: Provider) -> dict[str, Any]:
    """Return the headers; those that say which of Anthropic's APIs is spoken are options of its backend."""
    headers = dict(client.default_headers or {})
    found: dict[str, Any] = {}
    for name in list(headers) if row.protocol == "anthropic" else ():
        if name.lower() == "anthropic-version":
            found["api_version"] = headers.pop(name)
        elif name.lower() == "anthropic-beta":
            found["betas"] = tuple(beta.strip() for beta in headers.pop(name).split(",") if beta.strip())
    return {**found, **({"headers": headers} if headers else {})}


def _bearer(token: str | None, row: Provider) -> dict[str, Any]:
    """Return the option that sends a token as one, where keys are not sent so anyway."""
    return {"auth": "bearer"} if token and "auth" in row.options else {}
