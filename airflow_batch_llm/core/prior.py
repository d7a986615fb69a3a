"""What earlier revisions of a job already know about a row."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from airflow_batch_llm.core.files import iter_outcomes, iter_requests
from airflow_batch_llm.core.model import (
    IN_FLIGHT,
    Attempt,
    Batch,
    BatchKind,
    BatchState,
    Job,
    Outcome,
)
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.spec import Rerun
from airflow_batch_llm.core.tools import Tools, chunks
from airflow_batch_llm.core.verdicts import Disposition

_history = msgspec.json.Decoder(tuple[Attempt, ...])


class Known(IntEnum):
    """What is known about a wire id."""

    ANSWERED = 1
    IN_FLIGHT = 2
    DEAD = 3
    EXHAUSTED = 4
    OPEN = 5


def attempt_of(batch: Batch, outcome: Outcome) -> Attempt:
    """Describe what a batch did for one request."""
    free = outcome.disposition in (Disposition.RETRY_FREE, Disposition.HALT)
    return Attempt(
        round=batch.round,
        batch=batch.provider_batch_id or "",
        verdict=outcome.verdict,
        code=outcome.code,
        time=batch.ended_at or batch.updated_at,
        charged=not free,
        revision=batch.revision,
        input=outcome.usage[0],
        output=outcome.usage[1],
    )


def known_as(outcome: Outcome) -> Known:
    """Sort an outcome."""
    if outcome.disposition is Disposition.LAND:
        return Known.ANSWERED
    if outcome.disposition is Disposition.DEAD:
        return Known.EXHAUSTED if outcome.exhausted else Known.DEAD
    return Known.OPEN


def index_prior(tools: Tools, job: Job, index: RowIndex) -> list[Batch]:
    """Fill the index with every row that earlier revisions sent; return the batches still in flight.

    The index holds wire id -> (:class:`Known`, batch number, attempts as JSON). Only batches at or
    above ``floor_revision`` count; of a duplicate only its answers do.
    """
    carried = []
    for number, batch in enumerate(tools.ledger.batches(job.job_id)):
        if batch.revision < job.floor_revision:
            continue
        if batch.state is BatchState.RECONCILED:
            rows = _reconciled_rows(tools, batch, number)
            if batch.kind is BatchKind.DUPLICATE:
                rows = (row for row in rows if row[1] is Known.ANSWERED)
        elif batch.state in IN_FLIGHT and batch.kind is BatchKind.PRIMARY:
            carried.append(batch)
            rows = (
                (r.wire_id, Known.IN_FLIGHT, number, None)
                for r in iter_requests(tools.workspace, tools.root, batch)
            )
        else:
            continue
        for chunk in chunks(rows):
            index.put(chunk, unless_a=Known.ANSWERED)
    return carried


def _reconciled_rows(tools: Tools, batch: Batch, number: int) -> Iterator[tuple[str, int, int, bytes | None]]:
    requests = iter_requests(tools.workspace, tools.root, batch)
    outcomes = iter_outcomes(tools.workspace, tools.root, batch)
    for request, outcome in zip(requests, outcomes, strict=True):
        known = known_as(outcome)
        data = None
        if known is not Known.ANSWERED:
            data = msgspec.json.encode((*request.history, attempt_of(batch, outcome)))
        yield outcome.wire_id, known, number, data


def must_send(index: RowIndex, wire_id: str, rerun: Rerun) -> tuple[Known | None, tuple[Attempt, ...]]:
    """Return what keeps a row from being sent (None: send it) and the attempts it had so far."""
    found = index.get(wire_id)
    if found is None:
        return None, ()
    known, history = Known(found[0]), _history.decode(found[2]) if found[2] else ()
    if known in (Known.ANSWERED, Known.IN_FLIGHT):
        return known, history
    if known is Known.DEAD and rerun is Rerun.MISSING:
        return known, history
    return None, history
