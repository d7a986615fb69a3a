"""advance: does for a job what can be done now, and says what it waits for.

Operators, the one-task form, the command line and the tests all come through here. Every step can be
run again at any time by anybody and does nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_batch_llm.core.by_hand import ABANDONED, not_to_be_had
from airflow_batch_llm.core.deadline import (
    batch_bound,
    give_up_unsent,
    halt_late,
    is_late,
    leaves_all_as_it_is,
)
from airflow_batch_llm.core.doubts import resolve_doubt, seek_strays
from airflow_batch_llm.core.failures import Cannot, Failures
from airflow_batch_llm.core.holds import HELD, calls_work, is_trial, refused_call
from airflow_batch_llm.core.judging import rejudge_batch
from airflow_batch_llm.core.model import (
    IN_FLIGHT,
    NOT_SENT,
    Batch,
    BatchKind,
    BatchState,
    Job,
    JobState,
    RequestTemplate,
)
from airflow_batch_llm.core.observe import observe_batch
from airflow_batch_llm.core.opening import open_job
from airflow_batch_llm.core.reconcile import ended_without_running, reconcile_batch
from airflow_batch_llm.core.redrives import redrive
from airflow_batch_llm.core.retention import refuse_purged
from airflow_batch_llm.core.rounds import has_leftovers, plan_next_round
from airflow_batch_llm.core.settle import settle
from airflow_batch_llm.core.spec import Later, Progress, StageOrder, Until
from airflow_batch_llm.core.stage import stage
from airflow_batch_llm.core.submit import submit_batch
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.unmade import was_refused
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    ConfigurationError,
    InputError,
    NotFound,
    ProviderError,
    Refused,
    TransferError,
)

#: Seconds until a provider that would not cancel a batch is asked again.
_ASK_AGAIN = 600.0
_UNSENT = (BatchState.PLANNED, BatchState.UPLOADED, BatchState.SUBMITTING)
_TO_SEND = (BatchState.PLANNED, BatchState.SUBMITTING)


@dataclass(frozen=True)
class Engine:
    """Moves one job.

    :param tools: ledger, workspace, backend and the task's spec.
    """

    tools: Tools

    # -- moving ------------------------------------------------------------------------------------
    async def advance(self, until: Until, order: StageOrder | None = None) -> Progress:
        """Do what can be done now, up to ``until``.

        :param order: what only the submitting task knows; without it the job must be staged already.
        :raises InputError: bad ids, an empty source, a job that was never submitted; nothing was sent.
        :raises AuthError, AccountError, Refused: from the provider before any batch was accepted.
        """
        tools, job_id = self.tools, self.tools.spec.key.job_id
        job = await open_job(tools, order) if order is not None else tools.ledger.get_job(job_id)
        if job is None:
            raise InputError(f"job {job_id} is not in the ledger: run the submit task first")
        if job.state is JobState.STAGING and order is not None:
            later = await self._resolve_doubts(job)
            if later is not None:
                return Progress(job, False, not_before=later.not_before, reason=later.reason)
            # Whoever was faster may have staged it, or cleared it once more.
            job = await open_job(tools, order)
            if job.state is JobState.STAGING:
                job = stage(tools, order, job)
        return await self._drive(job, until)

    async def _resolve_doubts(self, job: Job) -> Later | None:
        """Before a new revision is staged, no create call of an earlier one may be in doubt."""
        for batch in self.tools.ledger.batches(job.job_id, states=[BatchState.SUBMITTING]):
            try:
                later = await resolve_doubt(self.tools, job, batch)
            except (AuthError, AccountError) as error:
                later = refused_call(self.tools, job, batch, error)
            if later is not None:
                return later
        return None

    async def _drive(self, job: Job, until: Until) -> Progress:
        tools = self.tools
        everything = until >= Until.RECONCILED
        revision, template = job.revision, tools.template(_with_plan(job))
        while True:
            job = _with_plan(tools.reload(job))
            refuse_purged(job)
            if job.revision != revision:
                # Cleared meanwhile: what is sent from now on is asked as the new plan says.
                revision, template = job.revision, tools.template(job)
            unsent: Cannot | None = None
            later: Later | None = None
            try:
                later = await self._send(job, template)
            except (NotFound, TransferError) as fault:
                unsent = fault  # of one upload: what was paid for is read all the same
            unseen = await self._observe(job)
            changed, unread_until, unread = await self._reconcile(job, template, everything=everything)
            for error in (unsent, unseen, unread):
                if error is not None:
                    raise error
            if changed:
                continue
            job, waiting = self._waiting(tools.reload(job), later, unread_until)
            if waiting is not None:
                return waiting
            if job.revision != revision or (everything and self._unread(job)):
                continue  # somebody else moved the job while we looked
            if until <= Until.RECONCILED:
                return Progress(job, True)
            if job.state is not JobState.HALTED and is_late(tools, job):
                job = self._at_the_end_of_its_time(job, template)
            elif job.state is not JobState.HALTED and await self._goes_on(job, template):
                continue
            if until is Until.RETRIED:
                return Progress(job, True)
            if await self._seek_unrecorded(job):
                continue
            if job.state is JobState.HALTED:
                return Progress(settle(tools, job, template, final=False), True, reason="halted")
            return Progress(settle(tools, job, template, final=True), True)

    def _at_the_end_of_its_time(self, job: Job, template: RequestTemplate) -> Job:
        """Plan no further round: what is left becomes dead letters, or stays pending in a halted job."""
        if leaves_all_as_it_is(self.tools, job) and has_leftovers(self.tools, job, template):
            return halt_late(self.tools, job, "rows are left to send again")
        return job

    async def _goes_on(self, job: Job, template: RequestTemplate) -> bool:
        """Plan a further round with what is sent again; says whether there is more to do."""
        if await self._seek_unrecorded(job, given_up=True):
            return True
        sink = self.tools.spec.sink
        if sink is not None and sink.each_round and has_leftovers(self.tools, job, template):
            settle(self.tools, job, template, final=False)
        return plan_next_round(self.tools, job, template) is not None

    def _unread(self, job: Job) -> bool:
        """Say whether a batch has ended that nobody has judged yet."""
        return bool(self.tools.ledger.batches(job.job_id, states=[BatchState.ENDED]))

    async def _seek_unrecorded(self, job: Job, *, given_up: bool = False) -> bool:
        """Look for what a process that woke up late may have sent: for a batch that was withdrawn or given
        up, or beside the one that counts and has been read.

        :param given_up: only for what a person gave up unread, as its rows are about to be sent again.
        """
        found = False
        unrecorded = [BatchState.SUPERSEDED, BatchState.RECONCILED]
        for batch in self.tools.ledger.batches(job.job_id, states=unrecorded):
            # The last attempt: it is the batch that counts, or the reply to it was that there is none.
            attempts_known = batch.provider_batch_id is not None or was_refused(batch)
            if batch.kind is BatchKind.DUPLICATE or batch.revision < job.floor_revision:
                continue
            if given_up and batch.error_code != ABANDONED:
                continue
            if batch.attempt > attempts_known:
                found = await seek_strays(self.tools, job, batch) or found
        return found

    async def _send(self, job: Job, template: RequestTemplate) -> Later | None:
        """Send what is planned; returns the earliest time at which more can be sent."""
        tools = self.tools
        soonest: Later | None = None
        held: set[str] = set()
        for batch in tools.ledger.batches(job.job_id, states=_UNSENT):
            if batch.kind is BatchKind.DUPLICATE or not self._can_be_sent(job, batch):
                continue
            late = is_late(tools, job)
            if late or job.state is not JobState.RUNNING:
                soonest = _sooner(soonest, await self._find_only(job, batch, late=late))
                continue
            if batch.conn_id in held and batch.state is not BatchState.SUBMITTING:
                continue
            try:
                later = await submit_batch(tools, job, batch, template)
            except (AuthError, AccountError, Refused) as error:
                later = self._refused(job, batch, error)
                if later is None:
                    return soonest
            if later is not None and later.reason == HELD:
                held.add(batch.conn_id)
            soonest = _sooner(soonest, later)
        return soonest

    def _can_be_sent(self, job: Job, batch: Batch) -> bool:
        """Say whether the batch is to be sent, or may have been."""
        if batch.state is BatchState.SUBMITTING:
            return True
        return job.state is JobState.RUNNING and batch.revision == job.revision

    def _refused(self, job: Job, batch: Batch, error: AuthError | AccountError | Refused) -> Later | None:
        """Wait where another job answers for a held connection; halt the job where anything was accepted.

        :raises ProviderError: ``error``, where nothing was.
        """
        if isinstance(error, AuthError | AccountError):
            try:
                return refused_call(self.tools, job, batch, error)
            except (AuthError, AccountError):
                pass  # this job tells it
        if not self._anything_accepted(job):
            raise error
        log.error("batch %s: %s", batch.batch_id, error.code)
        self.tools.halt(job, error.code, f"batch {batch.batch_id} was not accepted")
        return None

    async def _find_only(self, job: Job, batch: Batch, *, late: bool) -> Later | None:
        """Send no more: find out what was sent. What was not in time is given up, or left to a person."""
        tools = self.tools
        if late and leaves_all_as_it_is(tools, job):
            return None
        if batch.state is BatchState.SUBMITTING:
            try:
                later = await resolve_doubt(tools, job, batch)
            except (AuthError, AccountError) as error:
                return self._refused(job, batch, error)
            if later is not None:
                return later
            batch = tools.ledger.get_batch(batch.batch_id) or batch
        if late and batch.state in NOT_SENT and job.state is JobState.RUNNING:
            await give_up_unsent(tools, batch)
        return None

    def _anything_accepted(self, job: Job) -> bool:
        """Say whether the revision paid for anything, or has yet to read what an earlier one paid for."""
        accepted = (BatchState.SUBMITTED, BatchState.ENDED, BatchState.RECONCILED, BatchState.LOST)
        return any(
            batch.revision == job.revision or batch.state in IN_FLIGHT
            for batch in self.tools.ledger.batches(job.job_id, states=accepted)
        )

    async def _observe(self, job: Job) -> Cannot | None:
        """Look at what is out; returns why a batch cannot be looked at, or may not be cancelled, to be raised
        when what has ended was read: one batch must not keep the others from being read."""
        failures = Failures()
        for batch in self.tools.ledger.batches(job.job_id, states=[BatchState.SUBMITTED]):
            if failures.nobody_answers(batch.conn_id):
                continue
            try:
                error = await observe_batch(self.tools, job, batch)
            except (ProviderError, ConfigurationError) as cannot:
                failures.add(batch.conn_id, cannot)
                continue
            failures.add_success(batch.conn_id)
            if error is not None:
                failures.add_refusal(batch.conn_id, error)
        for conn_id in failures.worked():
            calls_work(self.tools, conn_id)
        return failures.first()

    async def _reconcile(
        self, job: Job, template: RequestTemplate, *, everything: bool
    ) -> tuple[bool, Later | None, Cannot | None]:
        """Judge ended batches; says whether more can be sent now (one was put back or turned out not to be
        ours, or one that tried a held connection was read), when to come again for results that are not
        there yet, and why one cannot be read, to be raised when the others were."""
        tools = self.tools
        changed, soonest, failures = False, None, Failures()
        for batch in tools.ledger.batches(job.job_id, states=[BatchState.ENDED]):
            trial = not everything and is_trial(tools, batch)
            early = trial or ended_without_running(batch) or batch.provisional
            if not everything and not early:
                continue
            if failures.nobody_answers(batch.conn_id):
                continue
            try:
                soonest = _sooner(soonest, await reconcile_batch(tools, job, batch, template))
            except (ProviderError, ConfigurationError) as error:
                failures.add(batch.conn_id, error)
                continue
            if not batch.files:  # handed in: nobody need have answered
                failures.add_success(batch.conn_id)
            after = tools.ledger.get_batch(batch.batch_id)
            state = after.state if after is not None else None
            changed = changed or state in _TO_SEND or (trial and state is BatchState.RECONCILED)
        return changed, soonest, failures.first()

    def _waiting(
        self, job: Job, unsent_until: Later | None, unread_until: Later | None
    ) -> tuple[Job, Progress | None]:
        """Say what the job waits for, None where nothing is outstanding; halts it where its time is over and
        what is outstanding is left to a person."""
        ledger = self.tools.ledger
        running = ledger.batches(job.job_id, states=[BatchState.SUBMITTED])
        unsent = [
            batch
            for batch in ledger.batches(job.job_id, states=_UNSENT)
            if batch.kind is BatchKind.PRIMARY and self._can_be_sent(job, batch)
        ]
        if (running or unsent) and leaves_all_as_it_is(self.tools, job):
            told = f"{len(running)} batches run and {len(unsent)} were not sent"
            job = halt_late(self.tools, job, told)
            if job.state is JobState.HALTED:  # if not, it has been given more time at this moment
                running, unsent, unsent_until = [], [], None
        if not running and not unsent and unread_until is None:
            return job, None
        later = _sooner(unsent_until, unread_until)
        not_before = later.not_before if later is not None else None
        if unsent and unsent_until is None:
            # Put back while this pass was under way: look again at once. In a halted job: a create call in
            # doubt that cannot be asked about now.
            pause = self.tools.settings.look_apart if job.state is JobState.HALTED else 0.0
            waits = [batch.not_before for batch in unsent if batch.not_before]
            not_before = min(waits) if waits else ledger.now() + pause
        # One wait looks with one connection; the batches of another are looked at by the engine.
        watched = [batch for batch in running if batch.conn_id == running[0].conn_id]
        not_before = min(filter(None, (not_before, self._next_bound(job, running))), default=None)
        return job, Progress(
            job,
            False,
            provider_batches=tuple(batch.provider_batch_id or "" for batch in watched),
            provisional=tuple(batch.provider_batch_id or "" for batch in watched if batch.provisional),
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
        """Judge every reconciled batch again if the judge changed; returns how many were.

        Batches from before a fresh revision decide about no row any more, and may have been purged.

        :raises JobPurged: the provider's answers are gone.
        """
        job = self._existing()
        refuse_purged(job)
        template = self.tools.template(job)
        judged = 0
        for batch in self.tools.ledger.batches(job.job_id, states=[BatchState.RECONCILED]):
            if batch.revision >= job.floor_revision:
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
        :raises InputError: the job is not settled yet, or is halted for results that are not to be had, or
            results that a person brought have not been read.
        :raises JobPurged: its requests or answers are gone.
        """
        job = self._existing()
        refuse_purged(job)
        if job.seen.get(f"redrive:{mark}") is not None:
            return 0
        if job_timeout is None and is_late(self.tools, job):
            raise InputError(f"the time of job {job.job_id} is over: a re-drive of it needs a new one")
        if job.state is not JobState.SETTLED:
            if not redrive_under_way(job):
                raise InputError(f"job {job.job_id} is still {job.state}: re-drive it when it has settled")
            self._take_up(job, mark, actor=actor, reason=reason, job_timeout=job_timeout)
            return 0
        if self._unread(job):
            raise InputError(
                f"results of job {job.job_id} were handed in and are not read yet: clear its dead_letter task"
            )
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
        if planned:
            self._hurry_probe(actor, reason)
        if not planned:
            self.tools.ledger.mark_seen(job, {key: job.round})
        elif pinned is None or pinned.seen.get(key) is None:
            raise InputError(
                f"job {job.job_id}: its dead letters changed while the re-drive was planned; try again"
            )
        return planned

    def _take_up(self, job: Job, mark: str, *, actor: str, reason: str, job_timeout: float | None) -> None:
        """See an unfinished re-drive through, in place of planning another; a halted one is resumed.

        :raises InputError: what was paid is not to be had, and nobody has said to pay for it again.
        """
        ledger = self.tools.ledger
        if job.state is JobState.HALTED and (lacking := not_to_be_had(ledger, job)):
            raise InputError(
                f"job {job.job_id} is halted: the results of batch {lacking[0].batch_id} were paid for and "
                "are not to be had (BLLM-031). `batch-llm hand-in`, `adopt` or `abandon` it first"
            )
        self._hurry_probe(actor, reason)
        deadline = ledger.now() + job_timeout if job_timeout is not None else None
        current: Job | None = job
        while current is not None and current.state is JobState.HALTED:
            resumed = ledger.resume_job(current, actor=actor, reason=reason, deadline_at=deadline)
            current = resumed or self.tools.reload(current)
        while current is not None and current.seen.get(f"redrive:{mark}") is None:
            marked = ledger.mark_seen(current, {f"redrive:{mark}": current.round})
            current = marked or self.tools.reload(current)

    def _hurry_probe(self, actor: str, reason: str) -> None:
        """A person's act: perhaps what the connection was held for is mended."""
        self.tools.ledger.hurry_probe(self.tools.spec.conn_id, actor=actor, reason=reason)

    def _existing(self) -> Job:
        job = self.tools.ledger.get_job(self.tools.spec.key.job_id)
        if job is None:
            raise InputError(f"job {self.tools.spec.key.job_id} is not in the ledger")
        return job


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
