"""Connections of this package's own type, ``batch_llm``. The form's fields stand in ``get_provider_info``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.hooks.account_fields import Account, Shared, account_of, given, parse, refusal
from airflow_batch_llm.hooks.account_names import only_known

if TYPE_CHECKING:
    from airflow.sdk import Connection


class BatchLLMExtra(Shared):
    """The fields of the form beside base URL and key."""

    organization: str | None = None
    project: str | None = None
    timeout: float | None = Field(default=None, gt=0)
    completion_window: str | None = Field(default=None, pattern=r"^[A-Za-z0-9]{1,20}$")
    api_version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.-]{1,40}$")
    auth: Literal["key", "bearer"] | None = None
    inline: bool | None = None
    betas: tuple[str, ...] | None = None

    @field_validator("betas", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Read what a form field can hold: names with commas between them."""
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip()) or None
        return value


def read(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of a ``batch_llm`` connection. :raises ConfigurationError: it cannot be used."""
    known = only_known(BatchLLMExtra.model_fields, connection, extra)
    fields = parse(BatchLLMExtra, connection, known)
    if connection.login:
        raise _unread(connection, "login", "a key belongs into the password field")
    return account_of(
        connection,
        fields,
        provider=fields.dialect or "openai",
        base_url=_address(connection),
        api_key=connection.password,
        model=fields.model,
        options=given(
            fields,
            "organization",
            "project",
            "completion_window",
            "api_version",
            "auth",
            "inline",
            "betas",
            timeout="timeout_seconds",
        ),
    )


def _address(connection: Connection) -> str | None:
    """Join what Airflow takes apart where a connection is given as ``batch-llm://https://host:port/path``.

    :raises ConfigurationError: a part that the address has no place for.
    """
    host = (connection.host or "").strip()
    scheme, separator, rest = host.partition("://")
    network, slash, path = rest.partition("/")
    port, schema = connection.port, connection.schema
    written = network.rpartition(":")[2]
    if separator and port and not written.isdigit():
        network, port = f"{network}:{port}", None
    elif str(port) == written:
        port = None
    if separator and schema and not path:
        slash, path, schema = "/", schema, None
    if port or schema:
        name = "port" if port else "schema"
        raise _unread(
            connection, name, "write the whole base URL, http://host:port/path, into the host field"
        )
    return f"{scheme}{separator}{network}{slash}{path}" or None


def _unread(connection: Connection, name: str, instead: str) -> ConfigurationError:
    return refusal(
        connection,
        f"has a value in {name!r}, which is not read: {instead}. The form hides that field; make the "
        "connection anew where it was of another type before",
    )
