"""What a task process has open while it works on a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.spec import Progress
from airflow_batch_llm.core.tools import Tools

if TYPE_CHECKING:
    from airflow_batch_llm.core.ledger_port import Ledger
    from airflow_batch_llm.core.ports import Backend
    from airflow_batch_llm.hooks.batch_llm import BatchLLMHook


@dataclass(frozen=True)
class JobSession:
    """One task process's view of a job, open for as long as the task runs."""

    engine: Engine
    ledger: Ledger
    hook: BatchLLMHook
    backend: Backend
    others: OtherBackends

    @property
    def tools(self) -> Tools:
        """The engine's tools."""
        return self.engine.tools


class OtherBackends:
    """Backends of connections that the task does not name, for batches sent with them earlier."""

    def __init__(self) -> None:
        self._open: dict[str, Backend] = {}

    def __call__(self, conn_id: str) -> Backend:
        from airflow_batch_llm.hooks.batch_llm import BatchLLMHook

        if conn_id not in self._open:
            self._open[conn_id] = BatchLLMHook(conn_id).make_backend()
        return self._open[conn_id]

    async def aclose(self) -> None:
        """Close what was opened."""
        for backend in self._open.values():
            await backend.aclose()


def hook_of(progress: Progress) -> BatchLLMHook:
    """Return the hook of the connection that is waited with."""
    from airflow_batch_llm.hooks.batch_llm import BatchLLMHook

    return BatchLLMHook(progress.conn_id)
