"""What the readers of all connection types share: an account, checked fields, checked addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from airflow_batch_llm.backends import Provider, find_provider
from airflow_batch_llm.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection


@dataclass(frozen=True, slots=True)
class Account:
    """One account at one provider.

    :param provider: a name of :func:`airflow_batch_llm.backends.providers`.
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


def is_empty(value: Any) -> bool:
    """Say whether a field holds nothing: forms and addresses store those that were left empty."""
    return value is None or value in ({}, []) or (isinstance(value, str) and not value.strip())


class Fields(BaseModel):
    """A part of a connection's extra. An empty form field counts as not given; unknown ones are ignored.

    Whether unknown ones may be there is the matter of ``account_names``.
    """

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_absent(cls, value: Any) -> Any:
        return None if isinstance(value, str) and not value.strip() else value


class Shared(Fields):
    """Fields that every type may have in its extra."""

    dialect: str | None = None
    model: str | None = None
    max_requests: int | None = Field(default=None, ge=1)
    max_bytes: int | None = Field(default=None, ge=1)
    max_line_bytes: int | None = Field(default=None, ge=1)


class ClientArguments(Fields):
    """The arguments of a vendor's client that have a meaning here; others (``max_retries`` …) have none."""

    api_key: str | None = None
    base_url: str | None = None
    timeout: float | None = Field(default=None, gt=0)
    default_headers: dict[str, str] | None = None


#: For a field that holds such arguments: left empty, there are none.
NONE_IF_EMPTY = BeforeValidator(lambda value: {} if is_empty(value) else value)

AnyFields = TypeVar("AnyFields", bound=Fields)


def parse(model: type[AnyFields], connection: Connection, extra: Mapping[str, Any]) -> AnyFields:
    """Read fields of a connection's extra.

    :raises ConfigurationError: a value that cannot be used. The message repeats none.
    """
    try:
        return model.model_validate(dict(extra))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    raise ConfigurationError(f"connection {connection.conn_id!r} has fields that cannot be used: {faults}")


def given(fields: BaseModel, *names: str, **renamed: str) -> dict[str, Any]:
    """Return the fields that have a value, under the names that backends use for them."""
    targets = {**{name: name for name in names}, **renamed}
    return {to: value for name, to in targets.items() if (value := getattr(fields, name)) is not None}


def account_of(
    connection: Connection,
    fields: Shared,
    *,
    provider: str,
    base_url: str | None,
    api_key: str | None,
    model: str | None,
    options: Mapping[str, Any] | None = None,
) -> Account:
    """Return the account, its address and key checked.

    :raises ConfigurationError: an unknown provider, no key, no address, one that cannot be used.
    """
    row = provider_of(connection, provider)
    key = (api_key or "").strip()
    if row.key_required and not key:
        raise refusal(connection, "has no API key; put it into the password field")
    url = (base_url or "").strip()
    if not url and row.base_url is None:
        example = f", e.g. {row.example_url}" if row.example_url else ""
        raise refusal(connection, f"has no base URL, which {row.name!r} needs{example}")
    limits = given(fields, "max_requests", "max_bytes", "max_line_bytes")
    return Account(
        conn_id=connection.conn_id,
        provider=row.name,
        base_url=_checked_url(connection, url),
        api_key=key,
        model=model,
        options={**limits, **(options or {})},
    )


def provider_of(connection: Connection, name: str) -> Provider:
    """Return the provider that a connection names. :raises ConfigurationError: there is none of this name."""
    try:
        return find_provider(name)
    except ConfigurationError as error:
        told = error.args[0]
    raise refusal(connection, f"names a dialect that is none: {told}")


def refusal(connection: Connection, what: str) -> ConfigurationError:
    """Return the error that says of a connection what is wrong with it."""
    return ConfigurationError(f"connection {connection.conn_id!r} {what}")


def _checked_url(connection: Connection, url: str) -> str | None:
    if not url:
        return None
    if "@" in url:
        raise refusal(
            connection,
            "has a base URL with a user or password in it (…@host), which logs would show; put the key into "
            "the password field",
        )
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise refusal(connection, "has a base URL that is not an http:// or https:// address")
    return url
