"""What a command needs beside the ledger: the workspace, and backends of a job's connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_batch_llm.cli.printing import logs_apart
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Job
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import JobSpec
from airflow_batch_llm.core.tools import Tools

if TYPE_CHECKING:
    from airflow_batch_llm.core.ports import Backend
    from airflow_batch_llm.storage.ledger import SqlLedger
    from airflow_batch_llm.storage.workspace import ObjectWorkspace

T = TypeVar("T")


def open_workspace() -> ObjectWorkspace:
    """Open the workspace that ``[batch_llm]`` names.

    :raises ConfigurationError: it cannot be opened.
    """
    with logs_apart():
        from airflow_batch_llm.hooks import state

        return state.open_workspace()


class Backends:
    """Opens backends of connections, for what needs no job's tools."""

    def __init__(self) -> None:
        with logs_apart():
            from airflow_batch_llm.operators.base import OtherBackends

        self._backends = OtherBackends()

    def __call__(self, conn_id: str) -> Backend:
        """Return the backend of a connection. :raises ConfigurationError: it cannot be used."""
        return self._backends(conn_id)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that may talk to providers, and close what was opened for it."""

        async def whole() -> T:
            try:
                return await work()
            finally:
                await self._backends.aclose()

        with logs_apart():
            return asyncio.run(whole())


class Session:
    """Opens tools for a job, one backend a connection.

    :param judge: of the job's answers; not needed where none is judged.
    """

    def __init__(
        self, ledger: SqlLedger, job: Job, *, policy: RowRetry | None = None, judge: Judge | None = None
    ) -> None:
        with logs_apart():
            from airflow_batch_llm.operators.base import OtherBackends

        self._ledger, self._job = ledger, job
        self._policy, self._judge = policy or RowRetry(), judge or Judge()
        self._backends = OtherBackends()

    def tools(self, conn_id: str) -> Tools:
        """Return tools that speak with a connection.

        :raises ConfigurationError: the connection or the workspace cannot be used.
        """
        from airflow_batch_llm.backends import find_decoder
        from airflow_batch_llm.hooks.settings import engine_settings, read_settings
        from airflow_batch_llm.storage.row_index import DiskRowIndex

        return Tools(
            ledger=self._ledger,
            workspace=open_workspace(),
            backend=self._backends(conn_id),
            spec=JobSpec(self._job.key, conn_id, self._policy, self._judge),
            new_index=DiskRowIndex,
            settings=engine_settings(read_settings()),
            other_backend=self._backends,
            other_decoder=find_decoder,
        )

    def run(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do something that talks to providers, and close what was opened for it."""

        async def whole() -> T:
            try:
                return await work(self)
            finally:
                await self._backends.aclose()

        with logs_apart():
            return asyncio.run(whole())
