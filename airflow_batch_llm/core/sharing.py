"""Rows of a plan that need no request of their own: known from before, like another row, or answered by an
earlier job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from airflow_batch_llm.core.candidates import Candidate, Candidates, reused_answer
from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.core.model import Asked, BoughtAnswer, Job, Request, Row
from airflow_batch_llm.core.plan_files import DUPLICATES, REUSED, Duplicate, PlanFile, Reused
from airflow_batch_llm.core.prior import Known, Prior, Standing
from airflow_batch_llm.core.reuse import (
    RequestHashes,
    Reuse,
    Scope,
    connection_digest,
    task_digest,
    twin_of,
)
from airflow_batch_llm.core.spec import Rerun, StageOrder
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.verdicts import Verdict


@dataclass(slots=True)
class Asking:
    """A row on its way into the plan, as the request it would be.

    :param standing: what earlier revisions know of it.
    """

    request: Request
    model: str
    line: int
    standing: Standing

    @property
    def twin(self) -> str:
        """What makes rows of the job share a request; "" where nothing is shared."""
        return self.request.twin or self.request.hash


class Sharing:
    """Decides which rows are sent. With ``reuse``, identical requests are sent once; without, only what
    shared an answer before goes on to.

    :param stack: closes its files.
    """

    def __init__(
        self, tools: Tools, order: StageOrder, job: Job, plan_id: str, prior: Prior, stack: ExitStack
    ) -> None:
        self._tools, self._reuse, self._prior = tools, order.reuse, prior
        self._duplicates = PlanFile(tools.workspace, tools.root, plan_id, DUPLICATES, stack)
        self._reused = PlanFile(tools.workspace, tools.root, plan_id, REUSED, stack)
        self._candidates = Candidates(tools, self._reused, stack)
        self._twins = _Twins(tools, stack)
        self._bought: dict[str, BoughtAnswer] = {}
        # A clear with "fresh" wants everything anew.
        self._looks_up = not (order.rerun is Rerun.FRESH and job.revision > 1)
        backend = tools.backend
        self._hashes = (
            RequestHashes(backend.provider, backend.address, order.template, self._reuse.version)
            if self._reuse
            else None
        )

    def identify(self, request: Request, model: str, sample: int) -> None:
        """Give a request its hash, where anything is shared."""
        if self._hashes is not None:
            request.hash = self._hashes.derive(bytes(request.body), model, sample)
            asked = Asked(request.custom_id, request.key, request.carry)
            request.twin = twin_of(request.hash, self._tools.spec.judge, asked)

    def look_up(self, rows: Iterable[Asking]) -> None:
        """Ask the ledger, once for many rows, which requests an earlier job has answered."""
        self._twins.flush()
        self._bought = {}
        if self._reuse is None or self._reuse.scope == Scope.JOB or not self._looks_up:
            return
        hashes = {row.request.hash for row in rows if row.standing.known is None}
        if hashes:
            self._bought = self._tools.ledger.find_answers(sorted(hashes), **self._scope(self._reuse))
            self._tools.fault("reuse.looked_up")

    def _scope(self, reuse: Reuse) -> dict[str, Any]:
        spec = self._tools.spec
        scope: dict[str, Any] = (
            {"task": task_digest(spec.key)}
            if reuse.scope == Scope.TASK
            else {"connection": connection_digest(spec.conn_id)}
        )
        if reuse.max_age is not None:
            scope["since"] = self._tools.ledger.now() - reuse.max_age / timedelta(seconds=1)
        return scope

    def settles(self, row: Asking) -> str:
        """Find a row its place without a request; returns what it counts as, "" where it has to be sent."""
        standing = row.standing
        if standing.known is Known.REUSED:
            self._copy(self._prior.answer(standing.place), row)
            return "kept_reused"
        if standing.known is Known.RIDES:
            return self._ride(row, standing.of)
        if standing.known is not None:
            self.sends(row)
            return _KEPT[standing.known]
        if not row.twin:
            return ""
        if of := self._twins.find(row.twin):
            return self._ride(row, of)
        earlier = self._prior.twin(row.twin)
        if earlier.known is Known.RIDES:
            return self._ride(row, earlier.of)
        if earlier.known is Known.REUSED and self._fits(self._prior.answer(earlier.place), row):
            return "kept_reused"
        if (bought := self._bought.get(row.request.hash)) is not None:
            self._candidates.add(row.request, row.model, row.line, bought)
            self.sends(row)
            return "candidates"
        return ""

    def sends(self, row: Asking) -> None:
        """Note that the row has a request, or an answer, of its own: what is the same rides on it."""
        if row.twin:
            self._twins.note(row.twin, row.request.wire_id)

    def unanswered(self) -> Iterator[tuple[Candidate, bool]]:
        """Read what earlier jobs brought; yield the rows that must be sent all the same."""
        return self._candidates.unanswered()

    def files(self) -> dict[str, dict[str, Any]]:
        """Return what the plan says of the files that hold these rows."""
        files = {DUPLICATES: self._duplicates.facts(), REUSED: self._reused.facts()}
        return {name: facts for name, facts in files.items() if facts is not None}

    def _ride(self, row: Asking, of: str) -> str:
        request = row.request
        self._duplicates.write(Duplicate(request.custom_id, request.wire_id, of, request.key, request.carry))
        if row.twin:
            self._twins.note(row.twin, of)
        return "duplicates"

    def _copy(self, answer: Reused, row: Asking) -> None:
        """Take an answer over from the last plan, for a row of today."""
        request = row.request
        self._reused.write(
            msgspec.structs.replace(
                answer,
                custom_id=request.custom_id,
                wire_id=request.wire_id,
                key=request.key,
                carry=request.carry,
                hash=request.hash or answer.hash,
                twin=request.twin if request.hash else answer.twin,
            )
        )
        self.sends(row)

    def _fits(self, answer: Reused, row: Asking) -> bool:
        """Copy the answer of another row of the last plan if today's judge takes it for this one's."""
        structured = self._tools.spec.judge.schema is not None
        says = isinstance(answer.output, str)
        text = dumps(answer.output).decode() if structured else answer.output if says else None
        said = Row(
            row.request.wire_id, Verdict.OK, text=text, output=None if text is not None else answer.output
        )
        if isinstance(reused_answer(self._tools, row.request, said), str):
            return False
        self._copy(answer, row)
        return True


_KEPT: dict[Known, str] = {
    Known.ANSWERED: "kept_answered",
    Known.IN_FLIGHT: "kept_in_flight",
    Known.DEAD: "kept_dead",
}


class _Twins:
    """Which request of the plan answers what makes requests the same."""

    def __init__(self, tools: Tools, stack: ExitStack) -> None:
        self._index = stack.enter_context(tools.new_index())
        self._newest: dict[str, str] = {}

    def find(self, twin: str) -> str:
        """Return the wire id, "" where there is none."""
        if twin in self._newest:
            return self._newest[twin]
        found = self._index.get(twin)
        return (found[2] or b"").decode() if found is not None else ""

    def note(self, twin: str, wire_id: str) -> None:
        """Note the first request of its kind."""
        if not self.find(twin):
            self._newest[twin] = wire_id

    def flush(self) -> None:
        """Move what was noted out of memory."""
        self._index.put(((twin, 0, 0, wire.encode()) for twin, wire in self._newest.items()), unless_a=-1)
        self._newest.clear()
