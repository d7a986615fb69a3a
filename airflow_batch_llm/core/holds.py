"""Held connections: a fault of the account is told once, and tried again from time to time.

The job that meets the fault first makes the hold and tells it. Every other job of the connection waits;
when the time has come, one of them tries with one batch, and releases the connection if that goes well.
Only sending is gated: what is paid is looked at and read all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from airflow_batch_llm.core.deadline import batch_bound
from airflow_batch_llm.core.model import MACHINE, Batch, BatchState, Hold, HoldOrigin, Job
from airflow_batch_llm.core.spec import Later, Settings
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    ConfigurationError,
    NotFound,
    ProviderError,
    RateLimited,
    Unreachable,
)

HELD = "connection_held"
#: Verdicts of rows that the account's state had no part in, as no row came back.
_NO_EVIDENCE = frozenset({Verdict.ACCOUNT, Verdict.MISSING, Verdict.EXPIRED, Verdict.CANCELLED})
_ACCEPTED = frozenset({BatchState.SUBMITTED, BatchState.ENDED, BatchState.RECONCILED})


# -- faults ----------------------------------------------------------------------------------------
def refused_call(tools: Tools, job: Job, batch: Batch, error: AuthError | AccountError) -> Later:
    """Hold the connection that refused a call about a batch which is to be sent; returns when to come again.

    :raises AuthError, AccountError: ``error`` itself, where this job is the one that tells it.
    """
    hold, made = _hold(tools, job, batch.conn_id, HoldOrigin.CALL, error.code, batch.batch_id)
    if made or _is_untold(hold, job, batch.batch_id):
        raise error
    return _wait_for(tools, hold)


def refused_reading(tools: Tools, job: Job, conn_id: str, error: AuthError | AccountError) -> Later:
    """Hold a connection with which the batches that are out cannot be looked at; returns when to look again.

    :raises AuthError, AccountError: ``error`` itself, where this job is the one that tells it.
    """
    hold, made = _hold(tools, job, conn_id, HoldOrigin.CALL, error.code, None)
    if made or hold.job_id == job.job_id:
        raise error
    later = _wait_for(tools, hold)
    soonest = tools.ledger.now() + tools.settings.probe_first
    return Later(max(later.not_before, soonest), later.reason)


def account_rows(tools: Tools, job: Job, batch: Batch, code: str, counts: Mapping[str, int]) -> bool:
    """Hold the connection for rows that blame the account; says whether this job is the one that tells it."""
    hold = tools.ledger.get_hold(batch.conn_id)
    if hold is not None and _went_well(hold, batch, counts):
        return False  # a trial that the account let through in part: what is sent next decides
    hold, made = _hold(tools, job, batch.conn_id, HoldOrigin.ROWS, code, batch.batch_id)
    return made or _is_untold(hold, job, batch.batch_id)


def _hold(
    tools: Tools, job: Job, conn_id: str, origin: HoldOrigin, code: str, batch_id: str | None
) -> tuple[Hold, bool]:
    what = {HoldOrigin.CALL: "a call was refused", HoldOrigin.ROWS: "rows blame the account"}[origin]
    hold, made = tools.ledger.hold_connection(
        conn_id,
        code=code,
        origin=origin,
        job_id=job.job_id,
        batch_id=batch_id,
        reason=what if batch_id else "the batches that are out cannot be looked at",
        probe_at=tools.ledger.now() + tools.settings.probe_first,
    )
    if made:
        log.error(
            "connection %s is held (%s): job %s, batch %s. Mend it, then `%s`; jobs that wait for it try it "
            "by themselves: %s",
            *(conn_id, code, job.job_id, batch_id, release_command(conn_id), next_try(hold)),
        )
        tools.fault("hold.after_made")
    return hold, made


def _is_untold(hold: Hold, job: Job, batch_id: str | None) -> bool:
    """Say whether the job made the hold and may have died before it told, as nothing was tried since."""
    return hold.job_id == job.job_id and hold.batch_id == batch_id and hold.probes == 0


# -- the gate --------------------------------------------------------------------------------------
async def pass_gate(tools: Tools, job: Job, batch: Batch) -> Later | None:
    """Return None where the batch may be sent: its connection is not held, or it is the one that tries.

    :raises AuthError, AccountError: the fault that this job made the hold for and has not told.
    """
    ledger = tools.ledger
    while (hold := ledger.get_hold(batch.conn_id)) is not None:
        trial = ledger.get_batch(hold.probe_batch_id) if hold.probe_batch_id is not None else None
        if hold.origin is HoldOrigin.CALL and trial is not None and _was_accepted(hold, trial):
            _release(tools, hold, f"batch {trial.batch_id} was accepted")
            continue
        now = ledger.now()
        if hold.probe_at is None or now < hold.probe_at:
            if hold.origin is HoldOrigin.CALL and _is_untold(hold, job, batch.batch_id):
                raise _error_of(hold)
            return _wait_for(tools, hold)
        running = trial if await _still_runs(tools, hold, trial) else None
        taken = ledger.take_probe(
            hold,
            probe_at=now + probe_interval(tools.settings, hold.probes + 1),
            batch_id=running.batch_id if running is not None else batch.batch_id,
        )
        if taken is None:
            continue
        tools.fault("hold.probe_taken")
        if running is not None or not await _answers(tools, batch):
            return _wait_for(tools, taken)
        log.info("connection %s is held: batch %s tries it", batch.conn_id, batch.batch_id)
        return None
    return None


def probe_interval(settings: Settings, probes: int) -> float:
    """Return the seconds from a trial to the next one; doubles up to ``probe_max``."""
    return float(min(settings.probe_first * 2 ** min(probes, 30), settings.probe_max))


def _wait_for(tools: Tools, hold: Hold) -> Later:
    """Return when to look again: at the next trial, but soon enough for a release in between."""
    soon = tools.ledger.now() + tools.settings.probe_first
    until = soon if hold.probe_at is None else min(hold.probe_at, soon)
    log.warning(
        "connection %s is held (%s) by %s; nothing is sent with it: %s. `%s` ends that",
        *(hold.conn_id, hold.code or HoldOrigin.PERSON, hold.job_id or hold.actor),
        *(next_try(hold), release_command(hold.conn_id)),
    )
    return Later(until, HELD)


async def _still_runs(tools: Tools, hold: Hold, trial: Batch | None) -> bool:
    """Say whether the batch whose rows are to tell is under way: another one would tell no more."""
    if hold.origin is not HoldOrigin.ROWS or trial is None or not _was_accepted(hold, trial):
        return False
    try:
        backend, bound = tools.backend_of(trial), batch_bound(tools, trial)
    except ConfigurationError:
        # The connection names another provider by now: what the one before does tells nothing of it.
        return False
    if trial.state is not BatchState.SUBMITTED or bound is None or tools.ledger.now() > bound:
        return False
    try:
        remote = await backend.retrieve(trial.provider_batch_id or "")
    except NotFound:
        return False
    except ProviderError as error:
        log.warning("batch %s, which tries a held connection: %s", trial.batch_id, error.code)
        return True
    # Ended, and whoever sent it has not read it by now: it may have died.
    return not remote.status.terminal


async def _answers(tools: Tools, batch: Batch) -> bool:
    """Make the cheapest call that needs the key, so that a file is not sent in vain."""
    try:
        await tools.backend_of(batch).probe()
    except (AuthError, AccountError, RateLimited, Unreachable) as error:
        log.warning("connection %s is held, and still refused (%s)", batch.conn_id, error.code)
        return False
    except ProviderError as error:
        # Not every server has that call; then the batch itself is the trial.
        log.info("connection %s: no cheap call to try it with (%s)", batch.conn_id, error.code)
    return True


def _error_of(hold: Hold) -> AuthError | AccountError:
    kind = AuthError if hold.code == AuthError.code else AccountError
    return kind(
        f"connection {hold.conn_id} is held since batch {hold.batch_id} was refused. Mend it, then clear the "
        f"task, or run `{release_command(hold.conn_id)}`"
    )


# -- words -----------------------------------------------------------------------------------------
def release_command(conn_id: str, reason: str = "mended") -> str:
    """Return the command that releases a connection."""
    return f'batch-llm release --conn {conn_id} --reason "{reason}"'


def next_try(hold: Hold) -> str:
    """Say when a held connection is tried again by itself."""
    if hold.probe_at is None:
        return "it is not tried again by itself"
    return f"tried again from {datetime.fromtimestamp(hold.probe_at, UTC):%Y-%m-%d %H:%M:%SZ}"


# -- releases --------------------------------------------------------------------------------------
def calls_work(tools: Tools, conn_id: str) -> None:
    """Release a connection where a call that was refused has now been answered.

    That is: the batch that tried was accepted; or looking was refused, and batches are looked at again.
    """
    while (hold := tools.ledger.get_hold(conn_id)) is not None and hold.origin is HoldOrigin.CALL:
        if hold.batch_id is None:
            released = _release(tools, hold, "batches can be looked at again")
        else:
            trial = tools.ledger.get_batch(hold.probe_batch_id) if hold.probe_batch_id is not None else None
            if trial is None or not _was_accepted(hold, trial):
                return
            released = _release(tools, hold, f"batch {trial.batch_id} was accepted")
        if released:
            return


def rows_work(tools: Tools, batch: Batch, counts: Mapping[str, int]) -> None:
    """Release a connection that rows had blamed, where a batch sent since then was answered."""
    while (hold := tools.ledger.get_hold(batch.conn_id)) is not None and _went_well(hold, batch, counts):
        if _release(tools, hold, f"batch {batch.batch_id} was answered"):
            return


def is_trial(tools: Tools, batch: Batch) -> bool:
    """Say whether the rows of the batch tell if its connection can be released."""
    hold = tools.ledger.get_hold(batch.conn_id)
    return hold is not None and hold.origin is HoldOrigin.ROWS and _was_accepted(hold, batch)


def _release(tools: Tools, hold: Hold, reason: str) -> bool:
    if tools.ledger.release_connection(hold.conn_id, actor=MACHINE, reason=reason, only=hold) is None:
        return False
    log.info("connection %s is released: %s", hold.conn_id, reason)
    return True


def _was_accepted(hold: Hold, batch: Batch) -> bool:
    """Say whether the provider took the batch, for all that is known, after the connection was held."""
    if batch.provisional:
        return False
    return batch.state in _ACCEPTED and batch.submitted_at is not None and batch.submitted_at > hold.held_at


def _went_well(hold: Hold, batch: Batch, counts: Mapping[str, int]) -> bool:
    """Say whether a batch sent since the hold has rows that blame something else, or nothing."""
    told = any(number for verdict, number in counts.items() if verdict not in _NO_EVIDENCE)
    return hold.origin is HoldOrigin.ROWS and told and _was_accepted(hold, batch)
