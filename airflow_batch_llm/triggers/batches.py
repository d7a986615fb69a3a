"""The trigger: waits for batches without a worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_batch_llm.exceptions import ProviderError
from airflow_batch_llm.hooks.batch_llm import BatchLLMHook
from airflow_batch_llm.triggers.order import WaitOrder
from airflow_batch_llm.triggers.waiting import wait

#: States in which nobody will come back for the batches.
_TERMINAL = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})

#: Cancels under way. The event loop alone would not keep them alive.
_CANCELLING: set[asyncio.Future[None]] = set()


class BatchLLMTrigger(BaseTrigger):
    """Yield one small event when calling the engine again is worth it.

    Arguments are ids, times (seconds since the epoch, so that a restart of the triggerer changes
    nothing) and switches: no secret, no prompt. ``version`` tells rows of older releases apart.

    :param conn_id: connection to look with. All triggers of one share a client and its looks.
    :param batches: provider batch ids.
    :param more_planned: further batches wait to be sent.
    :param not_before: when something can be sent again.
    :param deadline: when to give up waiting.
    :param first_look_at: no look before.
    :param interval_min: first pause between looks, seconds.
    :param interval_max: longest pause, seconds.
    :param cancel_on_kill: ask the provider to cancel when a person marks the waiting task failed or
        successful. Never on a clear, a restart or a move to another triggerer.
    :param provisional: those of ``batches`` that may be somebody else's: never cancelled.
    """

    def __init__(
        self,
        *,
        conn_id: str,
        batches: list[str],
        more_planned: bool = False,
        not_before: float | None = None,
        deadline: float | None = None,
        first_look_at: float = 0.0,
        interval_min: float = 15.0,
        interval_max: float = 300.0,
        cancel_on_kill: bool = False,
        provisional: list[str] | None = None,
        version: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.batches = list(batches)
        self.more_planned = more_planned
        self.not_before = not_before
        self.deadline = deadline
        self.first_look_at = first_look_at
        self.interval_min = interval_min
        self.interval_max = interval_max
        self.cancel_on_kill = cancel_on_kill
        self.provisional = list(provisional or ())
        self.version = version

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return (
            "airflow_batch_llm.triggers.batches.BatchLLMTrigger",
            {
                "conn_id": self.conn_id,
                "batches": self.batches,
                "more_planned": self.more_planned,
                "not_before": self.not_before,
                "deadline": self.deadline,
                "first_look_at": self.first_look_at,
                "interval_min": self.interval_min,
                "interval_max": self.interval_max,
                "cancel_on_kill": self.cancel_on_kill,
                "provisional": self.provisional,
                "version": self.version,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, yield one event and return at once."""
        order = WaitOrder(
            batches=tuple(self.batches),
            more_planned=self.more_planned,
            not_before=self.not_before,
            deadline=self.deadline,
            first_look_at=self.first_look_at,
            interval_min=self.interval_min,
            interval_max=self.interval_max,
        )
        hook = BatchLLMHook(self.conn_id)
        yield TriggerEvent(await wait(order, self.conn_id, hook.amake_backend))

    async def on_kill(self) -> None:
        """Cancel the batches, if asked to and if the task instance is really over.

        Airflow 3.3 also calls this when the trigger moved to another triggerer, and after a clear when
        the new try has already re-attached to the same batches: then the state is not terminal.
        """
        # Airflow 3.3 cancels a trigger again each second until it is gone, its on_kill with it: what takes
        # longer must be a task of its own.
        work = asyncio.ensure_future(self._cancel_if_over())
        _CANCELLING.add(work)
        work.add_done_callback(_CANCELLING.discard)
        await asyncio.shield(work)

    async def _cancel_if_over(self) -> None:
        if not self.cancel_on_kill:
            self.log.info("cancel_on_kill is off: %d batches go on", len(self.batches))
            return
        if not await self._task_is_over():
            self.log.info("the task is not over: its %d batches go on", len(self.batches))
            return
        backend = await BatchLLMHook(self.conn_id).amake_backend()
        try:
            for batch_id in self.batches:
                if batch_id in self.provisional:
                    self.log.warning("batch %s may be somebody else's: it goes on", batch_id)
                    continue
                try:
                    # A task that came to its own end is over, too, and this may be told late of it: what has
                    # ended needs no call.
                    if (await backend.retrieve(batch_id)).status.terminal:
                        continue
                    await backend.cancel(batch_id)
                    self.log.info("cancelled batch %s: its task was ended by hand", batch_id)
                except ProviderError as error:
                    self.log.warning("batch %s could not be cancelled (%s)", batch_id, error.code)
        finally:
            await backend.aclose()

    async def _task_is_over(self) -> bool:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        ti = self.task_instance
        if ti is None:
            return False
        try:
            states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
                dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
            )
        except Exception as error:
            self.log.warning("cannot read the task's state (%s); nothing is cancelled", type(error).__name__)
            return False
        found = states.get(ti.run_id, {})
        name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
        state = found.get(name)
        return state is not None and str(state) in _TERMINAL
