"""What a connection says: provider, address, key, default model. Types of other packages work as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.hooks import account_anthropic, account_batch_llm, account_openai, account_pydanticai
from airflow_batch_llm.hooks.account_fields import Account
from airflow_batch_llm.hooks.account_names import object_of, tell_misspelt

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["ACCEPTED_TYPES", "Account", "read_account"]

_READERS: dict[str, Callable[[Connection, Mapping[str, Any]], Account]] = {
    "batch_llm": account_batch_llm.read,
    "openai": account_openai.read,
    "anthropic": account_anthropic.read,
    "pydanticai": account_pydanticai.read,
    "pydanticai_azure": account_pydanticai.read_azure,
    "pydanticai_vertex": account_pydanticai.read_vertex,
}
ACCEPTED_TYPES = tuple(_READERS)

#: Types that people may well try, and why they cannot be taken.
_REFUSED = {
    "pydanticai_bedrock": "Amazon Bedrock",
    "pydanticai_snowflake": "Snowflake Cortex",
}


def read_account(connection: Connection, extra: Mapping[str, Any]) -> Account:
    """Return the account of a connection.

    :raises ConfigurationError: a type that is not accepted, a value that cannot be used, no key, in a
        connection of our own type a field that nothing reads. The message names the connection and the
        field, never a value.
    """
    kind = connection.conn_type or ""
    reader = _READERS.get(kind)
    if reader is not None:
        fields = object_of(connection, extra)
        if kind != "batch_llm":
            tell_misspelt(connection, fields)
        return reader(connection, fields)
    why = f" ({_REFUSED[kind]} is no provider of this package)" if kind in _REFUSED else ""
    raise ConfigurationError(
        f"connection {connection.conn_id!r} has type {kind!r}{why}; accepted are "
        f"{', '.join(ACCEPTED_TYPES[:-1])} and {ACCEPTED_TYPES[-1]}"
    )
