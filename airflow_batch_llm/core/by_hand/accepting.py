"""accept: a person takes a job as it is. The task that settles it carries that out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from airflow_batch_llm.core.by_hand.decisions import BATCH_LOST, NEVER_SENT
from airflow_batch_llm.core.by_hand.lacking import counts_now
from airflow_batch_llm.core.by_hand.outcomes import write_outcomes
from airflow_batch_llm.core.files import iter_outcomes, iter_requests
from airflow_batch_llm.core.model import NOT_SENT, Batch, BatchKind, BatchState, Job, JobState, Outcome
from airflow_batch_llm.core.settle import settle
from airflow_batch_llm.core.spec import Progress
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.verdicts import Disposition, Verdict

_DONE = frozenset({Disposition.LAND, Disposition.DEAD})


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
    if batch.state is BatchState.RECONCILED and counts_now(job, batch):
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
