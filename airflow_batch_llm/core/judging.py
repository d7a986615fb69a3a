"""One verdict for each request of a batch, decoded from the stored result files."""

from __future__ import annotations

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
from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import Batch, Job, Outcome, RequestTemplate, Usage
from airflow_batch_llm.core.policy import attempts_used
from airflow_batch_llm.core.ports import Workspace
from airflow_batch_llm.core.result_files import iter_raw_rows, row_digest
from airflow_batch_llm.core.slots import Slot, Words, asked_slots, plain_slots, vectors_slots
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import (
    ANSWER_FAULTS,
    STANDING,
    VALIDATOR_FAILED,
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


#: Outcomes written at a time.
_OUTCOMES = 1000
#: Refused lines named in an event, and characters of each one's id.
_LINES_TOLD, _ID_SHOWN = 5, 64


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
        return _judge(tools, job, batch, template, files, ending, before, Words(cast("BinaryIO", file)))


def _judge(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    files: Sequence[Mapping[str, Any]],
    ending: Ending,
    before: Sequence[Outcome],
    words: Words,
) -> tuple[Reconciled, int]:
    decoder: msgspec.json.Decoder[Any] = asked_slots if tools.spec.judge.needs_asked else plain_slots
    if template.endpoint == EMBEDDINGS:
        decoder = vectors_slots
    slots: list[Slot] = list(iter_requests_as(decoder, tools.workspace, tools.root, batch))
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
    slots: Mapping[str, Slot],
    words: Words,
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


def _tell_refused_lines(tools: Tools, batch: Batch, slots: Sequence[Slot], ending: Ending) -> None:
    """Note which lines the provider refused, and which rows they came from."""
    named = [
        f"line {line} ({slots[line - 1].custom_id[:_ID_SHOWN]!r}): {error.code}"
        for line, error in sorted(ending.lines.items())
    ]
    more = f"; and {len(named) - _LINES_TOLD} more" if len(named) > _LINES_TOLD else ""
    told = "; ".join(named[:_LINES_TOLD]) + more
    log.error("batch %s: the provider refused it: %s", batch.batch_id, told)
    tools.ledger.add_event(batch.job_id, "lines_refused", batch_id=batch.batch_id, reason=told)


def _tell_failed_validator(batch: Batch, slots: Sequence[Slot]) -> None:
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
    slots: Mapping[str, Slot],
    words: Words,
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


def _outcome(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    slot: Slot,
    line: int,
    ending: Ending,
    words: Words,
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
