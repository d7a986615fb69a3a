"""What a person decides about a job. Each decision is a compare-and-set with actor and reason in its event.

The commands come through here, and the task that settles an accepted job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from airflow_batch_llm.core.doubts import MAY_BE_OURS, ask_to_cancel, leave_doubt, resolve_doubt, token
from airflow_batch_llm.core.files import encode_line, iter_outcomes, iter_requests
from airflow_batch_llm.core.ids import META_JOB, META_TOKEN
from airflow_batch_llm.core.judging import outcomes_file
from airflow_batch_llm.core.ledger_port import Ledger, Reconciled
from airflow_batch_llm.core.model import (
    NOT_SENT,
    Batch,
    BatchKind,
    BatchState,
    Job,
    JobState,
    Outcome,
    RemoteBatch,
)
from airflow_batch_llm.core.places import is_it, moved, place_of
from airflow_batch_llm.core.ports import Workspace
from airflow_batch_llm.core.settle import settle
from airflow_batch_llm.core.spec import Progress
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.unmade import NOT_CREATED
from airflow_batch_llm.core.unmarked import Whose, whose_is
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import BatchLLMError, ConfigurationError, NotFound, ProviderError

#: In ``Job.seen``: one task does all of the job, and a clear of it carries out what was decided before.
ONE_TASK = "one_task"
#: Halt code of a job that a person stopped.
CANCELLED = "BLLM-032"
#: Code of rows that a person gave up although they may have been paid for.
ABANDONED = "abandoned"
#: Code of rows of batches that were never sent when a person accepted the job.
NEVER_SENT = "never_sent"
#: Code of rows of a lost batch when a person accepted the job.
BATCH_LOST = "batch_lost"
#: Seconds that a provider gets to end a batch that it was asked to cancel: OpenAI takes up to ten minutes.
CANCEL_PATIENCE = 900.0
_DONE = frozenset({Disposition.LAND, Disposition.DEAD})


class Declined(Exception):
    """The decision does not fit how things stand; nothing was changed."""


class NotYet(Exception):
    """A part of the decision was carried out; the rest is for later."""


# -- what was paid and is not to be had ------------------------------------------------------------
def not_to_be_had(ledger: Ledger, job: Job) -> list[Batch]:
    """Return the batches that the revision counts on and that brought nothing of what was paid.

    They are lost, or ended with none of their rows in a file, since the revision began: what was so
    before, the clear has decided about. To send their rows again is to pay again.
    """
    suspects = {
        batch.batch_id: batch
        for batch in ledger.batches(job.job_id, states=[BatchState.LOST, BatchState.RECONCILED])
        if _brought_nothing(batch) and batch.revision >= job.floor_revision
    }
    found: dict[str, Batch] = {}
    for event in ledger.events(job.job_id) if suspects else ():
        if event.action == "revision_begun":
            found.clear()
        elif event.action in ("lost", "reconciled") and event.batch_id in suspects:
            found[event.batch_id] = suspects[event.batch_id]
    return [batch for batch in found.values() if batch.state is BatchState.LOST or _counts_now(job, batch)]


def _brought_nothing(batch: Batch) -> bool:
    if batch.kind is not BatchKind.PRIMARY or batch.error_code == ABANDONED:
        return False
    return batch.state is BatchState.LOST or (not batch.files and set(batch.counts) == {Verdict.MISSING})


def _counts_now(job: Job, batch: Batch) -> bool:
    """Say whether what a judged batch left over is not sent again yet."""
    if batch.revision == job.revision:
        return batch.round == job.round
    return job.round == 0 and job.floor_revision <= batch.revision < job.revision


# -- cancel ----------------------------------------------------------------------------------------
@dataclass
class Cancelled:
    """What came of cancelling a job, by our batch ids.

    :param asked: the provider was asked to cancel these.
    :param in_doubt: perhaps being created at this moment; batch -> seconds since the epoch from which
        another try finds out.
    :param failed: could not be asked; batch -> error code.
    :param unsure: what the provider runs for them may be somebody else's, and is not cancelled; batch -> its
        id there.
    """

    asked: list[str] = field(default_factory=list)
    in_doubt: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unsure: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether nothing is left to ask for."""
        return not self.in_doubt and not self.failed and not self.unsure


async def cancel(
    tools_of: Callable[[str], Tools], ledger: Ledger, job: Job, *, actor: str, reason: str
) -> Cancelled:
    """Halt the job, then ask the provider to cancel every batch that is in flight.

    What is paid is read by the tasks when they run; the rest stays pending. Safe to call again.

    :param tools_of: opens the tools of a connection.
    :raises Declined: the job is settled.
    """
    _halt(ledger, job, actor, reason)
    result = Cancelled()
    for batch in ledger.batches(job.job_id, states=[BatchState.SUBMITTING, BatchState.SUBMITTED]):
        try:
            await _cancel_batch(tools_of(batch.conn_id), job, batch, result, actor, reason)
        except BatchLLMError as error:
            result.failed[batch.batch_id] = error.code
    return result


def _halt(ledger: Ledger, job: Job, actor: str, reason: str) -> None:
    current: Job | None = job
    while current is not None and current.state in (JobState.STAGING, JobState.RUNNING):
        if ledger.halt_job(current, CANCELLED, reason, actor=actor) is not None:
            return
        current = ledger.get_job(job.job_id)
    if current is None or current.state is JobState.SETTLED:
        raise Declined(f"job {job.job_id} is settled: nothing of it is at the provider")
    ledger.add_event(job.job_id, "cancel_decided", actor=actor, reason=reason)


async def _cancel_batch(
    tools: Tools, job: Job, batch: Batch, result: Cancelled, actor: str, reason: str
) -> None:
    if batch.state is BatchState.SUBMITTING:
        later = await resolve_doubt(tools, job, batch)
        if later is not None:
            result.in_doubt[batch.batch_id] = later.not_before
            return
        found = tools.ledger.get_batch(batch.batch_id)
        if found is None or found.state is not BatchState.SUBMITTED:
            return  # proved not to be there; a halted job does not send it
        batch = found
    if batch.provisional:
        result.unsure[batch.batch_id] = batch.provider_batch_id or ""
        return
    # Before the call: whoever looks at the batch next asks again where the call did not get through.
    tools.ledger.ask_cancel(batch, actor=actor, reason=reason)
    await tools.backend_of(batch).cancel(batch.provider_batch_id or "")
    result.asked.append(batch.batch_id)


# -- adopt -----------------------------------------------------------------------------------------
async def adopt(
    tools: Tools, job: Job, batch: Batch, provider_id: str, *, actor: str, reason: str
) -> tuple[Batch, bool]:
    """Take a batch at the provider for ours; returns it, and whether it says itself that it is: its metadata,
    or, where there is none and it has ended, its rows.

    Where the provider shows no marks and it still runs, it is adopted provisionally: its rows will tell. A
    batch that runs or has ended can be adopted anew where its connection names another server or account by
    now, where it may go by another id.

    :param tools: of the batch's connection.
    :raises Declined: it cannot be, or not now.
    :raises ProviderError: the provider cannot be asked.
    """
    sent = batch.state in (BatchState.SUBMITTED, BatchState.ENDED)
    elsewhere = sent and moved(tools, batch) is not None
    can_be = batch.state in (BatchState.SUBMITTING, BatchState.LOST) or batch.provisional or elsewhere
    if not can_be:
        raise Declined(f"batch {batch.batch_id} is {batch.state}; only one in doubt or lost can be adopted")
    _refuse_taken(tools.ledger, batch, provider_id)
    try:
        remote = await tools.backend_of(batch).retrieve(provider_id)
    except NotFound:
        raise Declined(
            f"the provider knows no batch {provider_id} with connection {batch.conn_id!r}: look at its key"
        ) from None
    _refuse_contradiction(job, batch, remote)
    marked = tools.backend_of(batch).marks_batches
    told = META_TOKEN in remote.metadata if marked else await _rows_tell(tools, batch, remote)
    adopted = tools.ledger.adopt(
        batch,
        remote,
        actor=actor,
        reason=reason,
        provisional=not marked and not told,
        place=place_of(tools, batch),
        moved=elsewhere,
    )
    if adopted is None:
        _refuse_taken(tools.ledger, batch, provider_id)
        raise Declined(f"batch {batch.batch_id} was changed at this moment; look at it again")
    return adopted, told


async def _rows_tell(tools: Tools, batch: Batch, remote: RemoteBatch) -> bool:
    """Say whether the rows of a batch that has ended say that it is ours.

    :raises Declined: they say that it is not.
    """
    whose = await whose_is(tools, batch, remote) if remote.status.terminal else Whose.UNTOLD
    if whose in (Whose.NOT_OURS, Whose.STRAY):
        raise Declined(f"{remote.id} has ended, and its rows are not those of batch {batch.batch_id}")
    return whose is Whose.OURS


def _refuse_taken(ledger: Ledger, batch: Batch, provider_id: str) -> None:
    for other in ledger.batches_at_provider(provider_id):
        if other.batch_id != batch.batch_id and not other.provisional:
            raise Declined(f"{provider_id} is batch {other.batch_id} already")


def _refuse_contradiction(job: Job, batch: Batch, remote: RemoteBatch) -> None:
    """See that neither metadata nor row count say that the provider's batch is another one."""
    theirs = remote.metadata.get(META_JOB, job.job_id)
    if theirs != job.job_id:
        raise Declined(f"{remote.id} is of another job, as its metadata says")
    ours = {token(job, batch, attempt) for attempt in range(1, batch.attempt + 1)}
    if remote.metadata.get(META_TOKEN) not in (None, *ours):
        raise Declined(f"{remote.id} is another batch of this job, as its metadata says")
    total = remote.counts.get("total", 0)
    if total and total != batch.requests:
        raise Declined(f"{remote.id} holds {total} requests, batch {batch.batch_id} has {batch.requests}")


# -- abandon ---------------------------------------------------------------------------------------
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
    now, as that names another server or account than it was sent to, is given up at once.

    :param pay_again: it was said that its rows may be paid for again.
    :raises Declined: the batch has ended, so that its results can be read, or ``pay_again`` is needed.
    :raises NotYet: the provider was asked to cancel it and may still do so.
    :raises ProviderError: the provider cannot be asked.
    """
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
    remote = await tools.backend_of(batch).retrieve(batch.provider_batch_id or "")
    shown = f"batch {batch.batch_id} is {remote.raw_status} at the provider"
    if remote.status.terminal:
        raise Declined(f"{shown}: nothing is given up, the job's tasks read what it brought")
    if not pay_again:
        raise Declined(
            f"{shown}. Given up, what it has answered is not read, and its rows are paid for again: "
            "--yes-pay-again. `batch-llm cancel` costs nothing where the provider ends what it cancels"
        )
    asked_at = batch.cancel_asked_at
    if asked_at is None:
        noted = tools.ledger.ask_cancel(batch, actor=actor, reason=reason)
        asked_at = noted.cancel_asked_at if noted is not None else None
    await ask_to_cancel(tools, batch)
    now = tools.ledger.now()
    left = (asked_at if asked_at is not None else now) + CANCEL_PATIENCE - now
    if left > 0:
        raise NotYet(
            f"{shown} and was asked to cancel; that can take minutes. Where it ends, the job's tasks read "
            f"what it brought. If it has not ended in {left:.0f} s, run this again"
        )
    # The call may have ended it: whoever noted the cancel before may not have come to ask for it.
    remote = await tools.backend_of(batch).retrieve(batch.provider_batch_id or "")
    if remote.status.terminal:
        raise Declined(f"batch {batch.batch_id} has ended now: the job's tasks read what it brought")
    return _write_off(tools.ledger, tools.workspace, job, batch, actor=actor, reason=reason)


async def _can_be_had(tools: Tools, batch: Batch) -> bool:
    """Say whether a batch is shown with what its connection says now, and its results, where it has ended."""
    backend = tools.backend_of(batch)
    try:
        remote = await backend.retrieve(batch.provider_batch_id or "")
    except NotFound:
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


# -- accept ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Acceptance:
    """A person takes a revision of a job as it is.

    :param halted: the job was halted and has not settled since.
    :param letters: so many open dead letters are accepted; of a halted job, see when it has settled.
    """

    letters: int
    halted: bool
    actor: str
    reason: str


def acceptance_of(job: Job) -> Acceptance | None:
    """Return what a person accepted of the job's revision, None where nobody did."""
    found = job.seen.get("accepted")
    if not found or found["revision"] != job.revision:
        return None
    return Acceptance(found["letters"], found["halted"], found["actor"], found["reason"])


def accepted_halt(job: Job) -> Acceptance | None:
    """Return the acceptance of a job that is halted, None where nobody has accepted this halt."""
    found = acceptance_of(job)
    return found if job.state is JobState.HALTED and found is not None and found.halted else None


def settle_accepted(tools: Tools, job: Job, accepted: Acceptance) -> Job | None:
    """Close a halted job that was accepted: every row without an answer becomes a dead letter.

    Returns the settled job; None where a batch is still to be read, or somebody changed the job.
    """
    for batch in tools.ledger.batches(job.job_id):
        if batch.kind is BatchKind.DUPLICATE or batch.revision < job.floor_revision:
            continue
        if batch.state in (BatchState.SUBMITTING, BatchState.SUBMITTED, BatchState.ENDED):
            return None
        if not _give_up_rows(tools, job, batch, accepted):
            return None
    actor, reason = accepted.actor, accepted.reason
    settled = settle(tools, job, tools.template(job), final=True, actor=actor, reason=reason)
    return settled if settled.state is JobState.SETTLED else None


def what_runs(tools: Tools, job: Job) -> Progress | None:
    """Return what an accepted job waits for: batches that are being cancelled; None where none is out."""
    out = tools.ledger.batches(job.job_id, states=[BatchState.SUBMITTING, BatchState.SUBMITTED])
    if not out:
        return None
    conn_id = out[0].conn_id
    watched = [b for b in out if b.provider_batch_id and b.conn_id == conn_id]
    return Progress(
        job,
        False,
        tuple(b.provider_batch_id or "" for b in watched),
        conn_id,
        more_planned=True,
        not_before=tools.ledger.now() + tools.settings.look_apart,
        reason="accepted",
        provisional=tuple(b.provider_batch_id or "" for b in watched if b.provisional),
    )


def _give_up_rows(tools: Tools, job: Job, batch: Batch, accepted: Acceptance) -> bool:
    """Let no row of the batch be sent again by a later step; says whether that is so now."""
    workspace, root = tools.workspace, tools.root
    code = batch.error_code
    outcomes: Iterable[Outcome]
    if batch.state is BatchState.RECONCILED and _counts_now(job, batch):
        if all(o.disposition in _DONE for o in iter_outcomes(workspace, root, batch)):
            return True
        outcomes = map(_given_up, iter_outcomes(workspace, root, batch))
    elif batch.state in NOT_SENT or batch.state is BatchState.LOST:
        lost = batch.state is BatchState.LOST
        verdict, code = (Verdict.MISSING, BATCH_LOST) if lost else (Verdict.CANCELLED, NEVER_SENT)
        dead = Disposition.DEAD
        outcomes = (
            Outcome(r.custom_id, r.wire_id, verdict, dead, code, exhausted=True)
            for r in iter_requests(workspace, root, batch)
        )
    else:
        return True
    result = write_outcomes(workspace, root, batch, outcomes)
    written = tools.ledger.write_off(
        batch, result, error_code=code, actor=accepted.actor, reason=accepted.reason, accepted=job
    )
    return written is not None


def _given_up(outcome: Outcome) -> Outcome:
    if outcome.disposition in _DONE:
        return outcome
    return msgspec.structs.replace(outcome, disposition=Disposition.DEAD, exhausted=True)


# -- outcomes --------------------------------------------------------------------------------------
def write_outcomes(workspace: Workspace, root: str, batch: Batch, outcomes: Iterable[Outcome]) -> Reconciled:
    """Write a batch's outcomes as a person decided them; returns what goes into the ledger."""
    counts: Counter[str] = Counter()
    with outcomes_file(workspace, root, batch) as out:
        for outcome in outcomes:
            out.write(encode_line(outcome))
            counts[outcome.verdict.value] += 1
    return Reconciled(out.sha256, batch.judge or "by_hand", counts, batch.usage, batch.files)
