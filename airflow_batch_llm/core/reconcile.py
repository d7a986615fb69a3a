"""reconcile: ended -> reconciled. Every request of the batch gets exactly one outcome.

The provider's files are fetched, or a person has brought them (:mod:`~airflow_batch_llm.core.by_hand`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_batch_llm.core.doubts import claim, seek_strays
from airflow_batch_llm.core.endings import QUEUE_CODES, RESULTS_GONE, Ending, ending_as_noted, ending_of
from airflow_batch_llm.core.files import raw_entry, raw_path
from airflow_batch_llm.core.handed_files import hint
from airflow_batch_llm.core.holds import account_rows, rows_work
from airflow_batch_llm.core.judging import judge_batch
from airflow_batch_llm.core.model import (
    IN_FLIGHT,
    NOT_SENT,
    Batch,
    BatchKind,
    BatchState,
    Job,
    RemoteBatch,
    RemoteStatus,
    RequestTemplate,
)
from airflow_batch_llm.core.places import is_it, refuse_moved
from airflow_batch_llm.core.spec import Later
from airflow_batch_llm.core.strange_results import Held
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import (
    ConfigurationError,
    NotFound,
    ProviderError,
    TransferError,
    Unreachable,
)

#: Halt code of rows, or of a batch, that blame the account.
_ACCOUNT = "BLLM-021"
#: Event: results did not come whole.
NOT_FETCHED = "results_not_fetched"


async def reconcile_batch(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> Later | None:
    """Read what an ended batch brought and write one outcome for each of its requests.

    A batch that failed before it ran because the queue was full, or because its upload is gone, is
    put back to ``planned`` instead; one that was adopted provisionally and is not ours is in doubt again.
    Returns when to come again where its results are not there yet.

    :raises Unreachable: the provider goes on showing a batch that has ended as running.
    :raises ConfigurationError: the batch or a file of it is not there, and its connection names another
        server or account by now.
    """
    if batch.files:
        await _reconcile_handed_in(tools, job, batch, template)
        return None
    later = _while_reads_lag(tools, batch)
    remote = await _look_again(tools, batch)
    if remote is None and _is_unread(tools, batch):
        refuse_moved(tools, batch)
    if later is not None and (remote is None or not remote.status.terminal or _names_no_answers(remote)):
        return later
    if remote is not None and not remote.status.terminal:
        raise Unreachable(f"batch {batch.batch_id} had ended and is now shown as {remote.raw_status}")
    if batch.provisional and remote is not None:
        with _way_out_told(tools, batch):
            claimed = await claim(tools, batch, remote)
        if claimed is None:
            return None
        batch = claimed
    if remote is not None and _put_back(tools, batch, remote):
        return None
    await _look_for_strays(tools, job, batch)
    # What may be somebody else's is not kept: where its rows do not tell whose it is, a person decides.
    told = remote is not None and not batch.provisional
    files = await _fetch(tools, batch, remote) if remote is not None and told else None
    if remote is not None and files is not None:
        ending = ending_of(batch, remote)
    elif not _is_unread(tools, batch):
        return None  # somebody has read it meanwhile, and deleted the provider's copy, or brought its results
    elif later is not None:
        return later
    else:
        refuse_moved(tools, batch)
        files, ending = [], RESULTS_GONE
    judged = _judge(tools, job, batch, template, files, ending)
    if judged and remote is not None and told:
        await _clean_up(tools, batch, remote, read=ending is not RESULTS_GONE)
    tools.fault("reconcile.after_reconciled")
    return None


async def _reconcile_handed_in(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> None:
    """Judge the files that a person brought. Nothing is fetched; the provider is only asked how the batch
    ended, and where it does not say, the ledger does.

    The provider keeps its results: they may hold rows that the person's files lack.
    """
    try:
        remote = await _look_again(tools, batch) if batch.provider_batch_id else None
    except (ProviderError, ConfigurationError) as error:
        log.warning("batch %s: the provider cannot be asked how it ended (%s)", batch.batch_id, error.code)
        remote = None
    await _look_for_strays(tools, job, batch)
    shown = remote is not None and remote.status.terminal
    ending = ending_of(batch, remote) if remote is not None and shown else ending_as_noted(batch)
    judged = _judge(tools, job, batch, template, batch.files, ending)
    if judged and remote is not None and shown and not batch.provisional:
        await _clean_up(tools, batch, remote, read=False)


async def _look_for_strays(tools: Tools, job: Job, batch: Batch) -> None:
    """Look for what other attempts of the batch left behind."""
    if batch.kind is BatchKind.PRIMARY and batch.attempt > 1:
        await seek_strays(tools, job, batch)


def _judge(
    tools: Tools,
    job: Job,
    batch: Batch,
    template: RequestTemplate,
    files: Sequence[Mapping[str, Any]],
    ending: Ending,
) -> bool:
    """Write the outcomes, halt the job where they say so, and note them; says whether they stand."""
    tools.fault("reconcile.before_outcomes")
    result, halts = judge_batch(tools, job, batch, template, files, ending)
    code = _ACCOUNT if halts else None
    if ending.halt is not None and set(result.counts) - {Verdict.OK}:
        code = ending.halt  # of a batch whose rows are all answered nothing is left to decide
    if batch.kind is BatchKind.DUPLICATE or batch.revision < job.floor_revision:
        code = None
    if code == _ACCOUNT and Verdict.ACCOUNT in result.counts:
        code = code if account_rows(tools, job, batch, code, result.counts) else None
    if code is not None:
        # Before the batch counts as reconciled: a crash in between halts again, never goes on.
        tools.halt(job, code, f"batch {batch.batch_id}: {ending.code}")
    tools.fault("reconcile.before_reconciled")
    reconciled = tools.ledger.mark_reconciled(batch, result)
    rows_work(tools, batch, result.counts)
    return reconciled is not None


async def _look_again(tools: Tools, batch: Batch) -> RemoteBatch | None:
    """Return the ended batch as the provider shows it now; None where it denies it."""
    backend = tools.backend_of(batch)
    try:
        remote = await backend.retrieve(batch.provider_batch_id or "")
    except NotFound:
        return None
    return remote if is_it(backend, batch, remote) else None


def _names_no_answers(remote: RemoteBatch) -> bool:
    """Say whether the provider names no file with answers although it counts some, or counts nothing yet."""
    if any(file.kind == "output" for file in remote.files):
        return False
    if remote.counts.get("completed", 0) > 0:
        return True
    uncounted = not any(remote.counts.get(name) for name in ("completed", "failed"))
    return remote.status is RemoteStatus.DONE and not remote.files and uncounted


def _while_reads_lag(tools: Tools, batch: Batch) -> Later | None:
    """Return when to look again at results that are not there, None where they had time to appear.

    A row must not count as missing, and be paid for again, because its file is named a little late.
    """
    now, until = tools.ledger.now(), (batch.ended_at or 0.0) + tools.settings.gone_after
    return Later(min(until, now + tools.settings.look_apart / 6), "results_late") if now < until else None


def _is_unread(tools: Tools, batch: Batch) -> bool:
    now = tools.ledger.get_batch(batch.batch_id)
    return now is not None and now.state is BatchState.ENDED and now.files == batch.files


async def _clean_up(tools: Tools, batch: Batch, remote: RemoteBatch, *, read: bool) -> None:
    """Delete the provider's copies of what the workspace holds now; result files only where they would
    otherwise stay for ever. What cannot be deleted is litter, not a fault of the job.

    :param read: the results were read. Where not, they may be there again, for a person.
    """
    backend = tools.backend_of(batch)
    litter = [_own_input(tools, batch, remote)]
    if read and not backend.files_expire:
        litter += [file.file_id for file in remote.files]
    for file_id in filter(None, litter):
        try:
            await backend.delete_file(file_id)
        except ProviderError as error:
            log.warning("batch %s: file %s could not be deleted (%s)", batch.batch_id, file_id, error.code)


def _own_input(tools: Tools, batch: Batch, remote: RemoteBatch) -> str | None:
    """Return the uploaded file unless another batch, a duplicate or its primary, may still be reading it."""
    file_id = batch.input_file_id or remote.input_file_id
    others = tools.ledger.batches(batch.job_id, states=IN_FLIGHT | NOT_SENT)
    return None if any(other.input_file_id == file_id for other in others) else file_id


def _put_back(tools: Tools, batch: Batch, remote: RemoteBatch) -> bool:
    if remote.status is not RemoteStatus.FAILED or remote.files or batch.kind is BatchKind.DUPLICATE:
        return False
    current = tools.ledger.get_job(batch.job_id)
    if current is None or current.revision != batch.revision:
        # Nobody sends what an earlier revision planned: its rows go into this one's next round.
        return False
    codes = {error.code.lower() for error in remote.errors}
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


async def _fetch(tools: Tools, batch: Batch, remote: RemoteBatch) -> list[dict[str, Any]] | None:
    """Store every result file as received; returns what the ledger says about each.

    None where a file with answers is gone, or answers that are counted never came in any.

    :raises TransferError, Unreachable: one does not come whole. That, and what a person can do, is noted.
    """
    held = Held(tools, batch, remote)
    stored = []
    for number, file in enumerate(remote.files):
        kind = file.kind if [f.kind for f in remote.files].count(file.kind) == 1 else f"{file.kind}-{number}"
        path = raw_path(tools.root, batch, kind)
        with tempfile.TemporaryDirectory(prefix="batch-llm-download-") as folder:
            local = Path(folder) / "raw.jsonl"
            try:
                with _way_out_told(tools, batch):
                    await tools.backend_of(batch).download(remote, file, local)
            except NotFound:
                refuse_moved(tools, batch)
                if file.kind == "output" and _may_hold_answers(tools, batch, remote):
                    return None
                log.warning("batch %s: its %s file is gone", batch.batch_id, file.kind)
                continue
            held.look_into(file.kind, local)
            tools.fault("reconcile.before_raw")
            info = tools.workspace.put_file(path, local)
        stored.append(raw_entry(tools.root, path, file.kind, file.file_id, info))
    if not held.lacks_answers():
        return stored
    if any(file.kind == "output" for file in remote.files):
        with _way_out_told(tools, batch):
            raise TransferError(f"batch {batch.batch_id}: what came as its results holds no row of it")
    # Counted, and in no file for as long as reads may lag. One that was cut short may have lost them.
    return None if remote.status is RemoteStatus.DONE else stored


def _may_hold_answers(tools: Tools, batch: Batch, remote: RemoteBatch) -> bool:
    """Say whether an output file that is named and not there may hold what was paid for."""
    counts = remote.counts
    uncounted = remote.status is RemoteStatus.DONE or "completed" not in counts
    return uncounted or counts["completed"] > 0 or _while_reads_lag(tools, batch) is not None


@contextmanager
def _way_out_told(tools: Tools, batch: Batch) -> Iterator[None]:
    """Say in an error, and once as an event, how results get in that nobody but a person can fetch."""
    try:
        yield
    except (TransferError, Unreachable) as error:
        way = f"If it fails again and again: {hint(batch)}"
        error.args = (f"{error.args[0]}. {way}", *error.args[1:])
        told = [e.action for e in tools.ledger.events(batch.job_id) if e.batch_id == batch.batch_id]
        if NOT_FETCHED not in told:
            reason = f"{error.code}. {way}"
            tools.ledger.add_event(batch.job_id, NOT_FETCHED, batch_id=batch.batch_id, reason=reason)
        raise


def ended_without_running(batch: Batch) -> bool:
    """Say whether an ended batch failed as a whole, so that judging it may put it back."""
    return batch.state is BatchState.ENDED and batch.provider_status == RemoteStatus.FAILED
