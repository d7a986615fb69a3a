"""next_round: which rows of the rounds before are sent again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import msgspec

from airflow_batch_llm.core.again import Again, pin_again
from airflow_batch_llm.core.changed_bodies import with_own_members_changed
from airflow_batch_llm.core.endings import FAILED_NAMED, FAILED_WHOLE
from airflow_batch_llm.core.files import iter_member_ids, iter_outcomes, iter_requests
from airflow_batch_llm.core.model import (
    Batch,
    BatchKind,
    BatchState,
    Job,
    Outcome,
    RemoteStatus,
    Request,
    RequestTemplate,
)
from airflow_batch_llm.core.plan_files import iter_duplicates, iter_reused_ids
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.prior import attempt_of
from airflow_batch_llm.core.tools import Tools, chunks
from airflow_batch_llm.core.verdicts import Disposition, Verdict

#: More batches refused as a whole in one round than this is no search for single rows any more.
_MOST_REFUSED = 32
#: A provider may name one line at fault at a time. From so many refusals on, what is left of a batch is cut
#: in two as well: otherwise each line at fault would cost all others one of their free rounds.
_NAMED_ONE_BY_ONE = 3
#: Events: a person let the job go on; what is sent was pinned.
_RESUMED, _PINNED = frozenset({"resumed"}), frozenset({"plan_pinned", "round_pinned"})
_AGAIN = frozenset({Disposition.RETRY, Disposition.RETRY_FREE, Disposition.RETRY_CHANGED, Disposition.HALT})


def plan_next_round(tools: Tools, job: Job, template: RequestTemplate) -> Job | None:
    """Pin round k+1 with every row of round k that is sent again; None where there is none.

    Where more batches were refused as a whole than a few bad rows explain, the job is halted instead. A
    resume lets the search go on for one round.
    """
    sources = _sources(tools, job)
    refused = sum(_is_search(batch) for batch in sources if batch.revision == job.revision)
    if refused > _MOST_REFUSED and not _resumed(tools, job):
        tools.halt(job, "BLLM-023", f"{refused} batches of round {job.round} were refused as a whole")
        return tools.reload(job)
    with ExitStack() as stack:
        again = _again_of(tools, job, template, sources, stack)
        return pin_again(tools, job, template, again, delay=tools.spec.policy.delay)


def _resumed(tools: Tools, job: Job) -> bool:
    """Say whether a person let the job go on since its newest round was pinned."""
    told = [e.action for e in tools.ledger.events(job.job_id) if e.action in _RESUMED | _PINNED]
    return told[-1:] != [] and told[-1] in _RESUMED


def has_leftovers(tools: Tools, job: Job, template: RequestTemplate) -> bool:
    """Say whether a further round would hold any row."""
    with ExitStack() as stack:
        return any(True for _ in _again_of(tools, job, template, _sources(tools, job), stack))


def _again_of(
    tools: Tools, job: Job, template: RequestTemplate, sources: Sequence[Batch], stack: ExitStack
) -> Iterator[Again]:
    members = _member_index(tools, job, sources, stack)
    return _leftovers(tools, job, template, sources, members, _answered_in_duplicates(tools, job))


def _is_search(batch: Batch) -> bool:
    """Say whether the provider refused a batch of several rows, whose halves are sent to find the fault."""
    if batch.provider_status != RemoteStatus.FAILED or Verdict.CANCELLED not in batch.counts:
        return False
    return set(batch.counts) == {Verdict.CANCELLED} or batch.round >= _NAMED_ONE_BY_ONE


def _is_halved(request: Request, outcome: Outcome) -> bool:
    """Say whether a row goes on in one of two halves of its batch."""
    if outcome.code != FAILED_NAMED:
        return outcome.code == FAILED_WHOLE
    before = sum(attempt.code in (FAILED_NAMED, FAILED_WHOLE) for attempt in request.history)
    return before + 1 >= _NAMED_ONE_BY_ONE


def _sources(tools: Tools, job: Job) -> list[Batch]:
    """Return the batches whose leftovers have not been sent again yet."""
    reconciled = tools.ledger.batches(job.job_id, states=[BatchState.RECONCILED])
    newest = [b for b in reconciled if b.revision == job.revision and b.round == job.round]
    if job.round == 0:
        # Batches that were in flight when this revision was pinned still count for it.
        newest += [b for b in reconciled if job.floor_revision <= b.revision < job.revision]
    return newest


def _member_index(tools: Tools, job: Job, sources: Sequence[Batch], stack: ExitStack) -> RowIndex | None:
    """Index what the revision holds, where a source may hold rows that left it or were decided elsewhere."""
    if all(b.revision == job.revision for b in sources) or job.plan_id is None:
        return None
    index = stack.enter_context(tools.new_index())
    for chunk in chunks(iter_member_ids(tools.workspace, tools.root, job.plan_id)):
        index.put([(wire_id, _UNDECIDED, 0, None) for _, wire_id in chunk], unless_a=-1)
    _leave_to_others(tools, job.plan_id, index)
    earlier = [b for b in sources if b.revision < job.revision]
    decided = tools.ledger.batches(job.job_id, revision=job.revision)
    for batch in decided:
        own = (r.wire_id for r in iter_requests(tools.workspace, tools.root, batch))
        for wires in chunks(own):
            index.update([(wire, _DECIDED, 0) for wire in wires], where_a=[_UNDECIDED])
    for number, batch in enumerate(earlier, start=1):
        # The newest batch of a row decides; an answer decides for good.
        for outcomes in chunks(iter_outcomes(tools.workspace, tools.root, batch)):
            landed = [(o.wire_id, _DECIDED, 0) for o in outcomes if o.disposition is Disposition.LAND]
            index.update(landed, where_a=[_UNDECIDED])
            if batch.kind is BatchKind.DUPLICATE:
                continue
            others = [
                (o.wire_id, _UNDECIDED, number) for o in outcomes if o.disposition is not Disposition.LAND
            ]
            index.update(others, where_a=[_UNDECIDED])
    return index


_UNDECIDED, _DECIDED = 0, 1


def _leave_to_others(tools: Tools, plan_id: str, index: RowIndex) -> None:
    """Rows that earlier jobs answered, or that share another's answer, are not sent, whatever came of them
    before. What they share the answer of may be, also where that row left the source."""
    for chunk in chunks(iter_duplicates(tools.workspace, tools.root, plan_id), 1000):
        index.insert([(duplicate.of, _UNDECIDED, 0) for duplicate in chunk])
        index.update([(duplicate.wire_id, _DECIDED, 0) for duplicate in chunk], where_a=[_UNDECIDED])
    for answers in chunks(iter_reused_ids(tools.workspace, tools.root, plan_id)):
        index.update([(ids.wire_id, _DECIDED, 0) for ids, _ in answers], where_a=[_UNDECIDED])


def _answered_in_duplicates(tools: Tools, job: Job) -> set[str]:
    """Return rows that a duplicate batch of any round answered: they are not sent again."""
    return {
        outcome.wire_id
        for batch in tools.ledger.batches(job.job_id, states=[BatchState.RECONCILED])
        if batch.kind is BatchKind.DUPLICATE and batch.revision >= job.floor_revision
        for outcome in iter_outcomes(tools.workspace, tools.root, batch)
        if outcome.disposition is Disposition.LAND
    }


def _leftovers(
    tools: Tools,
    job: Job,
    template: RequestTemplate,
    sources: Sequence[Batch],
    members: RowIndex | None,
    answered: set[str],
) -> Iterator[Again]:
    earlier = [b.batch_id for b in sources if b.revision < job.revision]
    last: tuple[str, bool] | None = None
    for batch in sources:
        if batch.kind is BatchKind.DUPLICATE:
            continue
        place = (_UNDECIDED, earlier.index(batch.batch_id) + 1) if batch.revision < job.revision else None
        middle = _middle(tools, batch)
        requests = iter_requests(tools.workspace, tools.root, batch)
        outcomes = iter_outcomes(tools.workspace, tools.root, batch)
        for number, (request, outcome) in enumerate(zip(requests, outcomes, strict=True)):
            if outcome.disposition not in _AGAIN or outcome.wire_id in answered:
                continue
            if place is not None and members is not None:
                found = members.get(outcome.wire_id)
                if found is None or found[:2] != place:
                    continue
            # A batch refused as a whole is cut in two, to find the line at fault; its rows go with no others.
            half = (batch.batch_id, number >= middle) if _is_halved(request, outcome) else None
            yield _again(tools, template, batch, request, outcome, cut_before=half != last)
            last = half


def _middle(tools: Tools, batch: Batch) -> int:
    """Return where a batch that was refused as a whole is cut; in halves of different counts where nothing
    else tells batches apart."""
    even = batch.requests % 2 == 0 and batch.requests > 2
    return batch.requests // 2 - (even and not tools.backend.marks_batches)


def _again(
    tools: Tools,
    template: RequestTemplate,
    batch: Batch,
    request: Request,
    outcome: Outcome,
    *,
    cut_before: bool,
) -> Again:
    model, overrides = tools.spec.policy.change(
        outcome.verdict, outcome.code, model=batch.model, params=template.params, overrides=batch.overrides
    )
    request = msgspec.structs.replace(
        request,
        history=(*request.history, attempt_of(batch, outcome)),
        changed=request.changed or (model, overrides) != (batch.model, dict(batch.overrides)),
    )
    if (model, overrides) != (batch.model, dict(batch.overrides)):
        raised = tools.spec.policy.raised if outcome.verdict is Verdict.TRUNCATED else None
        request = with_own_members_changed(request, template, model, overrides, raised=raised)
    return Again(request, model, overrides, cut_before)
