"""abandon: a person gives up a batch, so that its rows are sent again."""

from __future__ import annotations

from airflow_batch_llm.core.by_hand.decisions import ABANDONED, Declined, NotYet, refuse_handed_in
from airflow_batch_llm.core.by_hand.lacking import not_to_be_had
from airflow_batch_llm.core.by_hand.outcomes import write_outcomes
from airflow_batch_llm.core.doubts import MAY_BE_OURS, ask_to_cancel, leave_doubt, resolve_doubt
from airflow_batch_llm.core.files import iter_requests
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, BatchState, Job, Outcome, RemoteStatus
from airflow_batch_llm.core.places import is_it, moved
from airflow_batch_llm.core.ports import Workspace
from airflow_batch_llm.core.told import times_told
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.unmade import NOT_CREATED
from airflow_batch_llm.core.unmarked import Whose, whose_is
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    ConfigurationError,
    NotFound,
    ProviderError,
    RateLimited,
    Refused,
)

#: Seconds that a provider gets to end a batch that it was asked to cancel: OpenAI takes up to ten minutes.
CANCEL_PATIENCE = 900.0
#: Events: a person wants to give up a batch whose provider cannot be asked for it, and can again.
_UNASKED, _ANSWERED = "abandon_unanswered", "abandon_answered"


async def abandon_doubt(
    tools: Tools, job: Job, batch: Batch, *, actor: str, reason: str, pay_again: bool
) -> Batch:
    """Take a create call whose effect is unknown for one that had none: the next attempt sends the batch.

    The provider is asked first. A batch that is found there is adopted; one that is not found twice,
    apart, after the lease is left by the machine's own rule.

    :param pay_again: give it up even where the provider cannot be asked or was not asked twice, or is another
        server or account than the one that the call was made to.
    :raises Declined: the create call may still be under way, the batch was found, or ``pay_again`` is needed.
    """
    now = tools.ledger.now()
    if batch.lease_until is not None and batch.lease_until > now:
        wait = batch.lease_until - now
        raise Declined(f"batch {batch.batch_id} is perhaps being created now; try again in {wait:.0f} s")
    try:
        later = await resolve_doubt(tools, job, batch)
        seen = "the provider does not show it, but must be asked twice"
        again = f"; or run this again in {later.not_before - now:.0f} s" if later is not None else ""
        if later is not None and later.reason == MAY_BE_OURS:
            seen, again = "what the provider runs may be it (batch-llm events names them)", ""
    except ProviderError as error:
        seen, again = f"the provider cannot be asked ({error.code})", ""
    except ConfigurationError:
        what = moved(tools, batch)  # another provider: nothing can be done with this connection
        seen, again = f"it is not shown with what connection {batch.conn_id!r} says now: {what}", ""
    current = tools.ledger.get_batch(batch.batch_id)
    if current is None or current.state is not BatchState.SUBMITTING:
        if current is not None and (current.state is BatchState.UPLOADED or _is_given_back(current)):
            tools.ledger.add_event(
                job.job_id, "abandoned", batch_id=batch.batch_id, actor=actor, reason=reason
            )
            return current
        found = current.provider_batch_id if current is not None else None
        if current is not None and current.provisional:
            raise Declined(
                f"batch {batch.batch_id} may be {found} at the provider, which runs and is waited for. If "
                "you know that it is not, run this again"
            )
        raise Declined(
            f"batch {batch.batch_id} is at the provider as {found} and counts: nothing is sent again"
        )
    if not pay_again:
        raise Declined(
            f"batch {batch.batch_id}: {seen}. If it is there all the same, its rows are paid for again: "
            f"--yes-pay-again{again}"
        )
    left = leave_doubt(tools, current, reason=f"{ABANDONED}: {reason}", actor=actor)
    if left is None:
        raise Declined(f"batch {batch.batch_id} was changed at this moment; look at it again")
    return left


def _is_given_back(batch: Batch) -> bool:
    """Say whether the rows of a batch that was never made go into the next round."""
    return batch.state is BatchState.RECONCILED and batch.error_code == NOT_CREATED


def abandon_results(
    ledger: Ledger, workspace: Workspace, job: Job, batch: Batch, *, actor: str, reason: str
) -> Batch:
    """Give up what a lost batch, or one without results, was paid for: its rows are pending again.

    They are sent, and paid for, once more when the job is resumed.

    :raises Declined: the batch is none of these, or was decided about.
    """
    if batch.batch_id not in {lacking.batch_id for lacking in not_to_be_had(ledger, job)}:
        raise Declined(f"batch {batch.batch_id} is {batch.state}, and nothing it was paid for is missing")
    return _write_off(ledger, workspace, job, batch, actor=actor, reason=reason)


async def abandon_running(
    tools: Tools, job: Job, batch: Batch, *, actor: str, reason: str, pay_again: bool
) -> Batch:
    """Give up a batch that its provider goes on showing as running and never ends.

    The provider is asked to cancel it, and gets ``CANCEL_PATIENCE`` seconds to do so. What a batch that is
    given up has answered, or answers later, is not read. One that cannot be had with what its connection says
    now, as that names another server or account than it was sent to, is given up at once; one whose provider
    cannot be asked at all, after the same time.

    :param pay_again: it was said that its rows may be paid for again.
    :raises Declined: the batch has ended, so that its results can be read, or ``pay_again`` is needed.
    :raises NotYet: the provider was asked to cancel it and may still do so, or cannot be asked now.
    :raises NotFound: the provider does not show it: the job's tasks take it for lost.
    :raises RateLimited: it says to come later.
    """
    refuse_handed_in(batch)
    if batch.provisional:
        return await _abandon_provisional(tools, job, batch, actor=actor, reason=reason, pay_again=pay_again)
    if (what := moved(tools, batch)) is not None and not await _can_be_had(tools, batch):
        if not pay_again:
            raise Declined(
                f"batch {batch.batch_id} cannot be had with what connection {batch.conn_id!r} says now: "
                f"{what}. Given the old values back, it can. Given up, it is not cancelled, what it has "
                "answered is not read, and its rows are paid for again: --yes-pay-again"
            )
        return _write_off(tools.ledger, tools.workspace, job, batch, actor=actor, reason=reason)
    try:
        remote = await tools.backend_of(batch).retrieve(batch.provider_batch_id or "")
    except (NotFound, RateLimited):
        raise
    except ProviderError as error:
        _refuse_unasked(tools, batch, error, actor=actor, reason=reason, pay_again=pay_again)
        return _write_off(tools.ledger, tools.workspace, job, batch, actor=actor, reason=reason)
    if times_told(tools.ledger, batch, _UNASKED, until=_ANSWERED):
        tools.ledger.add_event(job.job_id, _ANSWERED, batch_id=batch.batch_id)
    shown = f"batch {batch.batch_id} is {remote.raw_status} at the provider"
    if remote.status.terminal:
        raise Declined(f"{shown}: nothing is given up, the job's tasks read what it brought")
    if not pay_again:
        raise Declined(
            f"{shown}. Given up, what it has answered is not read, and its rows are paid for again: "
            "--yes-pay-again. `batch-llm cancel` costs nothing where the provider ends what it cancels"
        )
    asked_at = _asked_at(tools, batch, actor=actor, reason=reason)
    await ask_to_cancel(tools, batch, by_hand=True)
    left = asked_at + CANCEL_PATIENCE - tools.ledger.now()
    if left > 0:
        raise _asked(shown, left)
    # Whoever noted the cancel before may not have come to ask for it: then this call was the first, and may
    # have ended the batch, or begun to.
    before, remote = remote, await tools.backend_of(batch).retrieve(batch.provider_batch_id or "")
    if remote.status.terminal:
        raise Declined(f"batch {batch.batch_id} has ended now: the job's tasks read what it brought")
    if remote.status is RemoteStatus.CANCELLING and before.status is not RemoteStatus.CANCELLING:
        raise _asked(shown, CANCEL_PATIENCE)
    return _write_off(tools.ledger, tools.workspace, job, batch, actor=actor, reason=reason)


def _asked_at(tools: Tools, batch: Batch, *, actor: str, reason: str) -> float:
    """Return when it was noted that the batch is to be cancelled; notes it where nobody has."""
    if batch.cancel_asked_at is not None:
        return batch.cancel_asked_at
    noted = tools.ledger.ask_cancel(batch, actor=actor, reason=reason)
    at = noted.cancel_asked_at if noted is not None else None
    return at if at is not None else tools.ledger.now()


def _refuse_unasked(
    tools: Tools, batch: Batch, error: ProviderError, *, actor: str, reason: str, pay_again: bool
) -> None:
    """See that a batch whose provider cannot be asked (a closed account, a server that is gone) is not given
    up for a fault that passes: it gets as long as one that is being cancelled.

    :raises Declined: ``pay_again`` is needed.
    :raises NotYet: the provider may be there again.
    """
    shown = f"batch {batch.batch_id}: the provider cannot be asked ({error.code})"
    if not pay_again:
        raise Declined(
            f"{shown}. Given up, it is not cancelled, what it has answered is not read, and its rows are "
            "paid for again: --yes-pay-again"
        )
    times = times_told(tools.ledger, batch, _UNASKED, until=_ANSWERED)
    if not times:
        tools.ledger.add_event(batch.job_id, _UNASKED, batch_id=batch.batch_id, actor=actor, reason=reason)
    left = (times[0] if times else tools.ledger.now()) + CANCEL_PATIENCE - tools.ledger.now()
    if left > 0:
        raise NotYet(f"{shown}. If it still cannot in {left:.0f} s, run this again") from error


def _asked(shown: str, left: float) -> NotYet:
    return NotYet(
        f"{shown} and was asked to cancel; that can take minutes. Where it ends, the job's tasks read "
        f"what it brought. If it has not ended in {left:.0f} s, run this again"
    )


async def _can_be_had(tools: Tools, batch: Batch) -> bool:
    """Say whether a batch is shown with what its connection says now, and its results, where it has ended."""
    backend = tools.backend_of(batch)
    try:
        remote = await backend.retrieve(batch.provider_batch_id or "")
    except (NotFound, AuthError, AccountError, Refused):
        return False
    if not is_it(backend, batch, remote):
        return False
    return not remote.status.terminal or await whose_is(tools, batch, remote) is Whose.OURS


async def _abandon_provisional(
    tools: Tools, job: Job, batch: Batch, *, actor: str, reason: str, pay_again: bool
) -> Batch:
    """Take a person's word that what was adopted provisionally is not ours. It is left alone, and the create
    call is in doubt again."""
    disowned = tools.ledger.disown(batch, reason=reason, actor=actor)
    if disowned is None:
        raise Declined(f"batch {batch.batch_id} was changed at this moment; look at it again")
    return await abandon_doubt(tools, job, disowned, actor=actor, reason=reason, pay_again=pay_again)


def _write_off(
    ledger: Ledger, workspace: Workspace, job: Job, batch: Batch, *, actor: str, reason: str
) -> Batch:
    root = workspace.job_root(job.key)
    outcomes = (
        Outcome(r.custom_id, r.wire_id, Verdict.MISSING, Disposition.HALT, ABANDONED)
        for r in iter_requests(workspace, root, batch)
    )
    result = write_outcomes(workspace, root, batch, outcomes)
    done = ledger.write_off(batch, result, error_code=ABANDONED, actor=actor, reason=reason)
    if done is None:
        raise Declined(f"batch {batch.batch_id} was changed at this moment; look at it again")
    return done
