"""One verdict for each request of a batch, decoded from the stored result files."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from airflow_batch_llm.core.endings import Ending
from airflow_batch_llm.core.endpoints import EMBEDDINGS
from airflow_batch_llm.core.files import encode_line, iter_outcomes, iter_requests_as, outcomes_path
from airflow_batch_llm.core.jsonl import dumps, iter_lines, read_chunks
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import Asked, Attempt, Batch, Job, Outcome, RequestTemplate, Row, Usage
from airflow_batch_llm.core.policy import attempts_used
from airflow_batch_llm.core.ports import Workspace
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import (
    ANSWER_FAULTS,
    STANDING,
    VALIDATOR_FAILED,
    WORDED,
    Disposition,
    Verdict,
)


def rejudge_batch(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> bool:
    """Judge a reconciled batch again from its raw rows; an answered row stays answered.

    Returns whether anything was judged (the judge is another one than before).
    """
    if batch.judge == tools.spec.judge.fingerprint:
        return False
    ending = Ending(Verdict.MISSING, "", {})
    before = list(iter_outcomes(tools.workspace, tools.root, batch))
    result, _ = judge_batch(tools, job, batch, template, batch.files, ending, before=before)
    tools.fault("rejudge.before_reconciled")
    tools.ledger.mark_reconciled(batch, result)
    return True


def iter_raw_rows(tools: Tools, batch: Batch, batch_files: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Decode the stored result files, line by line."""
    for file in batch_files:
        opened = tools.workspace.open_checked(
            f"{tools.root}/{file['path']}", int(file["bytes"]), str(file["sha256"])
        )
        decode = tools.decoder_of(batch)
        with opened as stream:
            for _, line in iter_lines(read_chunks(stream)):
                yield decode(line)


class _Slot(msgspec.Struct, gc=False):
    """What is known of one request while its batch is judged.

    The first three fields are those of a line of ``requests.jsonl``. Kept out of garbage collection: a
    batch holds tens of thousands, and none refers to another.
    """

    custom_id: str
    wire_id: str
    history: tuple[Attempt, ...] = ()
    verdict: Verdict | None = None
    code: str = ""
    message: str = ""
    usage: Usage = Usage()
    words: tuple[int, int] | None = None

    def asked(self) -> Asked | None:
        """Return what was asked, where it was read."""
        return None

    def judge(self, row: Row, judge: Judge) -> tuple[Verdict, str, str]:
        """Return verdict, code and message of a row that answers the request."""
        return judge.check(row, self.asked())

    def note(self, row: Row, judged: tuple[Verdict, str, str], words: _Words) -> None:
        """Take over what a row says."""
        self.verdict, self.code, self.message = judged
        self.usage, self.words = row.usage, None
        if self.verdict is Verdict.OK:
            self.message = ""
        elif self.verdict in WORDED:
            self.words = words.keep(row)


class _AskedSlot(_Slot, gc=False):
    """A slot for judges that look at what was asked; only for them so much is kept of each request."""

    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}

    def asked(self) -> Asked:
        """Return what was asked."""
        return Asked(self.custom_id, self.key, self.carry)


class _Texts(msgspec.Struct, gc=False):
    """The part of a body for embeddings that says how many vectors it asks for."""

    input: Any = None

    @property
    def number(self) -> int:
        """How many texts; a list of tokens is one."""
        several = isinstance(self.input, list) and not all(isinstance(one, int) for one in self.input)
        return len(self.input) if several else 1


class _VectorsSlot(_AskedSlot, gc=False):
    """A slot of a request for embeddings: an answer has a vector for each of its texts."""

    body: _Texts | None = None
    wanted: int = 1

    def __post_init__(self) -> None:
        if self.body is not None:
            self.wanted, self.body = self.body.number, None  # the texts need not be kept

    def judge(self, row: Row, judge: Judge) -> tuple[Verdict, str, str]:
        """Return verdict, code and message; vectors too few or too many may be those of other texts."""
        vectors = row.output if isinstance(row.output, list) else []
        found = len(vectors) if vectors and isinstance(vectors[0], list) else 1
        if row.verdict is Verdict.OK and found != self.wanted:
            return Verdict.SERVER_ERROR, "vector_count", f"{found} vectors for {self.wanted} texts"
        return super().judge(row, judge)


class _Words:
    """What rows that did not land say, in a file: where every row of a batch is one, memory stays small."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0

    def keep(self, row: Row) -> tuple[int, int] | None:
        """Write down the first characters of what a row says; returns their place."""
        text = row.text
        if text is None and row.output is not None:
            with contextlib.suppress(ValueError):
                text = dumps(row.output).decode("utf-8")
        data = (text or "")[:_TEXT_LIMIT].encode("utf-8", "replace")
        if not data:
            return None
        self._file.seek(self._end)
        self._file.write(data)
        place = (self._end, len(data))
        self._end += len(data)
        return place

    def read(self, place: tuple[int, int] | None) -> str:
        """Return what was written down."""
        if place is None:
            return ""
        self._file.seek(place[0])
        return self._file.read(place[1]).decode("utf-8")


_slots = msgspec.json.Decoder(_Slot)
_asked_slots = msgspec.json.Decoder(_AskedSlot)
_vectors_slots = msgspec.json.Decoder(_VectorsSlot)
#: Outcomes written at a time.
_OUTCOMES = 1000
#: Refused lines named in an event, and characters of each one's id.
_LINES_TOLD, _ID_SHOWN = 5, 64
#: Characters of a row's words that stand beside its outcome, where it did not land; all are in the raw files.
_TEXT_LIMIT = 2000


def judge_batch(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    files: Sequence[Mapping[str, Any]],
    ending: Ending,
    *,
    before: Sequence[Outcome] = (),
) -> tuple[Reconciled, int]:
    """Write the batch's outcomes; returns what goes into the ledger and how many rows halt the job."""
    with tempfile.TemporaryFile(prefix="batch-llm-words-") as file:
        return _judge(tools, job, batch, template, files, ending, before, _Words(cast("BinaryIO", file)))


def _judge(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    files: Sequence[Mapping[str, Any]],
    ending: Ending,
    before: Sequence[Outcome],
    words: _Words,
) -> tuple[Reconciled, int]:
    decoder: msgspec.json.Decoder[Any] = _asked_slots if tools.spec.judge.needs_asked else _slots
    if template.endpoint == EMBEDDINGS:
        decoder = _vectors_slots
    slots: list[_Slot] = list(iter_requests_as(decoder, tools.workspace, tools.root, batch))
    _read_rows(tools, batch, files, {slot.wire_id: slot for slot in slots}, words)
    if ending.lines:
        _tell_refused_lines(tools, batch, slots, ending)
    _tell_failed_validator(batch, slots)
    counts: Counter[str] = Counter()
    good = halts = 0
    totals = [0, 0, 0, 0, 0]
    lines: list[bytes] = []
    with outcomes_file(tools.workspace, tools.root, batch) as out:
        for line, slot in enumerate(slots, start=1):
            stands = before[line - 1] if before else None
            promoted = slot.verdict is Verdict.OK and stands is not None and stands.verdict is not Verdict.OK
            if stands is None or promoted:
                outcome = _outcome(tools, job, batch, template, slot, line, ending, words)
            else:
                outcome = stands
            if outcome.verdict is Verdict.OK:
                good += 1
            else:
                counts[outcome.verdict] += 1
            totals = list(map(add, totals, outcome.usage))
            halts += outcome.disposition is Disposition.HALT
            lines.append(encode_line(outcome))
            if len(lines) == _OUTCOMES:
                out.write(b"".join(lines))
                lines.clear()
        out.write(b"".join(lines))
    if good:
        counts[Verdict.OK] = good
    usage = Usage(*totals)
    result = Reconciled(out.sha256, tools.spec.judge.fingerprint, dict(counts), usage, tuple(files))
    return result, halts


class _OutcomesFile:
    """Outcomes on their way to the workspace."""

    def __init__(self, local: BinaryIO) -> None:
        self._local = local
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, lines: bytes) -> None:
        self._local.write(lines)
        self._digest.update(lines)


@contextmanager
def outcomes_file(workspace: Workspace, root: str, batch: Batch) -> Iterator[_OutcomesFile]:
    """Write a file of outcomes whose name holds its digest.

    Two processes may judge a batch at once, each its own way (other judge, other revision): neither
    may overwrite the file that the ledger has come to name.
    """
    with tempfile.TemporaryDirectory(prefix="batch-llm-outcomes-") as folder:
        local = Path(folder) / "outcomes.jsonl"
        with local.open("wb", buffering=1 << 20) as file:
            out = _OutcomesFile(file)
            yield out
        workspace.put_file(outcomes_path(root, batch, out.sha256), local)


def _read_rows(
    tools: Tools,
    batch: Batch,
    files: Sequence[Mapping[str, Any]],
    slots: Mapping[str, _Slot],
    words: _Words,
) -> None:
    """Join the result rows to their requests; of several rows for one request the same one stands always."""
    foreign, repeats = 0, Counter[str]()
    judge = tools.spec.judge
    for row in iter_raw_rows(tools, batch, files):
        slot = slots.get(row.wire_id)
        if slot is None:
            foreign += 1
        elif slot.verdict is not None:
            repeats[row.wire_id] += 1
        else:
            slot.note(row, slot.judge(row, judge), words)
    if repeats:
        _choose_among(tools, batch, files, {wire_id: slots[wire_id] for wire_id in repeats}, words)
    if foreign or repeats:
        repeated = repeats.total()
        log.warning("batch %s: %d foreign and %d repeated result rows", batch.batch_id, foreign, repeated)
        tools.ledger.add_event(
            batch.job_id,
            "odd_rows",
            batch_id=batch.batch_id,
            reason=f"foreign={foreign} repeated={repeated}",
        )


def _tell_refused_lines(tools: Tools, batch: Batch, slots: Sequence[_Slot], ending: Ending) -> None:
    """Note which lines the provider refused, and which rows they came from."""
    named = [
        f"line {line} ({slots[line - 1].custom_id[:_ID_SHOWN]!r}): {error.code}"
        for line, error in sorted(ending.lines.items())
    ]
    more = f"; and {len(named) - _LINES_TOLD} more" if len(named) > _LINES_TOLD else ""
    told = "; ".join(named[:_LINES_TOLD]) + more
    log.error("batch %s: the provider refused it: %s", batch.batch_id, told)
    tools.ledger.add_event(batch.job_id, "lines_refused", batch_id=batch.batch_id, reason=told)


def _tell_failed_validator(batch: Batch, slots: Sequence[_Slot]) -> None:
    """Log that the caller's validator failed, and where: by kind and line, which quote nothing."""
    failed = [slot for slot in slots if slot.code == VALIDATOR_FAILED and slot.verdict in ANSWER_FAULTS]
    if failed:
        log.error(
            "batch %s: %d answers could not be validated, the first of row %r: %s",
            *(batch.batch_id, len(failed), failed[0].custom_id[:_ID_SHOWN], failed[0].message),
        )


def _choose_among(
    tools: Tools,
    batch: Batch,
    files: Sequence[Mapping[str, Any]],
    slots: Mapping[str, _Slot],
    words: _Words,
) -> None:
    """Give requests with several rows the one that stands, by what the rows say and not by their order.

    Reads the files again: the first row of each request need not be kept for the few that repeat.
    """
    best: dict[str, tuple[int, bytes]] = {}
    for row in iter_raw_rows(tools, batch, files):
        slot = slots.get(row.wire_id)
        if slot is None:
            continue
        judged = slot.judge(row, tools.spec.judge)
        place = (STANDING[judged[0]], row_digest(row))
        if row.wire_id not in best or place < best[row.wire_id]:
            best[row.wire_id] = place
            slot.note(row, judged, words)


def row_digest(row: Row) -> bytes:
    """Digest what a row says, whatever its id: decides between rows of the same verdict."""
    return hashlib.sha256(encode_line(msgspec.structs.replace(row, wire_id=""))).digest()


def _outcome(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    slot: _Slot,
    line: int,
    ending: Ending,
    words: _Words,
) -> Outcome:
    verdict, code, message, forced = slot.verdict, slot.code, slot.message, None
    used = slot.usage
    usage = (used.input, used.output, used.cached, used.cache_write, used.reasoning)
    if verdict is Verdict.OK:
        return Outcome(slot.custom_id, slot.wire_id, verdict, Disposition.LAND, code or verdict.value, usage)
    if verdict is None or (verdict is Verdict.CANCELLED and ending.failed):
        # A gateway writes "the batch failed" for each row: that says no more than no row at all.
        named = ending.lines.get(line)
        if named is not None:
            verdict, code, message = Verdict.BAD_REQUEST, named.code, f"line {line}: {named.message}"
        else:
            verdict, code, forced = ending.verdict, ending.code, ending.disposition
    elif verdict is Verdict.CANCELLED and ending.disposition is Disposition.HALT:
        forced = Disposition.HALT
    exhausted = False
    if forced is not None:
        disposition = forced
    else:
        charged, free = attempts_used(
            slot.history, revision=job.revision, since_round=int(job.seen.get("allowance_round", 0))
        )
        changeable = tools.spec.policy.changeable(
            verdict, code, model=batch.model, params=template.params, overrides=batch.overrides
        )
        disposition, exhausted = tools.spec.policy.decide(
            verdict, code, charged=charged, free=free, changeable=changeable
        )
    return Outcome(
        custom_id=slot.custom_id,
        wire_id=slot.wire_id,
        verdict=verdict,
        disposition=disposition,
        code=code or str(verdict),
        usage=usage,
        message=message,
        exhausted=exhausted,
        text=words.read(slot.words),
    )
