"""Finding a job, or making it; a clear begins a new revision of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from airflow_batch_llm.core.files import job_path
from airflow_batch_llm.core.ids import META_JOB
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Job
from airflow_batch_llm.core.retention import refuse_purged
from airflow_batch_llm.core.spec import Rerun, StageOrder
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.unmarked import CLOCK_SLACK, came_to_nothing
from airflow_batch_llm.exceptions import JobKeyTaken, LedgerLost, TakenOver

#: In ``Job.seen``: the clear of the run with which its owner took the job, and map indices that were refused.
_OWNED_SINCE, _REFUSED = "owned_since", "refused_owners"


async def open_job(tools: Tools, order: StageOrder) -> Job:
    """Find or make the job; a mark that was never seen (a clear) begins a new revision.

    :raises LedgerLost: the ledger does not know the job, but the provider holds batches of it.
    :raises TakenOver: the mark is one that a later clear has replaced.
    :raises JobKeyTaken: another submitting task of the run has the same ``job_key``.
    :raises JobPurged: the mark is a clear's, and what is answered was purged.
    """
    ledger = tools.ledger
    key = tools.spec.key
    facts = {
        "conn_id": tools.spec.conn_id,
        "provider": tools.backend.provider,
        "endpoint": order.template.endpoint,
        "model": order.template.model,
        "deadline_at": ledger.now() + order.job_timeout if order.job_timeout is not None else None,
    }
    job = ledger.get_job(key.job_id)
    if job is None:
        if not order.first_try or tools.workspace.exists(job_path(tools.root)):
            if tools.backend.marks_batches:
                await _ask_before_creating(tools, key.origin)
            else:
                await _compare_before_creating(tools)
        first = {**order.remember, "submit": order.mark, **_owned(order)}
        job, _ = ledger.create_job(key, seen=first, **facts)  # type: ignore[arg-type]
    refuse_second_owner(ledger, job, order.owner, order.clear_number, order.known_tasks)
    while job.seen.get("submit") != order.mark:
        earlier = [*job.seen.get("earlier_submits", ()), job.seen.get("submit")]
        if order.mark in earlier:
            raise TakenOver(
                f"job {job.job_id}: a later clear of {tools.spec.key.task_id} has taken over (revision "
                f"{job.revision}); this try stops. If it is the latest one, clear the task once more"
            )
        seen = {
            **order.remember,
            "submit": order.mark,
            **_owned(order),
            "earlier_submits": earlier,
            "previous_plan": job.plan_id or job.seen.get("previous_plan"),
            "allowance_round": 0,
        }
        fresh = order.rerun is Rerun.FRESH
        if not fresh:
            refuse_purged(job)
        # Whoever changed the job in between did not see the clear: it is tried until it counts.
        begun = ledger.begin_revision(job, seen=seen, fresh=fresh, **facts)  # type: ignore[arg-type]
        if begun is not None:
            # A person's act: perhaps what the connection was held for is mended.
            ledger.hurry_probe(tools.spec.conn_id, actor="clear", reason=f"job {job.job_id} was cleared")
        job = begun or tools.reload(job)
    return job


async def _ask_before_creating(tools: Tools, origin: str) -> None:
    """Refuse where the provider holds batches of this task run that the ledger should know.

    They are ours if they name this very job (the ledger was set back), or are older than the ledger
    (it was replaced). Younger ones of another job id are another deployment's, with the same key.
    """
    made_at = tools.ledger.namespace_made_at()
    known = [
        remote
        for remote in await tools.backend.find_origin(origin)
        if remote.metadata.get(META_JOB) == tools.spec.key.job_id
        or remote.created_at is None
        # Providers leave out what is below a second: one of the same second may be older, and counts as such.
        or remote.created_at < made_at
    ]
    if known:
        raise LedgerLost(
            f"the ledger does not know job {tools.spec.key.job_id}, but the provider holds "
            f"{len(known)} batches of this task run (the first: {known[0].id}). Point the ledger "
            "connection back to the database that was used before; nothing was sent"
        )


async def _compare_before_creating(tools: Tools) -> None:
    """Refuse where the workspace knows the job, and the provider holds batches since then of which the ledger
    knows nothing. It shows no marks: whether they are this task's, only a person can say.
    """
    staged = list(_staging_times(tools))
    if not staged:
        return
    since = min(staged) - CLOCK_SLACK
    unknown = [
        remote
        for remote in await tools.backend.list_since(since)
        if not came_to_nothing(remote) and not tools.ledger.batches_at_provider(remote.id)
    ]
    if unknown:
        raise LedgerLost(
            f"the ledger does not know job {tools.spec.key.job_id}, whose files are in the workspace, and "
            f"the provider, which shows no marks, holds {len(unknown)} batches since then that the ledger "
            f"does not know (the first: {unknown[-1].id}). Point the ledger connection back to the database "
            "that was used before; nothing was sent. If none of them is of this task run, delete the job's "
            f"folder {tools.workspace.url(tools.root)} and clear the task"
        )


def _staging_times(tools: Tools) -> Iterator[float]:
    """Yield when plans of the job were written, as the workspace knows it."""
    for path in tools.workspace.list(tools.root):
        if path.endswith("/job.json"):
            with tools.workspace.open(path) as file:
                described = msgspec.json.decode(file.read(), type=dict[str, Any])
            yield float(described.get("staged_at") or 0.0)


def _owned(order: StageOrder) -> dict[str, Any]:
    return {"owner": order.owner, _OWNED_SINCE: order.clear_number}


def refuse_second_owner(
    ledger: Ledger, job: Job, owner: str, clear_number: int, known_tasks: Collection[str]
) -> None:
    """See that the job belongs to this submitting task.

    Map indices may change places between clears, as what is mapped over does; two of the same clear that
    name the same job are a mistake, and the second one stays refused.

    :raises JobKeyTaken: another task that is in the DAG, or another map index, submits under the same
        ``job_key``.
    """
    first = str(job.seen.get("owner") or "")
    if first in ("", owner):
        return
    name = first.partition("[")[0]
    if name != owner.partition("[")[0]:
        if name in known_tasks:
            raise JobKeyTaken(
                f"job_key {job.key.task_id!r} belongs to task {first} of this run; {owner} needs another "
                "one. Nothing was sent for it"
            )
        return
    refused = job.seen.get(_REFUSED, ())
    if owner in refused or clear_number <= job.seen.get(_OWNED_SINCE, 0):
        _note_refused(ledger, job, owner)
        raise JobKeyTaken(
            f"job_key {job.key.task_id!r} belongs to {first} of this run; {owner} needs another one. Nothing "
            "was sent for it. Where the order of what is mapped over has changed, clear all map indices"
        )


def _note_refused(ledger: Ledger, job: Job, owner: str) -> None:
    current: Job | None = job
    while current is not None and owner not in (refused := current.seen.get(_REFUSED, ())):
        marked = ledger.mark_seen(current, {_REFUSED: [*refused, owner]})
        current = marked or ledger.get_job(job.job_id)
