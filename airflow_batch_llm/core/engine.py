"""advance: does for a job what can be done now, and says what it waits for.

Operators, the one-task form, the command line and the tests all come through here. Every step can be
run again at any time by anybody and does nothing twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airflow_batch_llm.core.files import job_path
from airflow_batch_llm.core.ids import META_JOB
from airflow_batch_llm.core.judging import rejudge_batch
from airflow_batch_llm.core.model import (
    IN_FLIGHT,
    Batch,
    BatchKind,
    BatchState,
    Job,
    JobState,
    RequestTemplate,
)
from airflow_batch_llm.core.observe import batch_bound, observe_batch
from airflow_batch_llm.core.reconcile import ended_without_running, reconcile_batch
from airflow_batch_llm.core.rounds import plan_next_round, redrive
from airflow_batch_llm.core.settle import settle
from airflow_batch_llm.core.spec import Progress, Rerun, StageOrder, Until
from airflow_batch_llm.core.stage import stage
from airflow_batch_llm.core.submit import Later, resolve_doubt, seek_strays, submit_batch
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    InputError,
    JobKeyTaken,
    LedgerLost,
    Refused,
    TakenOver,
)

DEADLINE = "BLLM-043"
#: Seconds until a provider that would not cancel a batch is asked again.
_ASK_AGAIN = 600.0
_UNSENT = (BatchState.PLANNED, BatchState.UPLOADED, BatchState.SUBMITTING)


@dataclass(frozen=True)
class Engine:
    """Moves one job.

    :param tools: ledger, workspace, backend and the task's spec.
    """

    tools: Tools

    # -- opening -----------------------------------------------------------------------------------
    async def open(self, order: StageOrder) -> Job:
        """Find or make the job; a mark that was never seen (a clear) begins a new revision.

        :raises LedgerLost: the ledger does not know the job, but the provider holds batches of it.
        :raises TakenOver: the mark is one that a later clear has replaced.
        :raises JobKeyTaken: another submitting task of the run has the same ``job_key``.
        """
        tools, ledger = self.tools, self.tools.ledger
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
                await self._ask_before_creating(key.origin)
            first = {**order.remember, "submit": order.mark, "owner": order.owner}
            job, _ = ledger.create_job(key, seen=first, **facts)  # type: ignore[arg-type]
        refuse_second_owner(job, order.owner, order.known_tasks)
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
                "owner": order.owner,
                "earlier_submits": earlier,
                "previous_plan": job.plan_id or job.seen.get("previous_plan"),
                "allowance_round": 0,
            }
            fresh = order.rerun is Rerun.FRESH
            # Whoever changed the job in between did not see the clear: it is tried until it counts.
            job = ledger.begin_revision(job, seen=seen, fresh=fresh, **facts) or tools.reload(job)  # type: ignore[arg-type]
        return job

    async def _ask_before_creating(self, origin: str) -> None:
        """Refuse where the provider holds batches of this task run that the ledger should know.

        They are ours if they name this very job (the ledger was set back), or are older than the ledger
        (it was replaced). Younger ones of another job id are another deployment's, with the same key.
        """
        made_at = self.tools.ledger.namespace_made_at()
        known = [
            remote
            for remote in await self.tools.backend.find_origin(origin)
            if remote.metadata.get(META_JOB) == self.tools.spec.key.job_id
            or remote.created_at is None
            # Providers count whole seconds.
            or remote.created_at < made_at - 1.0
        ]
        if known:
            raise LedgerLost(
                f"the ledger does not know job {self.tools.spec.key.job_id}, but the provider holds "
                f"{len(known)} batches of this task run (the first: {known[0].id}). Point the ledger "
                "connection back to the database that was used before; nothing was sent"
            )

    # -- moving ------------------------------------------------------------------------------------
    async def advance(self, until: Until, order: StageOrder | None = None) -> Progress:
        """Do what can be done now, up to ``until``.

        :param order: what only the submitting task knows; without it the job must be staged already.
        :raises InputError: bad ids, an empty source, a job that was never submitted; nothing was sent.
        :raises AuthError, AccountError, Refused: from the provider before any batch was accepted.
        """
        tools = self.tools
        job = await self.open(order) if order is not None else tools.ledger.get_job(tools.spec.key.job_id)
        if job is None:
            raise InputError(f"job {tools.spec.key.job_id} is not in the ledger: run the submit task first")
        if job.state is JobState.STAGING and order is not None:
            later = await self._resolve_doubts(job)
            if later is not None:
                return Progress(job, False, not_before=later.not_before, reason=later.reason)
            # Whoever was faster may have staged it, or cleared it once more.
            job = await self.open(order)
            if job.state is JobState.STAGING:
                job = stage(tools, order, job)
        return await self._drive(job, until)

    async def _resolve_doubts(self, job: Job) -> Later | None:
        """Before a new revision is staged, no create call of an earlier one may be in doubt."""
        for batch in self.tools.ledger.batches(job.job_id, states=[BatchState.SUBMITTING]):
            later = await resolve_doubt(self.tools, job, batch)
            if later is not None:
                return later
        return None

    async def _drive(self, job: Job, until: Until) -> Progress:
        tools = self.tools
        everything = until >= Until.RECONCILED
        revision, template = job.revision, tools.template(_with_plan(job))
        while True:
            job = _with_plan(tools.reload(job))
            if job.revision != revision:
                # Cleared meanwhile: what is sent from now on is asked as the new plan says.
                revision, template = job.revision, tools.template(job)
            later = await self._send(job, template)
            await self._observe(job)
            put_back, late = await self._reconcile(job, template, everything=everything)
            if put_back:
                continue
            job = tools.reload(job)
            waiting = self._waiting(job, later, late)
            if waiting is not None:
                return waiting
            if job.revision != revision or (everything and self._unread(job)):
                continue  # somebody else moved the job while we looked
            if until <= Until.RECONCILED:
                return Progress(job, True)
            if job.state is not JobState.HALTED and plan_next_round(tools, job, template) is not None:
                continue
            if until is Until.RETRIED:
                return Progress(job, True)
            if await self._seek_unrecorded(job):
                continue
            if job.state is JobState.HALTED:
                return Progress(settle(tools, job, template, final=False), True, reason="halted")
            return Progress(settle(tools, job, template, final=True), True)

    def _unread(self, job: Job) -> bool:
        """Say whether a batch has ended that nobody has judged yet."""
        return bool(self.tools.ledger.batches(job.job_id, states=[BatchState.ENDED]))

    async def _seek_unrecorded(self, job: Job) -> bool:
        """Look for what withdrawn batches left behind: a process that woke up late may have sent one."""
        found = False
        for batch in self.tools.ledger.batches(job.job_id, states=[BatchState.SUPERSEDED]):
            if batch.attempt and batch.revision >= job.floor_revision:
                found = await seek_strays(self.tools, job, batch) or found
        return found

    async def _send(self, job: Job, template: RequestTemplate) -> Later | None:
        """Send what is planned; returns the earliest time at which more can be sent."""
        tools = self.tools
        soonest: Later | None = None
        for batch in tools.ledger.batches(job.job_id, states=_UNSENT):
            if batch.kind is BatchKind.DUPLICATE:
                continue
            if batch.state is not BatchState.SUBMITTING:
                if job.state is not JobState.RUNNING or batch.revision != job.revision:
                    continue
                if job.deadline_at is not None and tools.ledger.now() > job.deadline_at:
                    tools.halt(job, DEADLINE, "job_timeout passed with unsent batches")
                    return soonest
            try:
                later = await submit_batch(tools, job, batch, template)
            except (AuthError, AccountError, Refused) as error:
                if not self._anything_accepted(job):
                    raise
                log.error("batch %s: %s", batch.batch_id, error.code)
                tools.halt(job, error.code, f"batch {batch.batch_id} was not accepted")
                return soonest
            soonest = _sooner(soonest, later)
        return soonest

    def _anything_accepted(self, job: Job) -> bool:
        """Say whether the revision paid for anything, or has yet to read what an earlier one paid for."""
        accepted = (BatchState.SUBMITTED, BatchState.ENDED, BatchState.RECONCILED, BatchState.LOST)
        return any(
            batch.revision == job.revision or batch.state in IN_FLIGHT
            for batch in self.tools.ledger.batches(job.job_id, states=accepted)
        )

    async def _observe(self, job: Job) -> None:
        for batch in self.tools.ledger.batches(job.job_id, states=[BatchState.SUBMITTED]):
            await observe_batch(self.tools, job, batch)

    async def _reconcile(
        self, job: Job, template: RequestTemplate, *, everything: bool
    ) -> tuple[bool, Later | None]:
        """Judge ended batches; says whether one was put back and can be sent again, and when to come
        again for results that are not there yet."""
        tools = self.tools
        put_back, soonest = False, None
        for batch in tools.ledger.batches(job.job_id, states=[BatchState.ENDED]):
            if not everything and not ended_without_running(batch):
                continue
            soonest = _sooner(soonest, await reconcile_batch(tools, job, batch, template))
            after = tools.ledger.get_batch(batch.batch_id)
            put_back = put_back or (after is not None and after.state is BatchState.PLANNED)
        return put_back, soonest

    def _waiting(self, job: Job, unsent_until: Later | None, unread_until: Later | None) -> Progress | None:
        """Say what the job waits for, None where nothing is outstanding."""
        ledger = self.tools.ledger
        running = ledger.batches(job.job_id, states=[BatchState.SUBMITTED])
        unsent = [
            batch
            for batch in ledger.batches(job.job_id, states=_UNSENT)
            if batch.state is BatchState.SUBMITTING
            or (job.state is JobState.RUNNING and batch.revision == job.revision)
        ]
        if not running and not unsent and unread_until is None:
            return None
        later = _sooner(unsent_until, unread_until)
        not_before = later.not_before if later is not None else None
        if unsent and unsent_until is None:
            # Put back while this pass was under way: look again at once.
            waits = [batch.not_before for batch in unsent if batch.not_before]
            not_before = min(waits) if waits else ledger.now()
        # One wait looks with one connection; the batches of another are looked at by the engine.
        watched = [batch for batch in running if batch.conn_id == running[0].conn_id]
        not_before = min(filter(None, (not_before, self._next_bound(job, running))), default=None)
        return Progress(
            job,
            False,
            provider_batches=tuple(batch.provider_batch_id or "" for batch in watched),
            conn_id=watched[0].conn_id if watched else self.tools.spec.conn_id,
            more_planned=bool(unsent) or len(watched) < len(running),
            not_before=not_before,
            reason=later.reason if later is not None else "running",
        )

    def _next_bound(self, job: Job, running: Sequence[Batch]) -> float | None:
        """Return when the next batch is to be given up, or the provider asked again to cancel."""
        now = self.tools.ledger.now()
        if running and job.deadline_at is not None and now > job.deadline_at:
            return now + _ASK_AGAIN
        bounds = [bound for batch in running if (bound := batch_bound(self.tools, batch)) is not None]
        if not bounds:
            return None
        return min(bounds) if min(bounds) > now else now + _ASK_AGAIN

    # -- by hand -----------------------------------------------------------------------------------
    async def rejudge(self) -> int:
        """Judge every reconciled batch again if the judge changed; returns how many were."""
        job = self._existing()
        template = self.tools.template(job)
        judged = 0
        for batch in self.tools.ledger.batches(job.job_id, states=[BatchState.RECONCILED]):
            judged += rejudge_batch(self.tools, job, batch, template)
        return judged

    def redrive(
        self,
        *,
        actor: str,
        reason: str,
        mark: str,
        codes: Sequence[str] = (),
        only_exhausted: bool = False,
        job_timeout: float | None = None,
    ) -> int:
        """Plan a further round with the job's open dead letters; returns how many letters it holds.

        With the same ``mark`` it acts once: called again (a retry of the task) it plans nothing.

        :param codes: only letters with one of these codes; empty for all.
        :param only_exhausted: only letters whose rows ran out of attempts.
        :param job_timeout: new bound of the job, seconds from now; None leaves the bound it has.
        :raises InputError: the job is not settled yet.
        """
        job = self._existing()
        if job.seen.get(f"redrive:{mark}") is not None:
            return 0
        if job.state is not JobState.SETTLED:
            if not redrive_under_way(job):
                raise InputError(f"job {job.job_id} is still {job.state}: re-drive it when it has settled")
            self._take_up(job, mark, actor=actor, reason=reason, job_timeout=job_timeout)
            return 0
        key = f"redrive:{mark}"
        chosen = frozenset(codes)
        planned, pinned = redrive(
            self.tools,
            job,
            self.tools.template(job),
            wanted=lambda letter: (
                (not chosen or letter.code in chosen) and (letter.exhausted or not only_exhausted)
            ),
            actor=actor,
            reason=reason,
            seen={key: job.round + 1},
            deadline_at=self.tools.ledger.now() + job_timeout if job_timeout is not None else None,
        )
        if not planned:
            self.tools.ledger.mark_seen(job, {key: job.round})
        elif pinned is None or pinned.seen.get(key) is None:
            raise InputError(
                f"job {job.job_id}: its dead letters changed while the re-drive was planned; try again"
            )
        return planned

    def _take_up(self, job: Job, mark: str, *, actor: str, reason: str, job_timeout: float | None) -> None:
        """See an unfinished re-drive through, in place of planning another; a halted one is resumed."""
        ledger = self.tools.ledger
        deadline = ledger.now() + job_timeout if job_timeout is not None else None
        current: Job | None = job
        while current is not None and current.state is JobState.HALTED:
            resumed = ledger.resume_job(current, actor=actor, reason=reason, deadline_at=deadline)
            current = resumed or self.tools.reload(current)
        while current is not None and current.seen.get(f"redrive:{mark}") is None:
            marked = ledger.mark_seen(current, {f"redrive:{mark}": current.round})
            current = marked or self.tools.reload(current)

    def _existing(self) -> Job:
        job = self.tools.ledger.get_job(self.tools.spec.key.job_id)
        if job is None:
            raise InputError(f"job {self.tools.spec.key.job_id} is not in the ledger")
        return job


def refuse_second_owner(job: Job, owner: str, known_tasks: Collection[str]) -> None:
    """See that the job belongs to this submitting task.

    :raises JobKeyTaken: another task that is in the DAG submits under the same ``job_key``.
    """
    first = job.seen.get("owner")
    if first and first != owner and first in known_tasks:
        raise JobKeyTaken(
            f"job_key {job.key.task_id!r} belongs to task {first} of this run; {owner} needs another one. "
            "Nothing was sent for it"
        )


def redrive_under_way(job: Job) -> bool:
    """Say whether a re-drive of the job was begun and has not settled."""
    return job.state is not JobState.SETTLED and int(job.seen.get("allowance_round", 0)) > 0


def _sooner(one: Later | None, other: Later | None) -> Later | None:
    """Return the one that comes first."""
    if one is None or other is None:
        return one or other
    return other if other.not_before < one.not_before else one


def _with_plan(job: Job) -> Job:
    """Return the job. :raises InputError: it was cleared, and nobody has staged it yet."""
    if job.state is JobState.STAGING or job.plan_id is None:
        raise InputError(f"job {job.job_id} has no plan: run the submit task first")
    return job
