"""How a scenario shows a batch differently from look to look, whatever the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.server.batches import BatchStore, StoredBatch
from airflow_batch_llm.server.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a batch.

    :param hidden: no such batch can be found yet.
    :param status: shown in place of its own; None: its own.
    :param files: whether its result files are shown.
    """

    hidden: bool = False
    status: str | None = None
    files: bool = True


def look_at(batches: BatchStore, batch: StoredBatch, scenario: Scenario) -> tuple[StoredBatch, Look]:
    """Count a look, where the scenario makes a difference by it, and return what is to be seen."""
    pace = scenario.pace
    if pace.statuses or pace.hidden or scenario.results.late:
        batch = batches.count_look(batch.id) or batch
    return batch, look_of(batch, scenario)


def look_of(batch: StoredBatch, scenario: Scenario) -> Look:
    """Return what is to be seen of a batch after the looks counted so far."""
    pace = scenario.pace
    place = max(batch.polls - pace.hidden, 0)
    status = pace.statuses[place] if place < len(pace.statuses) else None
    files = status is None and batch.end_polls >= scenario.results.late
    return Look(batch.polls < pace.hidden, status, files)


def show_absent(shown: dict[str, Any], names: tuple[str, ...], style: str) -> None:
    """Show files that do not exist as the scenario wants (``absent_file_id``)."""
    for name in names:
        if shown[name] is not None:
            continue
        if style == "absent":
            del shown[name]
        elif style == "empty":
            shown[name] = ""
        elif style == "object":
            shown[name] = {}
