"""``BatchLLMHook``: from an Airflow connection to a backend that speaks the provider's batch protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.connection import get_async_extra_dejson
from airflow.sdk import BaseHook

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.exceptions import BatchLLMError, ConfigurationError
from airflow_batch_llm.hooks.account import Account, read_account
from airflow_batch_llm.hooks.connections import afind_connection, find_connection
from airflow_batch_llm.hooks.settings import read_settings

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_batch_llm.core.ports import Backend


class BatchLLMHook(BaseHook):
    """Read a connection of type ``batch_llm``, or of another accepted type, and make the backend for it.

    :param llm_conn_id: id of the connection.
    """

    conn_name_attr = "llm_conn_id"
    default_conn_name = "batch_llm_default"
    conn_type = "batch_llm"
    hook_name = "LLM batch API"

    def __init__(self, llm_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.llm_conn_id = llm_conn_id

    def account(self) -> Account:
        """Return what the connection says. Blocks: for tasks, not for triggers.

        :raises ConfigurationError: no such connection, a type or value that cannot be used, no key.
        """
        connection = find_connection(self.llm_conn_id)
        return connection_defaults(connection)

    async def aaccount(self) -> Account:
        """Return what the connection says, without blocking the event loop.

        :raises ConfigurationError: as :meth:`account`.
        """
        connection = await afind_connection(self.llm_conn_id)
        return read_account(connection, await get_async_extra_dejson(connection))

    def make_backend(self) -> Backend:
        """Return a backend for the connection; close it with ``await backend.aclose()``.

        :raises ConfigurationError: as :meth:`account`.
        """
        return backend_of(self.account())

    async def amake_backend(self) -> Backend:
        """Return a backend for the connection, without blocking the event loop.

        :raises ConfigurationError: as :meth:`account`.
        """
        return backend_of(await self.aaccount())

    def get_conn(self) -> Backend:
        """Return a backend, for callers that know only hooks."""
        return self.make_backend()

    def test_connection(self) -> tuple[bool, str]:
        """Make the provider's cheapest authenticated call; for Airflow's connection test."""
        try:
            return True, asyncio.run(self._probe())
        except BatchLLMError as error:
            return False, str(error)

    async def _probe(self) -> str:
        # One try: the person who asked is waiting, and no answer is an answer too.
        backend = backend_of(await self.aaccount(), max_retries=0)
        try:
            return await backend.probe()
        finally:
            await backend.aclose()


def connection_defaults(connection: Connection) -> Account:
    """Return the provider, address, default model and limits that a connection names.

    :raises ConfigurationError: a type or value that cannot be used, or no key.
    """
    return read_account(connection, connection.extra_dejson)


def backend_of(account: Account, **options: Any) -> Backend:
    """Return a backend that speaks for the account, with the time-outs of ``[batch_llm]``.

    :param options: fields of ``BackendOptions`` that go before the connection's.
    :raises ConfigurationError: an option that the provider lacks, or one that it cannot use; the message
        names the connection.
    """
    chosen = {"create_timeout_seconds": read_settings().create_timeout, **account.options, **options}
    try:
        return make_backend(
            account.provider, base_url=account.base_url, api_key=account.api_key, options=chosen
        )
    except ConfigurationError as error:
        told = error.args[0]
    raise ConfigurationError(f"connection {account.conn_id!r}: {told}")
