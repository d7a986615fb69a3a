"""Airflow connections, looked up with errors that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.connection import get_async_connection
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError, ErrorType

from airflow_batch_llm.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection


def find_connection(conn_id: str) -> Connection:
    """Return the connection; for tasks and commands.

    :raises ConfigurationError: no connection has this id.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise _unknown(conn_id) from None
    except AirflowRuntimeError as error:
        if error.error.error == ErrorType.CONNECTION_NOT_FOUND:
            raise _unknown(conn_id) from None
        raise


async def afind_connection(conn_id: str) -> Connection:
    """Return the connection without blocking the event loop; for triggers.

    :raises ConfigurationError: no connection has this id.
    """
    try:
        return await get_async_connection(conn_id)
    except AirflowNotFoundException:
        raise _unknown(conn_id) from None
    except AirflowRuntimeError as error:
        if error.error.error == ErrorType.CONNECTION_NOT_FOUND:
            raise _unknown(conn_id) from None
        raise


def _unknown(conn_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"connection {conn_id!r} is not defined; add it under Admin > Connections, as "
        f"AIRFLOW_CONN_{conn_id.upper()} or in the secrets backend"
    )
