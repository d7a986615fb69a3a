"""Connections of type ``anthropic`` (apache-airflow-providers-anthropic), read as its hook reads them.

Of the platforms that its hook knows, only Anthropic's own API has message batches that a key opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from airflow_batch_llm.hooks.account_fields import (
    Account,
    ClientArguments,
    Shared,
    account_of,
    given,
    parse,
    refusal,
)

if TYPE_CHECKING:
    from airflow.sdk import Connection

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
    anthropic_client_kwargs: _Client = Field(default_factory=_Client)

    @field_validator("anthropic_client_kwargs", mode="before")
    @classmethod
    def _absent_is_empty(cls, value: Any) -> Any:
        return value or {}


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
    return account_of(
        connection,
        fields,
        provider=fields.dialect or "anthropic",
        base_url=client.base_url or connection.host,
        api_key=key or token,
        model=fields.model,
        options={**_headers(client), **given(client, timeout="timeout_seconds"), **_bearer(token)},
    )


def _headers(client: _Client) -> dict[str, Any]:
    """Return the headers; those that say which API is spoken are options of the backend."""
    headers = dict(client.default_headers or {})
    found: dict[str, Any] = {}
    for name in list(headers):
        if name.lower() == "anthropic-version":
            found["api_version"] = headers.pop(name)
        elif name.lower() == "anthropic-beta":
            found["betas"] = tuple(beta.strip() for beta in headers.pop(name).split(",") if beta.strip())
    return {**found, **({"headers": headers} if headers else {})}


def _bearer(token: str | None) -> dict[str, Any]:
    return {"auth": "bearer"} if token else {}
