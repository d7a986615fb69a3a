"""The rows of a job that have failed for good, in the form of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from airflow_batch_llm.core.files import iter_members, iter_refusals, iter_requests
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import MACHINE, BatchKind, DeadLetter, Job, LetterState
from airflow_batch_llm.core.ports import RowIndex, Workspace
from airflow_batch_llm.core.tools import chunks
from airflow_batch_llm.storage.row_index import DiskRowIndex

#: Where a dead row stands in the index: a letter; a letter of the revision whose columns are still to be
#: found; told.
_LETTER, _MEMBER, _TOLD = 0, 1, 2


def dead_rows(ledger: Ledger, workspace: Workspace, job: Job) -> Iterator[dict[str, Any]]:
    """Yield every dead row of the job's revision: open, being sent again, or discarded by a person.

    As a row of the results, with ``verdict`` and ``code``; ``output`` is None. Key and carried columns are
    those that were staged; memory does not grow with the number of rows.
    """
    root = workspace.job_root(job.key)
    if job.plan_id is None:
        return
    with DiskRowIndex() as index:
        number = 0
        for letters in chunks(ledger.dead_letters(job.job_id), 1000):
            counted = [letter for letter in letters if _counts(letter)]
            index.put([(x.wire_id, _LETTER, 0, _encoded(x)) for x in counted], unless_a=-1)
            number += len(counted)
        if not number:
            return
        for member in iter_members(workspace, root, job.plan_id):
            if (found := index.get(member.wire_id)) is None:
                continue
            if member.key or member.carry:
                yield _told(index, member.wire_id, found[2], member.key, member.carry)
            else:
                index.update([(member.wire_id, _MEMBER, 0)], where_a=[_LETTER])
        yield from _with_columns(ledger, workspace, job, index)


def _counts(letter: DeadLetter) -> bool:
    """Say whether the letter's row is dead: what the machine discards has left the source."""
    if letter.state is LetterState.DISCARDED:
        return letter.actor != MACHINE
    return letter.state is not LetterState.RESOLVED


def _with_columns(
    ledger: Ledger, workspace: Workspace, job: Job, index: RowIndex
) -> Iterator[dict[str, Any]]:
    """Yield the members left, with the columns that stand beside their requests, or none."""
    root = workspace.job_root(job.key)
    left = index.counts().get(_MEMBER, 0)
    for refusal in iter_refusals(workspace, root, job.plan_id or ""):
        found = index.get(refusal.wire_id)
        if found is not None and found[0] == _MEMBER:
            left -= 1
            yield _told(index, refusal.wire_id, found[2], refusal.key, {})
    for batch in ledger.batches(job.job_id):
        if not left:
            return
        if batch.kind is BatchKind.DUPLICATE or batch.revision < job.floor_revision:
            continue
        for request in iter_requests(workspace, root, batch):
            found = index.get(request.wire_id)
            if found is not None and found[0] == _MEMBER:
                left -= 1
                yield _told(index, request.wire_id, found[2], request.key, request.carry)
    for wire_id in list(index.keys(a=_MEMBER)):
        found = index.get(wire_id)
        yield _told(index, wire_id, found[2] if found else None, {}, {})


def _told(
    index: RowIndex, wire_id: str, data: bytes | None, key: dict[str, Any], carry: dict[str, Any]
) -> dict[str, Any]:
    index.update([(wire_id, _TOLD, 0)], where_a=[_LETTER, _MEMBER])
    row: dict[str, Any] = msgspec.json.decode(data or b"{}")
    return {**row, "key": key, "carry": carry}


def _encoded(letter: DeadLetter) -> bytes:
    usage = letter.usage
    row = {
        "custom_id": letter.custom_id,
        "wire_id": letter.wire_id,
        "output": None,
        "model": letter.model,
        "usage": {
            "input": usage.input,
            "output": usage.output,
            "cached": usage.cached,
            "cache_write": usage.cache_write,
            "reasoning": usage.reasoning,
        },
        "finish_reason": "",
        "round": max((attempt.round for attempt in letter.attempts), default=0),
        "origin": "",
        "verdict": letter.verdict.value,
        "code": letter.code,
    }
    return msgspec.json.encode(row)
