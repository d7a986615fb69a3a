"""Engines that are wrong: each lacks one thing that keeps rows from being paid for twice or lost.

They are made in the task processes alone, by replacing functions; no production code knows of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from airflow_batch_llm.core import doubts, opening, strange_results, unmarked
from airflow_batch_llm.core.model import Batch, Job, RemoteBatch
from airflow_batch_llm.core.spec import Later, StageOrder
from airflow_batch_llm.core.tools import Tools


def _no_find() -> None:
    """A create call in doubt is taken as one that had no effect, at once."""

    async def resolve_doubt(tools: Tools, job: Job, batch: Batch) -> None:
        tools.ledger.leave_submitting(batch, reason="not_at_provider")

    _replace(doubts.resolve_doubt, resolve_doubt)


def _no_lease() -> None:
    """Who meets another's intent asks the provider, and takes "not there" for an answer at once."""

    async def resolve_doubt(tools: Tools, job: Job, batch: Batch) -> None:
        found = await doubts._find_any(tools, job, batch)
        if found is not None:
            await doubts.settle_on(tools, job, batch, found[0])
            return
        tools.ledger.leave_submitting(batch, reason="not_at_provider")

    _replace(doubts.resolve_doubt, resolve_doubt)


def _token_without_attempt() -> None:
    """All attempts of a batch have one token, so an earlier attempt's batch passes for this one's.

    The engine has a second defence, which this lacks as well: it never adopts a batch that failed
    before it ran. Of two with the same token the first made is taken: nothing tells them apart.
    """
    real = doubts.token

    def token(job: Job, batch: Batch, attempt: int) -> str:
        return real(job, batch, 0)

    async def find_any(tools: Tools, job: Job, batch: Batch) -> tuple[RemoteBatch, int] | None:
        found = await tools.backend_of(batch).find(token(job, batch, batch.attempt))
        return (found[-1], batch.attempt) if found else None

    _replace(real, token)
    _replace(doubts._find_any, find_any)


def _stage_again() -> None:
    """A retry of the submitting task reads the source again and pins another plan.

    Nothing is paid twice by it where the source stands still, because a plan is compared with what
    was sent before. What that comparison lacks: a source that has changed meanwhile, without a clear.
    """
    real = opening.open_job

    async def open_job(tools: Tools, order: StageOrder) -> Job:
        job = await real(tools, order)
        if order.first_try or job.plan_id is None or job.seen.get("again") == order.mark:
            return job  # once is enough: with each further one the job would come to no end
        facts: dict[str, Any] = {
            "conn_id": job.conn_id,
            "provider": job.provider,
            "endpoint": job.endpoint,
            "model": job.model,
            "deadline_at": job.deadline_at,
        }
        seen = {"previous_plan": job.plan_id, "again": order.mark}
        return tools.ledger.begin_revision(job, seen=seen, fresh=False, **facts) or tools.reload(job)

    _replace(real, open_job)


def _count_alone() -> None:
    """Without marks a batch with the right count is taken for ours, whatever ids its rows have.

    Of several the first made is taken: nothing but their rows tells them apart.
    """

    async def resolve(tools: Tools, job: Job, batch: Batch, now: float) -> Later | None:
        backend = tools.backend_of(batch)
        for remote in reversed(await backend.list_since(batch.created_at - unmarked.CLOCK_SLACK)):
            known = tools.ledger.batches_at_provider(remote.id)
            if remote.counts.get("total") == batch.requests and not known:
                await doubts.settle_on(tools, job, batch, remote)
                return None
        return doubts._not_there(tools, batch, now)

    _replace(doubts._resolve_unmarked, resolve)
    strange_results.Held.lacks_answers = lambda held: False


def _replace(function: Any, other: Any) -> None:
    """Put another function in place of one, wherever the engine has imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_batch_llm.core."):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    setattr(module, attribute, other)


MUTANTS: dict[str, Callable[[], None]] = {
    "no_find": _no_find,
    "no_lease": _no_lease,
    "token_without_attempt": _token_without_attempt,
    "stage_again": _stage_again,
    "count_alone": _count_alone,
}


def apply_mutant(name: str | None) -> None:
    """Make this process's engine wrong in the way named. Not undone: the process is short-lived."""
    if name is not None:
        MUTANTS[name]()
