"""Batches of ours at a provider that shows no marks: known by time and count, and by the rows of those that
have ended.

Whatever runs with the same key may look like ours. So nothing is concluded from a time and a count but that
a batch *may* be ours; whose it is, its results say, whose rows carry our wire ids.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from airflow_batch_llm.core.model import Batch, RemoteBatch, RemoteStatus
from airflow_batch_llm.core.places import moved
from airflow_batch_llm.core.result_files import rows_in, wire_ids_of
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.exceptions import NotFound, Refused, TransferError

#: How much the clocks of provider and ledger may differ, seconds: an hour, where one is set wrong, and some
#: more. What is looked at in vain costs a call or two; what is passed over is paid for twice.
CLOCK_SLACK = 7_200.0


class Whose(Enum):
    """What the rows of an ended batch say about whose it is.

    ``stray``: it holds some rows of ours and more of others of this job; another attempt left it behind.
    ``untold``: its rows cannot be read now.
    """

    OURS = 1
    STRAY = 2
    NOT_OURS = 3
    UNTOLD = 4


@dataclass(frozen=True, slots=True)
class Found:
    """What the provider holds that may be one batch of ours, and that no batch of the ledger is.

    :param ours: have ended and hold its rows.
    :param strays: have ended and hold some of its rows.
    :param unsure: run, or cannot be read: may be ours.
    """

    ours: tuple[RemoteBatch, ...] = ()
    strays: tuple[RemoteBatch, ...] = ()
    unsure: tuple[RemoteBatch, ...] = ()


async def look_around(tools: Tools, batch: Batch) -> Found:
    """Look for what any attempt of the batch may have left at the provider; what has ended is read.

    :raises InDoubt: the provider's list did not come to an end, which proves nothing.
    """
    batch = tools.ledger.get_batch(batch.batch_id) or batch
    sorted_by: dict[Whose, list[RemoteBatch]] = {whose: [] for whose in Whose}
    for remote in await tools.backend_of(batch).list_since(first_intent(tools, batch) - CLOCK_SLACK):
        if not _may_be(tools, batch, remote) or _is_too_late(batch, remote):
            continue
        whose = await _whose_if_read(tools, batch, remote)
        sorted_by[whose].append(remote)
        if whose is Whose.NOT_OURS:
            # At once: there may be many, and none is read twice.
            tools.ledger.note_not_ours(batch, {remote.id})
    ours, strays, unsure = (tuple(sorted_by[w]) for w in (Whose.OURS, Whose.STRAY, Whose.UNTOLD))
    return Found(ours, strays, unsure)


async def _whose_if_read(tools: Tools, batch: Batch, remote: RemoteBatch) -> Whose:
    """Say whose a batch is; results that are not to be had now, which may be anybody's, hinder no look."""
    if not remote.status.terminal:
        return Whose.UNTOLD
    try:
        return await whose_is(tools, batch, remote)
    except (TransferError, Refused) as error:
        log.warning("batch %s: results of %s cannot be read (%s)", batch.batch_id, remote.id, error.code)
        return Whose.UNTOLD


def first_intent(tools: Tools, batch: Batch) -> float:
    """Return when the first create call of a batch was about to be made, by the ledger's clock."""
    times = (
        event.time
        for event in tools.ledger.events(batch.job_id)
        if event.batch_id == batch.batch_id and event.action == "submitting"
    )
    return min(times, default=batch.created_at)


def _may_be(tools: Tools, batch: Batch, remote: RemoteBatch) -> bool:
    """Say whether the count allows it, nothing is known about it for certain, and it came to anything.

    What another batch of ours was provisionally taken for may be this one all the same.
    """
    total = remote.counts.get("total")
    if (total and total != batch.requests) or remote.id in batch.not_ours or came_to_nothing(remote):
        return False
    known = tools.ledger.batches_at_provider(remote.id)
    return all(other.provisional and other.batch_id != batch.batch_id for other in known)


def _is_too_late(batch: Batch, remote: RemoteBatch) -> bool:
    """Say whether a batch that runs began when no create call of ours was under way any more.

    Others may send batches with this count again and again: nobody waits for all of them. One of ours that a
    process sent so late is known by its rows when it has ended.
    """
    if remote.status.terminal or remote.created_at is None or batch.lease_until is None:
        return False
    return remote.created_at > batch.lease_until + CLOCK_SLACK


def came_to_nothing(remote: RemoteBatch) -> bool:
    """Say whether a batch failed before it ran: nothing was paid, and there is nothing to read."""
    return remote.status is RemoteStatus.FAILED and not remote.files


async def whose_is(tools: Tools, batch: Batch, remote: RemoteBatch) -> Whose:
    """Read an ended batch at the provider, outside of the workspace, and say whose it is.

    One that neither has nor counts a single row is not ours in any sense that matters: if it were, its rows
    would be missing, and sent again.
    """
    if not remote.files:
        lags = remote.status is RemoteStatus.DONE and remote.counts.get("completed", 0) > 0
        return Whose.UNTOLD if lags else Whose.NOT_OURS
    try:
        found = await _wire_ids(tools, batch, remote)
    except NotFound:
        return await _without_results(tools, batch, remote)
    ours = wire_ids_of(tools, batch)
    shared = len(ours & found)
    if not shared:
        # No row at all where the provider counts some: its results are not there yet, say.
        unread = found == {""} or (not found and remote.counts.get("total"))
        return Whose.UNTOLD if unread else Whose.NOT_OURS
    found.discard("")
    return Whose.OURS if shared == len(found) or shared * 2 > len(ours) else Whose.STRAY


async def _wire_ids(tools: Tools, batch: Batch, remote: RemoteBatch) -> set[str]:
    """Return the ids in a batch's results; "" among them stands for rows that cannot be read."""
    backend = tools.backend_of(batch)
    found: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="batch-llm-whose-") as folder:
        for number, file in enumerate(remote.files):
            local = Path(folder) / f"{number}.jsonl"
            await backend.download(remote, file, local)
            found.update(row.wire_id for row in rows_in(local, backend.decode))
            local.unlink()
    return found


async def _without_results(tools: Tools, batch: Batch, remote: RemoteBatch) -> Whose:
    """Say whose a batch is whose results answer 404: nobody's any more where it is gone itself."""
    try:
        await tools.backend_of(batch).retrieve(remote.id)
    except NotFound:
        return Whose.UNTOLD if moved(tools, batch) else Whose.NOT_OURS
    return Whose.UNTOLD
