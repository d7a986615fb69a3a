"""What a connection says: provider, address, key, default model, limits. Two types are understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from airflow_batch_llm.backends import find_provider
from airflow_batch_llm.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection

ACCEPTED_TYPES = ("batch_llm", "openai")


@dataclass(frozen=True, slots=True)
class Account:
    """One account at one provider.

    :param provider: the dialect of the batch protocol.
    :param base_url: None for the provider's own address.
    :param model: used where a task names none.
    :param options: what else the backend is made with (``BackendOptions``): limits, time-out, headers.
    """

    conn_id: str
    provider: str
    base_url: str | None
    api_key: str = field(repr=False)
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


class _Extra(BaseModel):
    """Fields that both types may have in their extra. An empty form field counts as not given."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    dialect: str | None = None
    model: str | None = None
    max_requests: int | None = Field(default=None, ge=1)
    max_bytes: int | None = Field(default=None, ge=1)
    max_line_bytes: int | None = Field(default=None, ge=1)

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_absent(cls, value: Any) -> Any:
        return None if value == "" else value


class _BatchLLMExtra(_Extra):
    organization: str | None = None
    project: str | None = None
    timeout: float | None = Field(default=None, gt=0)


class _OpenAIClient(BaseModel):
    """The arguments of OpenAI's client that have a meaning here; others (``max_retries`` …) have none."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    api_key: str | None = None
    base_url: str | None = None
    organization: str | None = None
    project: str | None = None
    timeout: float | None = Field(default=None, gt=0)
    default_headers: dict[str, str] | None = None


class _OpenAIExtra(_Extra):
    auth_type: str | None = None
    openai_client_kwargs: _OpenAIClient = Field(default_factory=_OpenAIClient)

    @field_validator("openai_client_kwargs", mode="before")
    @classmethod
    def _absent_is_empty(cls, value: Any) -> Any:
        return value or {}


_AnyExtra = TypeVar("_AnyExtra", bound=_Extra)


def read_account(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of a connection.

    :raises ConfigurationError: a type that is not accepted, a value that cannot be used, no key. The
        message names the connection and the field, never a value.
    """
    if connection.conn_type == "batch_llm":
        return _read_batch_llm(connection, extra)
    if connection.conn_type == "openai":
        return _read_openai(connection, extra)
    raise ConfigurationError(
        f"connection {connection.conn_id!r} has type {connection.conn_type!r}; "
        f"accepted are {' and '.join(ACCEPTED_TYPES)}"
    )


def _read_batch_llm(connection: Connection, extra: Mapping[str, Any]) -> Account:
    fields = _parse(_BatchLLMExtra, connection, extra)
    return _account(
        connection,
        fields,
        base_url=_address(connection),
        api_key=connection.password,
        options=_given(fields, "organization", "project", timeout="timeout_seconds"),
    )


def _read_openai(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Read as ``airflow.providers.openai.hooks.openai.OpenAIHook`` does: the client's arguments win."""
    fields = _parse(_OpenAIExtra, connection, extra)
    if fields.auth_type not in (None, "api_key"):
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has auth_type {fields.auth_type!r}; only api_key is supported"
        )
    client = fields.openai_client_kwargs
    return _account(
        connection,
        fields,
        base_url=client.base_url or connection.host,
        api_key=client.api_key or connection.password,
        options=_given(
            client, "organization", "project", timeout="timeout_seconds", default_headers="headers"
        ),
    )


def _account(
    connection: Connection,
    fields: _Extra,
    *,
    base_url: str | None,
    api_key: str | None,
    options: Mapping[str, Any],
) -> Account:
    row = find_provider(fields.dialect or "openai")
    key = (api_key or "").strip()
    if row.key_required and not key:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has no API key; put it into the password field"
        )
    if not base_url and row.base_url is None:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has no base URL, which dialect {row.name!r} needs"
        )
    return Account(
        conn_id=connection.conn_id,
        provider=row.name,
        base_url=_checked_url(connection, base_url),
        api_key=key,
        model=fields.model,
        options={**_given(fields, "max_requests", "max_bytes", "max_line_bytes"), **options},
    )


def _parse(model: type[_AnyExtra], connection: Connection, extra: Mapping[str, Any]) -> _AnyExtra:
    try:
        return model.model_validate(dict(extra))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    raise ConfigurationError(f"connection {connection.conn_id!r} has fields that cannot be used: {faults}")


def _given(fields: BaseModel, *names: str, **renamed: str) -> dict[str, Any]:
    """Return the fields that have a value, under the names that backends use for them."""
    targets = {**{name: name for name in names}, **renamed}
    return {to: value for name, to in targets.items() if (value := getattr(fields, name)) is not None}


def _address(connection: Connection) -> str | None:
    """Join what Airflow takes apart where a connection is given as ``batch-llm://https://host:port/path``."""
    host = (connection.host or "").strip()
    if not host:
        return None
    scheme, separator, rest = host.partition("://")
    network, slash, path = rest.partition("/")
    if not separator:
        return host
    if connection.port and not network.rpartition(":")[2].isdigit():
        network = f"{network}:{connection.port}"
    if connection.schema and not path:
        slash, path = "/", connection.schema
    return f"{scheme}://{network}{slash}{path}"


def _checked_url(connection: Connection, url: str | None) -> str | None:
    if not url:
        return None
    if "@" in url:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has a base URL with a user or password in it (…@host), which "
            "logs would show; put the key into the password field"
        )
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has a base URL that is not an http:// or https:// address"
        )
    return url
