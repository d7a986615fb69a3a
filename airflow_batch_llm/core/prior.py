"""What earlier revisions of a job already know about a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from enum import IntEnum
from typing import NamedTuple

import msgspec

from airflow_batch_llm.core.files import is_erased, iter_outcomes, iter_requests, plan_revision
from airflow_batch_llm.core.model import (
    IN_FLIGHT,
    Attempt,
    Batch,
    BatchKind,
    BatchState,
    Job,
    Outcome,
    Request,
)
from airflow_batch_llm.core.plan_files import Reused, decode_reused, iter_duplicates, iter_reused_ids
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.spec import Rerun
from airflow_batch_llm.core.spools import Spool
from airflow_batch_llm.core.tools import Tools, chunks
from airflow_batch_llm.core.verdicts import Disposition

_history = msgspec.json.Decoder(tuple[Attempt, ...])
#: Stands before the key of a canonical request, where others are wire ids.
_TWIN = "#"
_Entry = tuple[str, int, int, bytes | None]


class Known(IntEnum):
    """What is known about a wire id. ``reused``: an earlier job's answer stands in the last plan;
    ``rides``: another request's answer is this row's as well."""

    ANSWERED = 1
    IN_FLIGHT = 2
    DEAD = 3
    EXHAUSTED = 4
    OPEN = 5
    REUSED = 6
    RIDES = 7


class Standing(NamedTuple):
    """What keeps a row from being sent.

    ``known`` is None where nothing does; ``history`` are the attempts it had so far, ``of`` the wire id that
    it rides on, ``place`` where its reused answer stands.
    """

    known: Known | None = None
    history: tuple[Attempt, ...] = ()
    of: str = ""
    place: int = -1


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


class Prior:
    """What earlier revisions know, for a revision that is being staged. Empty for the first one.

    Only batches at or above ``floor_revision`` count, and the last plan where it is not below. The index
    holds wire id -> (:class:`Known`, batch number or place, attempts as JSON), and the same for what makes
    requests the same, with the wire id that was sent.

    :param stack: closes its files.
    """

    def __init__(self, tools: Tools, job: Job, rerun: Rerun, stack: ExitStack) -> None:
        self._rerun = rerun
        self._index: RowIndex | None = None
        self._reused: Spool | None = None
        self.carried_batches = 0
        if job.revision > 1:
            self._index = stack.enter_context(tools.new_index())
            self._reused = stack.enter_context(Spool())
            self.carried_batches = _index_batches(tools, job, self._index)
            _index_last_plan(tools, job, self._index, self._reused)

    def look(self, wire_id: str) -> Standing:
        """Say what is known about a row."""
        return self._look(wire_id)

    def twin(self, twin: str) -> Standing:
        """Say what is known about a request like a new row's: ``rides``, ``reused`` or nothing."""
        if self._index is None:
            return Standing()
        found = self._index.get(_TWIN + twin)
        if found is None:
            return Standing()
        if found[0] == Known.REUSED:
            return Standing(Known.REUSED, place=found[1])
        return self._ride((found[2] or b"").decode()) if self._keeps(Known(found[0])) else Standing()

    def answer(self, place: int) -> Reused:
        """Return an answer that stands in the last plan."""
        if self._reused is None:
            raise LookupError("the first revision has no plan before it")
        return decode_reused(self._reused.read(place))

    def _look(self, wire_id: str, *, through: bool = True) -> Standing:
        found = self._index.get(wire_id) if self._index is not None else None
        if found is None:
            return Standing()
        known = Known(found[0])
        if known is Known.REUSED:
            return Standing(known, place=found[1])
        if known is Known.RIDES:
            return self._ride((found[2] or b"").decode()) if through else Standing()
        history = _history.decode(found[2]) if found[2] else ()
        return Standing(known if self._keeps(known) else None, history)

    def _ride(self, of: str) -> Standing:
        """Ride on a request unless that is sent again; an answer that was reused is copied."""
        standing = self._look(of, through=False)
        if standing.known is None or standing.known is Known.REUSED:
            return standing._replace(history=())
        return Standing(Known.RIDES, of=of)

    def _keeps(self, known: Known) -> bool:
        return known in (Known.ANSWERED, Known.IN_FLIGHT) or (
            known is Known.DEAD and self._rerun is Rerun.MISSING
        )


def _index_batches(tools: Tools, job: Job, index: RowIndex) -> int:
    """Fill the index with every row that earlier revisions sent; return how many batches are in flight.

    Of a duplicate batch only its answers count.
    """
    carried = 0
    for number, batch in enumerate(tools.ledger.batches(job.job_id)):
        if batch.revision < job.floor_revision:
            continue
        if batch.state is BatchState.RECONCILED:
            rows = _reconciled_rows(tools, batch, number)
        elif batch.state in IN_FLIGHT and batch.kind is BatchKind.PRIMARY:
            carried += 1
            rows = (
                entry
                for request in iter_requests(tools.workspace, tools.root, batch)
                for entry in _entries(request, Known.IN_FLIGHT, number, None)
            )
        else:
            continue
        for chunk in chunks(rows):
            index.put(chunk, unless_a=Known.ANSWERED)
    return carried


def _reconciled_rows(tools: Tools, batch: Batch, number: int) -> Iterator[_Entry]:
    requests = iter_requests(tools.workspace, tools.root, batch)
    outcomes = iter_outcomes(tools.workspace, tools.root, batch)
    for request, outcome in zip(requests, outcomes, strict=True):
        known = known_as(outcome)
        if batch.kind is BatchKind.DUPLICATE and known is not Known.ANSWERED:
            continue
        data = None
        if known is not Known.ANSWERED:
            data = msgspec.json.encode((*request.history, attempt_of(batch, outcome)))
        yield from _entries(request, known, number, data)


def _entries(request: Request, known: Known, number: int, data: bytes | None) -> Iterator[_Entry]:
    yield request.wire_id, known, number, data
    if request.hash:
        yield _TWIN + (request.twin or request.hash), known, number, request.wire_id.encode()


def _index_last_plan(tools: Tools, job: Job, index: RowIndex, reused: Spool) -> None:
    """Add the rows of the last plan that had no request of their own: they stay answered as they were."""
    plan_id = job.seen.get("previous_plan")
    if plan_id is None or plan_revision(tools.workspace, tools.root, plan_id) < job.floor_revision:
        return
    duplicates = iter_duplicates(tools.workspace, tools.root, plan_id)
    _put(index, ((d.wire_id, Known.RIDES, 0, d.of.encode()) for d in duplicates))

    def answers() -> Iterator[_Entry]:
        for answer, line in iter_reused_ids(tools.workspace, tools.root, plan_id):
            if not answer.hash and is_erased(answer.custom_id):
                continue  # there is no answer any more
            place = reused.add(line + b"\n")
            yield answer.wire_id, Known.REUSED, place, None
            if answer.hash:
                yield _TWIN + (answer.twin or answer.hash), Known.REUSED, place, None

    _put(index, answers())


def _put(index: RowIndex, entries: Iterable[_Entry]) -> None:
    for chunk in chunks(entries):
        index.put(chunk, unless_a=Known.ANSWERED)
