"""What a create call came to: the batch that counts, one too many, or a doubt that the provider resolves."""

from __future__ import annotations

from airflow_batch_llm.core.ids import attempt_token
from airflow_batch_llm.core.model import MACHINE, Batch, BatchKind, BatchState, Job, RemoteBatch
from airflow_batch_llm.core.places import moved, place_of, refuse_moved
from airflow_batch_llm.core.spec import Later
from airflow_batch_llm.core.told import times_told
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.unmade import give_back
from airflow_batch_llm.core.unmarked import CLOCK_SLACK, Found, Whose, came_to_nothing, look_around, whose_is
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    ConfigurationError,
    ProviderError,
    RateLimited,
    Refused,
    Unreachable,
)

#: Reason to wait: batches at the provider may be ours, and do not show yet whose they are.
MAY_BE_OURS = "candidates"
#: Events: the provider's batches could not be listed, and could again.
NOT_LISTED, LISTED = "batches_not_listed", "batches_listed"
#: Batches that are named in an event.
_NAMED = 5


async def settle_on(tools: Tools, job: Job, intent: Batch, remote: RemoteBatch) -> None:
    """Record the batch that counts; cancel and record ours where another one does."""
    if tools.ledger.mark_submitted(intent, remote, place=place_of(tools, intent)) is not None:
        tools.fault("submit.after_submitted")
        return
    standing = tools.ledger.get_batch(intent.batch_id)
    if standing is not None and standing.provider_batch_id == remote.id:
        return
    await record_stray(tools, intent, remote, intent.attempt)


async def record_stray(tools: Tools, batch: Batch, remote: RemoteBatch, attempt: int) -> None:
    """Record a batch of ours that the provider holds beside the one that counts, and cancel it."""
    recorded = tools.ledger.record_duplicate(batch, remote, attempt, place=place_of(tools, batch))
    if recorded.kind is BatchKind.PRIMARY:
        return
    log.warning("batch %s: a second batch was accepted (%s); its results are read", batch.batch_id, remote.id)
    tools.fault("submit.after_duplicate")
    if not remote.status.terminal:
        await ask_to_cancel(tools, recorded)


async def ask_to_cancel(tools: Tools, batch: Batch, *, by_hand: bool = False) -> None:
    """Ask the provider to cancel a batch for which the ledger says so already.

    A call that fails is logged: whoever looks at the batch next asks again.

    :param by_hand: a person waits for it: what fails is raised, unless the provider only declines, as it does
        with a batch that is about to end.
    :raises AuthError, AccountError: the account may not.
    """
    try:
        await tools.backend_of(batch).cancel(batch.provider_batch_id or "")
    except (AuthError, AccountError):
        raise
    except ProviderError as error:
        if by_hand and not isinstance(error, Refused | RateLimited):
            raise
        log.warning("batch %s: cannot be cancelled now (%s)", batch.batch_id, error.code)


async def resolve_doubt(tools: Tools, job: Job, batch: Batch) -> Later | None:
    """Find out whether a create call took effect.

    Found: adopted at once. Not found: only two looks ``look_apart`` seconds apart, both after the
    lease ended, are proof; then the batch goes back to ``uploaded``. Where the provider shows no marks,
    what has ended is known by its rows; one that still runs is adopted provisionally, if it is the only
    one that may be ours and the lease has ended; among several, it is waited until they tell.

    :raises ConfigurationError: not found, and the connection names another server or account by now.
    """
    # Before the look: time that passes while it is made proves nothing.
    now = tools.ledger.now()
    if not tools.backend_of(batch).marks_batches:
        return await _resolve_unmarked(tools, job, batch, now)
    found = await _find_any(tools, job, batch)
    if found is not None:
        remote, attempt = found
        log.info("batch %s: found at the provider as %s (attempt %d)", batch.batch_id, remote.id, attempt)
        await settle_on(tools, job, batch, remote)
        return None
    return _not_there(tools, batch, now)


def _not_there(tools: Tools, batch: Batch, now: float) -> Later | None:
    """Note a look that found nothing; returns when to look again, None where that was the last one."""
    lease_until = batch.lease_until or now
    if now < lease_until:
        return Later(lease_until, "in_doubt")
    refuse_moved(tools, batch)
    if batch.first_look_at is None:
        noted = tools.ledger.record_look(batch)
        first = noted.first_look_at if noted is not None and noted.first_look_at is not None else now
        return Later(first + tools.settings.look_apart, "in_doubt")
    if now - batch.first_look_at < tools.settings.look_apart:
        return Later(batch.first_look_at + tools.settings.look_apart, "in_doubt")
    leave_doubt(tools, batch, reason="not_at_provider")
    return None


def leave_doubt(tools: Tools, batch: Batch, *, reason: str, actor: str = MACHINE) -> Batch | None:
    """Take a create call for one that had no effect; None where somebody changed the batch.

    Without marks a batch may come to be in doubt again after a clear has counted on it. Nobody sends it as
    it was planned then: its rows go into the next round.
    """
    unmarked = not tools.backend_of(batch).marks_batches
    left = tools.ledger.leave_submitting(batch, reason=reason, actor=actor, only_current=unmarked)
    if left is not None or not unmarked:
        return left
    standing, job = tools.ledger.get_batch(batch.batch_id), tools.ledger.get_job(batch.job_id)
    if standing is None or standing.state is not BatchState.SUBMITTING or standing.attempt != batch.attempt:
        return None
    return give_back(tools, standing) if job is not None and job.revision != batch.revision else None


# -- providers without marks -----------------------------------------------------------------------
async def _resolve_unmarked(tools: Tools, job: Job, batch: Batch, now: float) -> Later | None:
    found = await look_around(tools, batch)
    for remote in found.ours[:1]:
        log.info("batch %s: found at the provider as %s, by its rows", batch.batch_id, remote.id)
        await settle_on(tools, job, batch, remote)
    for remote in (*found.ours[1:], *found.strays):
        await record_stray(tools, batch, remote, batch.attempt)
    if found.ours:
        return None
    # What runs at another place is somebody else's, and says as little as that there is nothing.
    if not found.unsure or moved(tools, batch):
        return _not_there(tools, batch, now)
    lease_until = batch.lease_until or now
    if now < lease_until:
        # A call that is under way may add to them.
        return Later(lease_until, "in_doubt")
    return _adopt_the_only_one(tools, batch, found, now)


def _adopt_the_only_one(tools: Tools, batch: Batch, found: Found, now: float) -> Later | None:
    """Adopt what runs provisionally, where nothing else comes into question; else wait until it has ended."""
    running = [
        remote
        for remote in found.unsure
        if not remote.status.terminal and remote.counts.get("total") == batch.requests
    ]
    if len(found.unsure) == len(running) == 1:
        tools.fault("doubt.before_adopted")
        if tools.ledger.adopt_provisionally(batch, running[0]) is not None:
            log.warning(
                "batch %s: %s at the provider may be it, and is waited for; its rows will tell",
                *(batch.batch_id, running[0].id),
            )
            tools.fault("doubt.after_adopted")
            return None
        standing = tools.ledger.get_batch(batch.batch_id)
        if standing is None or standing.state is not BatchState.SUBMITTING:
            return None
    _tell_candidates(tools, batch, found)
    return Later(now + tools.settings.probe_first, MAY_BE_OURS)


def _tell_candidates(tools: Tools, batch: Batch, found: Found) -> None:
    """Note once, for people, which batches at the provider may be ours."""
    ids = sorted(remote.id for remote in found.unsure)
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    alike = len(tools.ledger.in_doubt_alike(batch))
    others = f"; {alike} other batches in doubt may be them as well" if alike else ""
    told = (
        f"provider batches {', '.join(ids[:_NAMED])}{more} may be it{others}. Waiting until they have ended; "
        "batch-llm adopt or abandon decides sooner"
    )
    events = tools.ledger.events(batch.job_id)
    before = [e.reason for e in events if e.batch_id == batch.batch_id and e.action == MAY_BE_OURS]
    if told not in before[-1:]:
        log.warning("batch %s: %s", batch.batch_id, told)
        tools.ledger.add_event(batch.job_id, MAY_BE_OURS, batch_id=batch.batch_id, reason=told)


async def claim(tools: Tools, batch: Batch, remote: RemoteBatch) -> Batch | None:
    """Say by its rows whose an ended batch is that was adopted provisionally.

    Returns it, confirmed where its rows could be read; None where it is not ours, or was changed: then the
    batch is in doubt again, or has ended as another one.
    """
    whose = await whose_is(tools, batch, remote)
    if whose is Whose.UNTOLD:
        return batch
    if whose is Whose.OURS:
        tools.fault("doubt.before_confirmed")
        confirmed = tools.ledger.confirm(batch)
        tools.fault("doubt.after_confirmed")
        return confirmed
    log.warning("batch %s: %s at the provider is not it; looking again", batch.batch_id, remote.id)
    tools.fault("doubt.before_disowned")
    if whose is Whose.STRAY:
        await record_stray(tools, batch, remote, batch.attempt)
    # Does nothing where it was freed as the stray was recorded.
    tools.ledger.disown(batch, reason="holds none of its rows, or few")
    tools.fault("doubt.after_disowned")
    return None


# -- marks, and what was left behind ---------------------------------------------------------------
async def _find_any(tools: Tools, job: Job, batch: Batch) -> tuple[RemoteBatch, int] | None:
    """Look for every attempt of the batch, the newest first.

    One that is recorded as a duplicate was cancelled by us and is not adopted.
    """
    recorded = _recorded(tools, job)
    for attempt in range(batch.attempt, 0, -1):
        for remote in await _attempted(tools, job, batch, attempt):
            if remote.id not in recorded and not came_to_nothing(remote):
                return remote, attempt
    return None


async def _attempted(tools: Tools, job: Job, batch: Batch, attempt: int) -> list[RemoteBatch]:
    """Return what the provider holds of one attempt: by its token or, where none is shown, by its upload."""
    return await tools.backend_of(batch).find(
        token(job, batch, attempt),
        created_after=batch.created_at - CLOCK_SLACK,
        upload=batch.input_file_id,
    )


async def seek_strays(tools: Tools, job: Job, batch: Batch) -> bool:
    """Look for batches that attempts of this one left behind (a process that woke up late).

    Where the provider shows no marks: those that have ended, as their rows say so. Where the connection names
    another place by now, finding none proves nothing; nobody waits for it, as what is looked for hardly ever
    exists, and what is found late is read all the same. For the same reason a provider that refuses to list
    batches is asked twice, apart, and no more: what was paid for is not left unread for it.

    Returns whether one was found that the ledger did not know.

    :raises Unreachable, RateLimited: it cannot be asked now.
    :raises ProviderError, ConfigurationError: it refuses, for the first time.
    """
    try:
        found = await _seek(tools, job, batch)
    except (Unreachable, RateLimited):
        raise  # it passes
    except (ProviderError, ConfigurationError) as error:
        if not _was_told(tools, batch):
            raise
        log.warning("batch %s: others of it cannot be looked for (%s)", batch.batch_id, error.code)
        return False
    if times_told(tools.ledger, batch, NOT_LISTED, until=LISTED):
        tools.ledger.add_event(batch.job_id, LISTED, batch_id=batch.batch_id)
    return found


def _was_told(tools: Tools, batch: Batch) -> bool:
    """Say whether batches could not be listed some time ago either; notes it where it is the first time."""
    told = times_told(tools.ledger, batch, NOT_LISTED, until=LISTED)
    if not told:
        reason = "whether other batches of it were made cannot be told"
        tools.ledger.add_event(batch.job_id, NOT_LISTED, batch_id=batch.batch_id, reason=reason)
    return bool(told) and told[0] <= tools.ledger.now() - tools.settings.look_apart


async def _seek(tools: Tools, job: Job, batch: Batch) -> bool:
    if not tools.backend_of(batch).marks_batches:
        around = await look_around(tools, batch)
        for remote in (*around.ours, *around.strays):
            await record_stray(tools, batch, remote, batch.attempt)
        return bool(around.ours or around.strays)
    recorded = _recorded(tools, job)
    found = False
    for attempt in range(1, batch.attempt + 1):
        for remote in await _attempted(tools, job, batch, attempt):
            if remote.id not in recorded and not came_to_nothing(remote):
                await record_stray(tools, batch, remote, attempt)
                found = True
    return found


def _recorded(tools: Tools, job: Job) -> set[str | None]:
    """Return the provider ids that the ledger knows for the job."""
    return {known.provider_batch_id for known in tools.ledger.batches(job.job_id)}


def token(job: Job, batch: Batch, attempt: int) -> str:
    """Return the token of one attempt."""
    return attempt_token(job.key, batch.revision, batch.round, batch.seq, attempt)
