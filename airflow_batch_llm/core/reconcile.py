"""reconcile: ended -> reconciled. Every request of the batch gets exactly one outcome."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from airflow_batch_llm.core.files import (
    encode_line,
    iter_outcomes,
    iter_requests_as,
    outcomes_path,
    raw_path,
)
from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.model import (
    IN_FLIGHT,
    NOT_SENT,
    Attempt,
    Batch,
    BatchError,
    BatchKind,
    BatchState,
    Job,
    Outcome,
    RemoteBatch,
    RemoteStatus,
    RequestTemplate,
    Row,
    Usage,
)
from airflow_batch_llm.core.policy import attempts_used
from airflow_batch_llm.core.ports import Reconciled
from airflow_batch_llm.core.submit import Later, seek_strays
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import NotFound, ProviderError, Unreachable

QUEUE_CODES = frozenset({"token_limit_exceeded", "too_many_tasks", "queue_full", "request_limit_exceeded"})
ACCOUNT_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "spend_limit_reached"}
)
#: Code of rows whose batch was refused without naming a line.
FAILED_WHOLE = "batch_failed_whole"
#: Faults that every line shares although the provider names only the first.
SHARED_CODES = frozenset(
    {"model_not_found", "mismatched_model", "model_mismatch", "invalid_url", "url_mismatch", "unknown_model"}
)


@dataclass(frozen=True, slots=True)
class _Ending:
    """What the way a batch ended means for requests without a result row.

    :param lines: 1-based input lines that the provider named, with its codes.
    :param halt: error code to stop the job with, None to go on.
    """

    verdict: Verdict
    code: str
    lines: Mapping[int, BatchError]
    disposition: Disposition | None = None
    halt: str | None = None


async def reconcile_batch(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> Later | None:
    """Read what an ended batch brought and write one outcome for each of its requests.

    A batch that failed before it ran because the queue was full, or because its upload is gone, is
    put back to ``planned`` instead. Returns when to come again where its results are not there yet.

    :raises Unreachable: the provider goes on showing a batch that has ended as running.
    """
    later = _while_reads_lag(tools, batch)
    remote = await _look_again(tools, batch)
    if later is not None and (remote is None or not remote.status.terminal or _lacks_answers(remote)):
        return later
    if remote is not None and not remote.status.terminal:
        raise Unreachable(f"batch {batch.batch_id} had ended and is now shown as {remote.raw_status}")
    if remote is not None and _put_back(tools, batch, remote):
        return None
    if batch.kind is BatchKind.PRIMARY and batch.attempt > 1:
        await seek_strays(tools, job, batch)
    files = await _fetch(tools, batch, remote) if remote is not None else None
    if remote is not None and files is not None:
        ending = _ending(batch, remote)
    elif not _is_unread(tools, batch):
        return None  # somebody else has read it meanwhile, and deleted the provider's copy
    elif later is not None:
        return later
    else:
        # Paid for and not to be had: whether the rows are paid for again is a person's decision.
        files, ending = [], _Ending(Verdict.MISSING, "results_gone", {}, Disposition.HALT, "BLLM-031")
    tools.fault("reconcile.before_outcomes")
    result, halts = judge_batch(tools, job, batch, template, files, ending)
    code = ending.halt or ("BLLM-021" if halts else None)
    if code is not None and batch.kind is BatchKind.PRIMARY and batch.revision >= job.floor_revision:
        # Before the batch counts as reconciled: a crash in between halts again, never goes on.
        tools.halt(job, code, f"batch {batch.batch_id}: {ending.code}")
    tools.fault("reconcile.before_reconciled")
    if tools.ledger.mark_reconciled(batch, result) is not None and remote is not None:
        await _clean_up(tools, batch, remote)
    tools.fault("reconcile.after_reconciled")
    return None


async def _look_again(tools: Tools, batch: Batch) -> RemoteBatch | None:
    """Return the ended batch as the provider shows it now; None where it denies it."""
    try:
        return await tools.backend.retrieve(batch.provider_batch_id or "")
    except NotFound:
        return None


def _lacks_answers(remote: RemoteBatch) -> bool:
    """Say whether the provider counts answers but names no file with them."""
    return remote.counts.get("completed", 0) > 0 and not any(file.kind == "output" for file in remote.files)


def _while_reads_lag(tools: Tools, batch: Batch) -> Later | None:
    """Return when to look again at results that are not there, None where they had time to appear.

    A row must not count as missing, and be paid for again, because its file is named a little late.
    """
    now, until = tools.ledger.now(), (batch.ended_at or 0.0) + tools.settings.gone_after
    return Later(min(until, now + tools.settings.look_apart / 6), "results_late") if now < until else None


def _is_unread(tools: Tools, batch: Batch) -> bool:
    now = tools.ledger.get_batch(batch.batch_id)
    return now is not None and now.state is BatchState.ENDED


async def _clean_up(tools: Tools, batch: Batch, remote: RemoteBatch) -> None:
    """Delete the provider's copies of what the workspace holds now; result files only where they would
    otherwise stay for ever. What cannot be deleted is litter, not a fault of the job."""
    litter = [_own_input(tools, batch, remote)]
    if not tools.backend.files_expire:
        litter += [file.file_id for file in remote.files]
    for file_id in filter(None, litter):
        try:
            await tools.backend.delete_file(file_id)
        except ProviderError as error:
            log.warning("batch %s: file %s could not be deleted (%s)", batch.batch_id, file_id, error.code)


def _own_input(tools: Tools, batch: Batch, remote: RemoteBatch) -> str | None:
    """Return the uploaded file unless another batch, a duplicate or its primary, may still be reading it."""
    file_id = batch.input_file_id or remote.input_file_id
    others = tools.ledger.batches(batch.job_id, states=IN_FLIGHT | NOT_SENT)
    return None if any(other.input_file_id == file_id for other in others) else file_id


def rejudge_batch(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> bool:
    """Judge a reconciled batch again from its raw rows; an answered row stays answered.

    Returns whether anything was judged (the judge is another one than before).
    """
    if batch.judge == tools.spec.judge.fingerprint:
        return False
    ending = _Ending(Verdict.MISSING, "", {})
    before = list(iter_outcomes(tools.workspace, tools.root, batch))
    result, _ = judge_batch(tools, job, batch, template, batch.files, ending, before=before)
    tools.fault("rejudge.before_reconciled")
    tools.ledger.mark_reconciled(batch, result)
    return True


def _put_back(tools: Tools, batch: Batch, remote: RemoteBatch) -> bool:
    if remote.status is not RemoteStatus.FAILED or remote.files or batch.kind is BatchKind.DUPLICATE:
        return False
    current = tools.ledger.get_job(batch.job_id)
    if current is None or current.revision != batch.revision:
        # Nobody sends what an earlier revision planned: its rows go into this one's next round.
        return False
    codes = {error.code for error in remote.errors}
    if codes & QUEUE_CODES:
        waits = tools.settings.queue_wait * 2 ** min(max(batch.attempt - 1, 0), 10)
        not_before = tools.ledger.now() + min(waits, tools.settings.queue_wait_max)
        tools.ledger.put_back(batch, reason="queue_full", not_before=not_before)
        return True
    upload_gone = any(e.line is None and e.param in ("file_id", "input_file_id") for e in remote.errors)
    if upload_gone and batch.attempt < tools.settings.max_uploads:
        tools.ledger.put_back(batch, reason="upload_gone", not_before=None)
        return True
    return False


def _ending(batch: Batch, remote: RemoteBatch) -> _Ending:
    """Decide what a request without a row means, from how the batch ended."""
    if remote.status is RemoteStatus.EXPIRED:
        return _Ending(Verdict.EXPIRED, "batch_expired", {})
    if remote.status is RemoteStatus.CANCELLED:
        if batch.cancel_asked_by is not None:
            return _Ending(Verdict.CANCELLED, "batch_cancelled", {})
        return _Ending(Verdict.CANCELLED, "cancelled_elsewhere", {}, Disposition.HALT, "BLLM-032")
    if remote.status is RemoteStatus.FAILED:
        return _failed(batch, remote)
    return _Ending(Verdict.MISSING, "missing", {})


def _failed(batch: Batch, remote: RemoteBatch) -> _Ending:
    first = remote.errors[0] if remote.errors else BatchError("batch_failed")
    codes = {error.code for error in remote.errors}
    if codes & QUEUE_CODES:
        return _Ending(Verdict.CANCELLED, first.code, {})
    if codes & ACCOUNT_CODES:
        return _Ending(Verdict.ACCOUNT, first.code, {}, Disposition.HALT, "BLLM-021")
    if codes & SHARED_CODES or first.param in ("file_id", "input_file_id"):
        return _Ending(Verdict.CANCELLED, first.code, {}, Disposition.HALT, "BLLM-023")
    lines = {error.line: error for error in remote.errors if error.line is not None}
    if not lines and batch.requests == 1:
        lines = {1: first}
    return _Ending(Verdict.CANCELLED, "batch_failed" if lines else FAILED_WHOLE, lines)


async def _fetch(tools: Tools, batch: Batch, remote: RemoteBatch) -> list[dict[str, Any]] | None:
    """Store every result file as received; returns what the ledger says about each.

    None where a file with answers is gone.
    """
    answers = remote.status is RemoteStatus.DONE or remote.counts.get("completed", 0) > 0
    known = {str(file["file_id"]): dict(file) for file in batch.files}
    stored = []
    for number, file in enumerate(remote.files):
        kind = file.kind if [f.kind for f in remote.files].count(file.kind) == 1 else f"{file.kind}-{number}"
        path = raw_path(tools.root, batch, kind)
        if file.file_id not in known:
            with tempfile.TemporaryDirectory(prefix="batch-llm-download-") as folder:
                local = Path(folder) / "raw.jsonl"
                try:
                    await tools.backend.download(remote, file, local)
                except NotFound:
                    if answers and file.kind == "output":
                        return None
                    log.warning("batch %s: its %s file is gone", batch.batch_id, file.kind)
                    continue
                tools.fault("reconcile.before_raw")
                info = tools.workspace.put_file(path, local)
            known[file.file_id] = {
                "kind": file.kind,
                "file_id": file.file_id,
                "path": path.removeprefix(tools.root + "/"),
                "bytes": info.size,
                "sha256": info.sha256,
            }
        stored.append(known[file.file_id])
    return stored


def iter_raw_rows(tools: Tools, batch_files: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Decode the stored result files, line by line."""
    for file in batch_files:
        opened = tools.workspace.open_checked(
            f"{tools.root}/{file['path']}", int(file["bytes"]), str(file["sha256"])
        )
        decode = tools.backend.decode
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


_slots = msgspec.json.Decoder(_Slot)
#: Outcomes written at a time.
_OUTCOMES = 1000


def judge_batch(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    files: Sequence[Mapping[str, Any]],
    ending: _Ending,
    *,
    before: Sequence[Outcome] = (),
) -> tuple[Reconciled, int]:
    """Write the batch's outcomes; returns what goes into the ledger and how many rows halt the job."""
    slots = list(iter_requests_as(_slots, tools.workspace, tools.root, batch))
    _read_rows(tools, batch, files, {slot.wire_id: slot for slot in slots})
    counts: Counter[str] = Counter()
    good = halts = 0
    totals = [0, 0, 0, 0, 0]
    lines: list[bytes] = []
    with _outcomes_file(tools, batch) as out:
        for line, slot in enumerate(slots, start=1):
            stands = before[line - 1] if before else None
            promoted = slot.verdict is Verdict.OK and stands is not None and stands.verdict is not Verdict.OK
            if stands is None or promoted:
                outcome = _outcome(tools, job, batch, template, slot, line, ending)
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
def _outcomes_file(tools: Tools, batch: Batch) -> Iterator[_OutcomesFile]:
    """Write a file of outcomes whose name holds its digest.

    Two processes may judge a batch at once, each its own way (other judge, other revision): neither
    may overwrite the file that the ledger has come to name.
    """
    with tempfile.TemporaryDirectory(prefix="batch-llm-outcomes-") as folder:
        local = Path(folder) / "outcomes.jsonl"
        with local.open("wb", buffering=1 << 20) as file:
            out = _OutcomesFile(file)
            yield out
        tools.workspace.put_file(outcomes_path(tools.root, batch, out.sha256), local)


def _read_rows(
    tools: Tools, batch: Batch, files: Sequence[Mapping[str, Any]], slots: Mapping[str, _Slot]
) -> None:
    """Join the result rows to their requests; the better of two rows for one request stands."""
    foreign = repeated = 0
    check = tools.spec.judge.check
    for row in iter_raw_rows(tools, files):
        slot = slots.get(row.wire_id)
        if slot is None:
            foreign += 1
            continue
        verdict, code = check(row)
        if slot.verdict is not None:
            repeated += 1
            if verdict is not Verdict.OK or slot.verdict is Verdict.OK:
                continue
        slot.verdict, slot.code, slot.usage = verdict, code, row.usage
        slot.message = row.message if verdict is not Verdict.OK else ""
    if foreign or repeated:
        log.warning("batch %s: %d foreign and %d repeated result rows", batch.batch_id, foreign, repeated)
        tools.ledger.add_event(
            batch.job_id,
            "odd_rows",
            batch_id=batch.batch_id,
            reason=f"foreign={foreign} repeated={repeated}",
        )


def _outcome(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    slot: _Slot,
    line: int,
    ending: _Ending,
) -> Outcome:
    verdict, code, message, forced = slot.verdict, slot.code, slot.message, None
    used = slot.usage
    usage = (used.input, used.output, used.cached, used.cache_write, used.reasoning)
    if verdict is Verdict.OK:
        return Outcome(slot.custom_id, slot.wire_id, verdict, Disposition.LAND, code or verdict.value, usage)
    if verdict is None:
        named = ending.lines.get(line)
        if named is not None:
            verdict, code, message = Verdict.BAD_REQUEST, named.code, named.message
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
            verdict, model=batch.model, params=template.params, overrides=batch.overrides
        )
        disposition, exhausted = tools.spec.policy.decide(
            verdict, charged=charged, free=free, changeable=changeable
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
    )


def ended_without_running(batch: Batch) -> bool:
    """Say whether an ended batch failed as a whole, so that judging it may put it back."""
    return batch.state is BatchState.ENDED and batch.provider_status == RemoteStatus.FAILED
