"""hand-in: a person brings the results of a batch that the machine cannot fetch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_batch_llm.core.by_hand.decisions import ABANDONED, BATCH_LOST, Declined
from airflow_batch_llm.core.by_hand.lacking import brought_nothing, counts_now
from airflow_batch_llm.core.files import raw_entry, raw_path
from airflow_batch_llm.core.handed_files import Contents, HandedFile, contents_of
from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, Job, JobState, RemoteBatch
from airflow_batch_llm.core.places import is_it
from airflow_batch_llm.core.result_files import iter_raw_rows, wire_ids_of
from airflow_batch_llm.core.retention import refuse_purged
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.exceptions import ConfigurationError, NotFound, ProviderError

_OUT = (BatchState.SUBMITTED, BatchState.ENDED)


@dataclass
class HandedIn:
    """What came of handing in results.

    :param batch: as it is now.
    :param changed: False where all of it had been handed in before.
    :param taken: requests of the batch that have a row now.
    :param missing: requests that have none.
    :param paid_again: so many of these are likely answered and paid for, and are sent again.
    :param foreign: rows of other batches, which are not read.
    :param repeated: further rows for a request that has one.
    :param unreadable: lines that cannot be read.
    :param fetched: kinds of files that the provider gave besides.
    :param not_fetched: kinds of files that it did not give: kind -> error code.
    """

    batch: Batch
    changed: bool = False
    taken: int = 0
    missing: int = 0
    paid_again: int = 0
    foreign: int = 0
    repeated: int = 0
    unreadable: int = 0
    fetched: list[str] = field(default_factory=list)
    not_fetched: dict[str, str] = field(default_factory=dict)


async def hand_in(
    tools: Tools,
    job: Job,
    batch: Batch,
    files: Sequence[HandedFile],
    *,
    actor: str,
    reason: str,
    as_is: bool = False,
    pay_again: bool = False,
) -> HandedIn:
    """Take files that a person downloaded for the results of a batch; the job's tasks read them from there.

    Nothing is changed before every line was read. Files of a kind that is not handed in are fetched from the
    provider where rows are lacking without them. What was handed in before stays, and counts.

    :param tools: of the batch's connection.
    :param as_is: take files with lines that cannot be read; those are no rows.
    :param pay_again: take files that lack rows which the batch has: they are sent again.
    :raises Declined: the batch has no results to bring, the files are not this batch's or not whole, or rows
        would be paid for again.
    :raises ProviderError: rows are lacking, and whether a batch that ran when it was last seen has ended
        cannot be told.
    :raises OSError: a file cannot be read.
    """
    refuse_purged(job)
    _refuse(job, batch)
    remote, unasked = None, None
    try:
        remote = await _ask(tools, batch)
    except ProviderError as error:
        unasked = error  # files that hold every row need no word of the provider
    ours = wire_ids_of(tools, batch)
    decode = tools.decoder_of(batch)
    with tempfile.TemporaryDirectory(prefix="batch-llm-hand-in-") as name:
        folder = Path(name)
        # As they are at this moment: a download may still be under way.
        brought = [_copied(file, folder / f"brought-{number}") for number, file in enumerate(files)]
        read = [contents_of(file.local, decode, ours) for file in brought]
        for file, contents in zip(files, read, strict=True):
            _refuse_contents(batch, file, contents, as_is=as_is)
        before = {row.wire_id for row in iter_raw_rows(tools, batch, batch.files)} & ours
        result = _summed(batch, read, before)
        _refuse_strange(batch, result, read)
        found = before.union(*(contents.found for contents in read))
        if len(found) < len(ours) and remote is not None and not batch.provisional:
            for fetched in await _fetch_others(tools, batch, remote, files, folder, result):
                contents = contents_of(fetched.local, decode, ours)
                found |= contents.found
                brought.append(fetched)
                read.append(contents)
        result.taken, result.missing = len(found), len(ours) - len(found)
        result.paid_again = _paid_again(job, batch, remote, len(found))
        if unasked is not None and result.missing and not pay_again:
            raise unasked
        if result.paid_again and not pay_again:
            raise Declined(_what_lacks(batch, result))
        stored = _store(tools, batch, remote, zip(brought, read, strict=True))
    known = {file["path"] for file in batch.files}
    entries = [
        *batch.files,
        *{entry["path"]: entry for entry in stored if entry["path"] not in known}.values(),
    ]
    if len(entries) == len(batch.files):
        return result
    tools.fault("hand_in.before_ledger")
    moved = tools.ledger.hand_in(
        batch,
        entries,
        job=job,
        remote=remote,
        error_code=_code_of(batch, remote),
        actor=actor,
        reason=f"{len(entries)} files, {result.taken} of {len(ours)} rows: {reason}",
    )
    if moved is None:
        raise Declined(f"batch {batch.batch_id} or its job was changed at this moment; run this again")
    result.batch, result.changed = moved, True
    return result


def _code_of(batch: Batch, remote: RemoteBatch | None) -> str | None:
    """Return the code of the batch once its results are there; none of a person's decision about it."""
    if batch.state is BatchState.SUBMITTED and remote is not None and remote.errors:
        return remote.errors[0].code
    return None if batch.error_code in (ABANDONED, BATCH_LOST) else batch.error_code


# -- what can be handed in -------------------------------------------------------------------------
def _refuse(job: Job, batch: Batch) -> None:
    """See that results of the batch can be of use."""
    named = f"batch {batch.batch_id}"
    if batch.state is BatchState.SUBMITTING:
        raise Declined(
            f"{named} is submitting: whether the provider has it is not known. Say by `batch-llm adopt` "
            "which batch there it is"
        )
    if batch.state not in _OUT and not brought_nothing(batch):
        read = batch.state is BatchState.RECONCILED
        raise Declined(f"{named} " + ("has been read" if read else f"is {batch.state}: it has no results"))
    if batch.revision < job.floor_revision:
        raise Declined(f"{named} counts for nothing any more: the job was begun anew")
    if batch.state not in _OUT and job.state is JobState.STAGING:
        raise Declined(
            f"the source of job {job.job_id} is being read again, which sends the rows of {named} again: "
            "hand its results in when the submit task has ended"
        )


async def _ask(tools: Tools, batch: Batch) -> RemoteBatch | None:
    """Return the batch as its provider shows it, ended; None where it does not show it.

    :raises Declined: it runs.
    :raises ProviderError: it cannot be asked, and the ledger does not know that the batch has ended.
    """
    if batch.provider_batch_id is None:
        return None
    try:
        backend = tools.backend_of(batch)
        remote = await backend.retrieve(batch.provider_batch_id)
    except NotFound:
        return None
    except (ProviderError, ConfigurationError):
        if batch.state is BatchState.SUBMITTED:
            raise
        return None
    if not is_it(backend, batch, remote):
        return None
    if remote.status.terminal:
        return remote
    if batch.state is not BatchState.ENDED:
        raise Declined(
            f"batch {batch.batch_id} is {remote.raw_status} at the provider: its results are not complete"
        )
    return None


# -- what the files say ----------------------------------------------------------------------------
def _refuse_contents(batch: Batch, file: HandedFile, contents: Contents, *, as_is: bool) -> None:
    """See that a file is one of the batch's, whole."""
    told = f"{file.local}: {contents.lines} lines"
    if not contents.found:
        unread = f", {len(contents.unreadable)} of them cannot be read" if contents.unreadable else ""
        raise Declined(f"{told}{unread}, and none is a row of batch {batch.batch_id} ({batch.provider})")
    if contents.unreadable and not as_is:
        raise Declined(
            f"{told}, and {contents.unreadable_lines()} cannot be read as results of {batch.provider}. "
            "Download it again; --as-is takes the rows that are whole"
        )


def _summed(batch: Batch, read: Sequence[Contents], before: Collection[str]) -> HandedIn:
    """Return what the files hold together.

    :param before: requests that have a row without them.
    """
    new: set[str] = set().union(*(contents.found for contents in read)).difference(before)
    return HandedIn(
        batch,
        foreign=sum(contents.foreign for contents in read),
        repeated=sum(contents.repeated + len(contents.found) for contents in read) - len(new),
        unreadable=sum(len(contents.unreadable) for contents in read),
    )


def _refuse_strange(batch: Batch, result: HandedIn, read: Iterable[Contents]) -> None:
    """See that files say whose they are, where it is not known which batch at the provider is ours."""
    found: set[str] = set().union(*(contents.found for contents in read))
    if batch.provisional and result.foreign and len(found) * 2 <= batch.requests:
        raise Declined(
            f"{batch.provider_batch_id} may be batch {batch.batch_id} or not, and the files hold only "
            f"{len(found)} of its rows beside {result.foreign} others: they are of another batch"
        )


def _paid_again(job: Job, batch: Batch, remote: RemoteBatch | None, found: int) -> int:
    """Return how many rows are sent again although the provider has likely answered them.

    A duplicate's rows are not sent for its sake; nor, once they were sent again, those of the batch.
    """
    if batch.kind is BatchKind.DUPLICATE or not counts_now(job, batch):
        return 0
    counts = remote.counts if remote is not None else {}
    has = counts.get("completed", 0) + counts.get("failed", 0)
    return max(min(has or batch.requests, batch.requests) - found, 0)


def _what_lacks(batch: Batch, result: HandedIn) -> str:
    lacks = (
        f"{result.paid_again} rows of batch {batch.batch_id} are not in what was handed in, and would be "
        "sent, and paid for, again: --yes-pay-again"
    )
    if not result.not_fetched:
        return lacks
    kinds = ", ".join(f"{kind} ({code})" for kind, code in sorted(result.not_fetched.items()))
    return f"{lacks}. Files of the provider that cannot be fetched, and may hold them: {kinds}"


# -- files -----------------------------------------------------------------------------------------
async def _fetch_others(
    tools: Tools,
    batch: Batch,
    remote: RemoteBatch,
    files: Iterable[HandedFile],
    folder: Path,
    result: HandedIn,
) -> list[HandedFile]:
    """Fetch the provider's files of kinds that a person does not bring, as far as they are to be had."""
    brought = {file.kind for file in files} | {str(file["kind"]) for file in batch.files}
    fetched = []
    for number, file in enumerate(remote.files):
        if file.kind in brought:
            continue
        local = folder / f"{number}.jsonl"
        try:
            await tools.backend_of(batch).download(remote, file, local)
        except ProviderError as error:
            result.not_fetched[file.kind] = error.code
            continue
        result.fetched.append(file.kind)
        fetched.append(HandedFile(file.kind, local))
    return fetched


def _store(
    tools: Tools,
    batch: Batch,
    remote: RemoteBatch | None,
    brought: Iterable[tuple[HandedFile, Contents]],
) -> list[dict[str, Any]]:
    """Store files as received; returns what the ledger says about each.

    Their names hold their digests: what somebody fetches at this moment is not overwritten, and the same
    file, brought again, is the same.
    """
    ids: dict[str, list[str]] = {}
    for file in remote.files if remote is not None and not batch.provisional else ():
        ids.setdefault(file.kind, []).append(file.file_id)
    stored = []
    for handed, contents in brought:
        path = raw_path(tools.root, batch, f"{handed.kind}-{contents.sha256[:16]}")
        info = tools.workspace.put_file(path, handed.local)
        free = ids.get(handed.kind, [])
        stored.append(raw_entry(tools.root, path, handed.kind, free.pop(0) if free else "", info))
    return stored


def _copied(file: HandedFile, local: Path) -> HandedFile:
    """Copy a file, so that what was looked at is what is stored."""
    shutil.copyfile(file.local, local)
    return HandedFile(file.kind, local)
