"""What was noted of a batch as events, and whether it still holds."""

from __future__ import annotations

from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch


def times_told(ledger: Ledger, batch: Batch, action: str, *, until: str) -> list[float]:
    """Return when an event of a batch was noted, since one that ended what it tells.

    :param action: of the events that count.
    :param until: of the event that ends what they tell.
    :returns: seconds since the epoch, the oldest first.
    """
    times: list[float] = []
    for event in ledger.events(batch.job_id):
        if event.batch_id == batch.batch_id and event.action == action:
            times.append(event.time)
        elif event.batch_id == batch.batch_id and event.action == until:
            times.clear()
    return times
