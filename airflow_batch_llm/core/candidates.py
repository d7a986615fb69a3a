"""Rows whose request an earlier job has an answer to, until that answer has been read and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec

from airflow_batch_llm.core.files import encode_line
from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.model import Asked, Batch, BoughtAnswer, Request, Row
from airflow_batch_llm.core.plan_files import PlanFile, Reused
from airflow_batch_llm.core.spools import Spool
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import VALIDATOR_FAILED, Verdict
from airflow_batch_llm.exceptions import WorkspaceError


class Candidate(msgspec.Struct):
    """A row that is sent unless an earlier job's answer fits it.

    :param before: place of another candidate for the same answer, -1 for none.
    """

    request: Request
    model: str
    line: int
    before: int
    answered_at: float


_candidates = msgspec.json.Decoder(Candidate)
#: Candidates noted at a time.
_CHUNK = 1000
#: In place of a source's number: there is an answer, and the judge failed at it.
_UNJUDGED = -2


class Candidates:
    """Finds the answers batch by batch: each of their result files is read once, whatever the rows' order.

    :param reused: where answers that fit are written.
    :param stack: closes its files.
    """

    def __init__(self, tools: Tools, reused: PlanFile, stack: ExitStack) -> None:
        self._tools, self._reused = tools, reused
        self._rows = stack.enter_context(Spool())
        #: Number of the source and wire id there -> place of the newest candidate.
        self._wanted = stack.enter_context(tools.new_index())
        self._unnoted: list[tuple[str, int, int, bytes | None]] = []
        #: Wire id of a row that an answer fits -> number of its source; or that the judge failed at.
        self._fitted = stack.enter_context(tools.new_index())
        self._sources: dict[tuple[str, str], int] = {}
        self._rejected: Counter[str] = Counter()

    def add(self, request: Request, model: str, line: int, bought: BoughtAnswer) -> None:
        """Note a row and where the answer to its request is."""
        number = self._sources.setdefault((bought.job_id, bought.batch_id), len(self._sources))
        wanted = f"{number} {bought.wire_id}"
        before = -1
        if request.twin:  # only then can there be another row with the same request
            self._note()
            found = self._wanted.get(wanted)
            before = found[1] if found is not None else -1
        place = self._rows.add(encode_line(Candidate(request, model, line, before, bought.answered_at)))
        self._unnoted.append((wanted, 0, place, None))
        if len(self._unnoted) == _CHUNK:
            self._note()

    def _note(self) -> None:
        self._wanted.put(self._unnoted, unless_a=-1)
        self._unnoted.clear()

    def unanswered(self) -> Iterator[tuple[Candidate, bool]]:
        """Read what the earlier jobs brought; yield the rows that no answer of theirs fits, and whether they
        may be sent. Where the judge itself failed they may not: the next answer would meet the same fault,
        and all that was bought would be bought again.
        """
        self._note()
        whole = set()
        for (job_id, batch_id), number in self._sources.items():
            if self._read_batch(job_id, batch_id, number):
                whole.add(number)
            self._tools.fault("reuse.source_read")
        if lacking := len(self._sources) - len(whole):
            log.info("%d batches of earlier jobs cannot be read any more: their rows are sent", lacking)
        if self._rejected:
            told = ", ".join(f"{code} {number}" for code, number in self._rejected.most_common())
            log.info("answers of earlier jobs that do not pass today: %s", told)
        for line in self._rows:
            candidate = _candidates.decode(line)
            fitted = self._fitted.get(candidate.request.wire_id)
            if fitted is None or fitted[0] not in whole:
                yield candidate, fitted is None or fitted[0] != _UNJUDGED

    def _read_batch(self, job_id: str, batch_id: str, number: int) -> bool:
        """Take what fits out of a batch; False where it cannot be read whole, and then nothing is taken."""
        job, batch = self._tools.ledger.get_job(job_id), self._tools.ledger.get_batch(batch_id)
        if job is None or batch is None or not batch.files:
            return False
        with Spool() as found:
            try:
                for row in self._rows_of(self._tools.workspace.job_root(job.key), batch):
                    self._offer(row, batch, number, found)
            except WorkspaceError as error:
                if isinstance(error.__cause__, OSError):
                    raise  # the storage does not answer: later it may
                return False
            for line in found:
                self._reused.write_encoded(line)
        return True

    def _rows_of(self, root: str, batch: Batch) -> Iterator[Row]:
        """Decode the batch's result files. The provider is today's: it is a part of the hash."""
        decode = self._tools.backend.decode
        for file in batch.files:
            opened = self._tools.workspace.open_checked(
                f"{root}/{file['path']}", int(file["bytes"]), str(file["sha256"])
            )
            with opened as stream:
                for _, line in iter_lines(read_chunks(stream)):
                    yield decode(line)

    def _offer(self, row: Row, batch: Batch, number: int, found: Spool) -> None:
        """Offer what a row says to every candidate for it that has no answer yet."""
        if row.verdict is not Verdict.OK or (wanted := self._wanted.get(f"{number} {row.wire_id}")) is None:
            return
        place = wanted[1]
        while place >= 0:
            candidate = _candidates.decode(self._rows.read(place))
            place, wire_id = candidate.before, candidate.request.wire_id
            fitted = self._fitted.get(wire_id)
            if fitted is not None and fitted[0] != _UNJUDGED:
                continue
            answer = reused_answer(self._tools, candidate.request, row)
            if isinstance(answer, str):
                self._rejected[answer] += 1
                if answer == VALIDATOR_FAILED:
                    self._fitted.put([(wire_id, _UNJUDGED, 0, None)], unless_a=-1)
            else:
                answer.model = row.model or batch.model
                answer.job, answer.batch = batch.job_id, batch.batch_id
                answer.answered_at = candidate.answered_at
                found.add(encode_line(answer))
                self._fitted.put([(wire_id, number, 0, None)], unless_a=-1)


def reused_answer(tools: Tools, request: Request, row: Row) -> Reused | str:
    """Return what a row says as the answer to another request; a code where today's judge rejects it."""
    judge = tools.spec.judge
    asked = Asked(request.custom_id, request.key, request.carry)
    verdict, code, _ = judge.check(row, asked)
    if verdict is not Verdict.OK:
        return code or verdict.value
    return Reused(
        custom_id=request.custom_id,
        wire_id=request.wire_id,
        output=judge.output(row),
        model=row.model,
        usage=row.usage.named(),
        finish_reason=row.finish_reason,
        key=request.key,
        carry=request.carry,
        hash=request.hash,
        twin=request.twin,
    )
