"""Where every row of a revision stands, counted from the rows themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from airflow_batch_llm.core.files import iter_member_columns, iter_outcomes, iter_refusals, rows_path
from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, Job, Outcome
from airflow_batch_llm.core.plan_files import (
    DUPLICATES,
    REUSED,
    Duplicate,
    feed_digests,
    further_files,
    iter_duplicates,
    iter_reused_ids,
)
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.tools import Tools, chunks
from airflow_batch_llm.core.verdicts import Disposition
from airflow_batch_llm.exceptions import AccountingError, WorkspaceError

#: Stand where a batch number is expected: nothing decided about the row yet; it was refused when staged; an
#: earlier job had the answer.
NOBODY, WHEN_STAGED, EARLIER_JOB = -1, -2, -3
_FIRST_RIDING = -10
#: Rows with their columns, of any size, that are in memory at a time.
_FEW = 1000

_duplicates = msgspec.json.Decoder(Duplicate)


class Fate(IntEnum):
    """Where a row of the revision stands."""

    PENDING = 0
    ANSWERED = 1
    DEAD = 2
    LEFT = 3  #: has an outcome that asks for another round


_OPEN_FATES = [Fate.PENDING, Fate.DEAD, Fate.LEFT]


def riding(decided_by: int) -> int:
    """Return what stands in place of a batch number for rows that share the fate of another row.

    :param decided_by: what stands there for that other row.
    """
    return _FIRST_RIDING - decided_by


def rider(index: RowIndex, wire_id: str) -> Duplicate:
    """Return the line of a row that shares another's fate."""
    found = index.get(wire_id)
    return _duplicates.decode((found[2] if found is not None else None) or b"{}")


def count_rows(
    tools: Tools, job: Job, batches: list[Batch], index: RowIndex, *, final: bool
) -> dict[str, int]:
    """Fill the index with every row's fate and prove that the sums agree.

    The index holds wire id -> (:class:`Fate`, number of the batch that decided it). Beside it stand the
    columns that a later revision may have changed, or the line of a row that shares another's fate.

    :raises AccountingError: they do not.
    :raises WorkspaceError: the plan's files are not what was pinned.
    """
    files = further_files(tools.workspace, tools.root, job.plan_id) if job.plan_id is not None else {}
    total = _index_members(tools, job, index, files)
    with tools.new_index() as others:
        if DUPLICATES in files:
            _index_duplicates(tools, job, index, others)
        for number, batch in enumerate(batches):
            if batch.state is BatchState.RECONCILED and batch.revision >= job.floor_revision:
                for outcomes in chunks(iter_outcomes(tools.workspace, tools.root, batch)):
                    _note_outcomes(index, batch, number, outcomes)
                    if DUPLICATES in files:
                        _note_outcomes(others, batch, number, outcomes)
        refused = _note_refused(tools, job, index)
        reused = _note_reused(tools, job, index, files)
        duplicates = _share_fates(tools, job, index, others, files)
    found = index.counts()
    answered, dead = found.get(Fate.ANSWERED, 0), found.get(Fate.DEAD, 0)
    left, pending = found.get(Fate.LEFT, 0), found.get(Fate.PENDING, 0)
    if final:
        dead, left = dead + left, 0
    if answered + dead + left + pending != total or (final and pending):
        raise AccountingError(
            f"job {job.job_id} revision {job.revision}: {total} rows, but {answered} answered + {dead} dead "
            f"+ {left + pending} pending"
        )
    withdrawn = job.counts.get("withdrawn", 0)
    return {
        "rows": total,
        "answered": answered,
        "dead": dead,
        "pending": left + pending,
        "refused": refused,
        "withdrawn": withdrawn,
        **({"reused": reused} if reused else {}),
        **({"duplicates": duplicates} if duplicates else {}),
    }


def _index_members(tools: Tools, job: Job, index: RowIndex, files: Mapping[str, Mapping[str, Any]]) -> int:
    if job.plan_id is None:
        return 0
    total = 0
    digest = hashlib.sha256()
    for chunk in chunks(iter_member_columns(tools.workspace, tools.root, job.plan_id), _FEW):
        total += len(chunk)
        digest.update("".join(member.wire_id for member in chunk).encode())
        if job.revision == 1:
            index.insert([(member.wire_id, Fate.PENDING, NOBODY) for member in chunk])
        else:
            # The requests of earlier revisions hold the columns as they were then.
            index.put(
                [(m.wire_id, Fate.PENDING, NOBODY, msgspec.json.encode(m.columns)) for m in chunk],
                unless_a=-1,
            )
    feed_digests(digest, files)
    if digest.hexdigest() != job.plan_digest:
        raise WorkspaceError(
            f"{tools.workspace.url(rows_path(tools.root, job.plan_id))} is not what was pinned: the digest "
            "of its rows differs"
        )
    if total != job.counts.get("rows", total):
        raise AccountingError(
            f"job {job.job_id}: {job.counts['rows']} rows were staged but the plan holds {total}"
        )
    return total


def _index_duplicates(tools: Tools, job: Job, index: RowIndex, others: RowIndex) -> None:
    """Note whose fate rows share; those that left the source are followed in an index of their own."""
    for chunk in chunks(_duplicates_of(tools, job), _FEW):
        index.put([(d.wire_id, Fate.PENDING, NOBODY, msgspec.json.encode(d)) for d in chunk], unless_a=-1)
        gone = {d.of for d in chunk if index.get(d.of) is None}
        others.insert([(wire_id, Fate.PENDING, NOBODY) for wire_id in gone])


def _duplicates_of(tools: Tools, job: Job) -> Iterator[Duplicate]:
    if job.plan_id is None:
        return iter(())
    return iter_duplicates(tools.workspace, tools.root, job.plan_id)


def _note_outcomes(index: RowIndex, batch: Batch, number: int, outcomes: list[Outcome]) -> None:
    landed = [(o.wire_id, Fate.ANSWERED, number) for o in outcomes if o.disposition is Disposition.LAND]
    index.update(landed, where_a=_OPEN_FATES)
    if batch.kind is BatchKind.DUPLICATE or len(landed) == len(outcomes):
        return
    dead = [(o.wire_id, Fate.DEAD, number) for o in outcomes if o.disposition is Disposition.DEAD]
    left = [
        (o.wire_id, Fate.LEFT, number)
        for o in outcomes
        if o.disposition not in (Disposition.LAND, Disposition.DEAD)
    ]
    index.update(dead, where_a=_OPEN_FATES)
    index.update(left, where_a=_OPEN_FATES)


def _note_refused(tools: Tools, job: Job, index: RowIndex) -> int:
    refused = 0
    if job.plan_id is not None:
        for refusals in chunks(iter_refusals(tools.workspace, tools.root, job.plan_id)):
            index.update([(r.wire_id, Fate.DEAD, WHEN_STAGED) for r in refusals], where_a=[Fate.PENDING])
            refused += len(refusals)
    _expect(job, refused, job.counts.get("refused", 0), "were refused when staged")
    return refused


def _note_reused(tools: Tools, job: Job, index: RowIndex, files: Mapping[str, Any]) -> int:
    reused = 0
    if REUSED in files and job.plan_id is not None:
        ids = (answer.wire_id for answer, _ in iter_reused_ids(tools.workspace, tools.root, job.plan_id))
        for wires in chunks(ids):
            index.update([(wire, Fate.ANSWERED, EARLIER_JOB) for wire in wires], where_a=_OPEN_FATES)
            reused += len(wires)
    expected = job.counts.get("reused", 0) + job.counts.get("kept_reused", 0)
    _expect(job, reused, expected, "were answered by earlier jobs")
    return reused


def _share_fates(tools: Tools, job: Job, index: RowIndex, others: RowIndex, files: Mapping[str, Any]) -> int:
    """Give rows the fate of the request that answers them as well; an answer of their own stands."""
    shared = 0
    for chunk in chunks(_duplicates_of(tools, job), _FEW) if DUPLICATES in files else ():
        shared += len(chunk)
        fates = []
        for duplicate in chunk:
            decided = index.get(duplicate.of) or others.get(duplicate.of)
            if decided is None or decided[1] < EARLIER_JOB:
                raise AccountingError(
                    f"job {job.job_id}: request {duplicate.of} is to answer another row as well, but is "
                    "none of this job"
                )
            fates.append((duplicate.wire_id, decided[0], riding(decided[1])))
        index.update(fates, where_a=_OPEN_FATES)
    _expect(job, shared, job.counts.get("duplicates", 0), "share another's answer")
    return shared


def _expect(job: Job, found: int, staged: int, what: str) -> None:
    if found != staged:
        raise AccountingError(f"job {job.job_id}: {staged} rows {what}, but the plan names {found}")
