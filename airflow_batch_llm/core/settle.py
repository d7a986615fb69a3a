"""settle: every row is answered or dead; dead letters are written, answers published, the job closed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from airflow_batch_llm.core.bought import record_bought
from airflow_batch_llm.core.drafts import LandingInfo, ResolvedSink
from airflow_batch_llm.core.fates import WHEN_STAGED, Fate, count_rows, rider, riding
from airflow_batch_llm.core.files import (
    iter_member_ids,
    iter_outcomes,
    iter_refusals,
    iter_requests,
    plan_path,
)
from airflow_batch_llm.core.model import (
    MACHINE,
    Batch,
    DeadLetter,
    Job,
    JobState,
    LetterState,
    RequestTemplate,
    Usage,
)
from airflow_batch_llm.core.plan_files import Duplicate
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.prior import attempt_of
from airflow_batch_llm.core.publish import publish, read_answers
from airflow_batch_llm.core.tools import Tools, chunks, log
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import AccountingError


def settle(
    tools: Tools,
    job: Job,
    template: RequestTemplate,
    *,
    final: bool,
    actor: str = MACHINE,
    reason: str = "",
) -> Job:
    """Account for every row; publish what is answered; write dead letters; close the job.

    :param final: False for a halted job, or after a round: what is paid lands, the rest stays pending,
        nothing is closed.
    :param actor: who decided that rows without an answer are dead; stands in the new letters.
    :param reason: why.
    :raises AccountingError: the sums over the rows do not agree; nothing was published.
    """
    with ExitStack() as stack:
        index = stack.enter_context(tools.new_index())
        batches = tools.ledger.batches(job.job_id)
        counts = count_rows(tools, job, batches, index, final=final)
        tools.fault("settle.before_letters")
        letters = _letters(tools, job, batches, index, final=final)
        decided = (dataclasses.replace(letter, actor=actor, reason=reason) for letter in letters)
        tools.ledger.insert_dead_letters(decided)
        _move_letters(tools, job, index, final=final)
        tools.fault("settle.before_publish")
        published = publish(tools, job, batches, index)
        counts |= published.counts
        if published.rows != counts["answered"]:
            raise AccountingError(
                f"job {job.job_id}: {counts['answered']} rows answered, but {published.rows} published"
            )
        if final or job.state is JobState.HALTED:
            record_bought(tools, job, batches)
    if tools.spec.sink is not None:
        tools.fault("settle.before_sink")
        counts["landed"] = _land(tools, job, tools.spec.sink, counts, final=final)
    if not final and job.state is not JobState.HALTED:
        log.info("job %s: %d answers of %d rows are out", job.job_id, counts["answered"], counts["rows"])
        return tools.reload(job)
    if not final:
        log.info(
            "job %s is halted: %d of %d rows answered and published, %d dead, %d pending",
            *(job.job_id, counts["answered"], counts["rows"], counts["dead"], counts["pending"]),
        )
        return tools.reload(job)
    litter = _unpinned_plans(tools, job, batches)
    tools.fault("settle.before_close")
    settled = tools.ledger.settle_job(job, counts)
    if settled is None:
        return tools.reload(job)
    # Whoever wrote them believed in the job as it was before this moment and can pin them no more.
    for folder in litter:
        tools.workspace.delete_tree(folder)
    return settled


def _land(tools: Tools, job: Job, sink: ResolvedSink, counts: Mapping[str, int], *, final: bool) -> int:
    """Hand the published answers to the sink; take out what left the source where that is asked for."""
    info = LandingInfo(
        job.key,
        job.job_id,
        job.revision,
        job.created_at,
        final=final,
        rows=counts["rows"],
        answered=counts["answered"],
        dead=counts["dead"],
        empty_is_content=tools.spec.empty_is_content,
    )
    landed = sink.land(read_answers(tools, job), info)
    if final and sink.deletes_withdrawn and job.revision > 1:
        with tools.new_index() as members:
            if job.plan_id is not None:
                for chunk in chunks(iter_member_ids(tools.workspace, tools.root, job.plan_id)):
                    members.insert([(custom_id, 0, 0) for custom_id, _ in chunk])
            gone = sink.withdraw(
                lambda ids: {custom_id for custom_id in ids if members.get(custom_id) is not None}, info
            )
        if gone:
            log.info("job %s: %d rows that left the source were taken out", job.job_id, gone)
    return landed


def _unpinned_plans(tools: Tools, job: Job, batches: list[Batch]) -> list[str]:
    """Return the folders of plans that processes left behind which lost, or died before they pinned."""
    pinned = {batch.plan_id for batch in batches} | {job.plan_id, job.seen.get("previous_plan")}
    keep = {plan_path(tools.root, plan_id) for plan_id in pinned if plan_id}
    start = plan_path(tools.root, "")
    found = {
        start + path.removeprefix(start).partition("/")[0]
        for path in tools.workspace.list(tools.root)
        if path.startswith(start)
    }
    return sorted(found - keep)


def _letters(
    tools: Tools, job: Job, batches: list[Batch], index: RowIndex, *, final: bool
) -> Iterator[DeadLetter]:
    """Yield a letter for every dead row."""
    fates = [Fate.DEAD, Fate.LEFT] if final else [Fate.DEAD]
    for number, batch in enumerate(batches):
        wires = {wire_id for fate in fates for wire_id in index.keys(a=fate, b=number)}
        ridden = {duplicate.of for duplicate in _riders(index, fates, number)}
        if not wires and not ridden:
            continue
        shared: dict[str, DeadLetter] = {}
        for letter in _batch_letters(tools, job, batch, wires | ridden):
            if letter.wire_id in wires:
                yield letter
            if letter.wire_id in ridden:
                shared[letter.wire_id] = letter
        for duplicate in _riders(index, fates, number):
            yield _shared_letter(shared[duplicate.of], duplicate)
    yield from _refusal_letters(tools, job, index)


def _batch_letters(tools: Tools, job: Job, batch: Batch, wires: set[str]) -> Iterator[DeadLetter]:
    requests = iter_requests(tools.workspace, tools.root, batch)
    outcomes = iter_outcomes(tools.workspace, tools.root, batch)
    for request, outcome in zip(requests, outcomes, strict=True):
        if outcome.wire_id not in wires:
            continue
        attempts = (*request.history, attempt_of(batch, outcome))
        yield DeadLetter(
            job_id=job.job_id,
            wire_id=outcome.wire_id,
            custom_id=outcome.custom_id,
            key=job.key,
            revision=job.revision,
            provider=batch.provider,
            model=batch.model,
            verdict=outcome.verdict,
            code=outcome.code,
            message=outcome.message,
            exhausted=outcome.exhausted or outcome.disposition is not Disposition.DEAD,
            request_path=batch.path,
            attempts=attempts,
            usage=Usage(sum(a.input for a in attempts), sum(a.output for a in attempts)),
        )


def _riders(index: RowIndex, fates: list[Fate], number: int) -> Iterator[Duplicate]:
    """Yield the rows that share a failure of a batch, or of what was refused when staged."""
    for fate in fates:
        for wire_id in index.keys(a=fate, b=riding(number)):
            yield rider(index, wire_id)


def _shared_letter(letter: DeadLetter, duplicate: Duplicate) -> DeadLetter:
    """Make the letter of one row that of another with the same request, which cost nothing."""
    return dataclasses.replace(
        letter, wire_id=duplicate.wire_id, custom_id=duplicate.custom_id, usage=Usage()
    )


def _refusal_letters(tools: Tools, job: Job, index: RowIndex) -> Iterator[DeadLetter]:
    if job.plan_id is None:
        return
    ridden = {duplicate.of for duplicate in _riders(index, [Fate.DEAD], WHEN_STAGED)}
    shared: dict[str, DeadLetter] = {}
    for refusal in iter_refusals(tools.workspace, tools.root, job.plan_id):
        if (found := index.get(refusal.wire_id)) is None or found[:2] != (Fate.DEAD, WHEN_STAGED):
            continue
        letter = DeadLetter(
            job_id=job.job_id,
            wire_id=refusal.wire_id,
            custom_id=refusal.custom_id,
            key=job.key,
            revision=job.revision,
            provider=job.provider,
            model=job.model,
            verdict=Verdict(refusal.verdict),
            code=refusal.code,
            message=refusal.message,
            exhausted=False,
            request_path="",
            attempts=(),
            usage=Usage(),
        )
        if letter.wire_id in ridden:
            shared[letter.wire_id] = letter
        yield letter
    for duplicate in _riders(index, [Fate.DEAD], WHEN_STAGED):
        yield _shared_letter(shared[duplicate.of], duplicate)


#: States in which the letter of a dead row is not noticed by anybody.
_COMES_BACK = (LetterState.REDRIVING, LetterState.RESOLVED)


def _discarded_by_us(letter: DeadLetter) -> bool:
    """Say whether a letter was discarded because its row was withdrawn, not by a person."""
    return letter.state is LetterState.DISCARDED and letter.actor == MACHINE


def _move_letters(tools: Tools, job: Job, index: RowIndex, *, final: bool) -> None:
    """Bring the letters of earlier settlements up to date with where their rows stand now."""
    dead = {Fate.DEAD, Fate.LEFT} if final else {Fate.DEAD}
    for letters in chunks(tools.ledger.dead_letters(job.job_id), 500):
        resolved, reopened, superseded = [], [], []
        for letter in letters:
            found = index.get(letter.wire_id)
            if found is None:
                superseded.append(letter.wire_id)
            elif found[0] == Fate.ANSWERED:
                resolved.append(letter.wire_id)
            elif found[0] in dead and (letter.state in _COMES_BACK or _discarded_by_us(letter)):
                reopened.append(letter.wire_id)
        move = tools.ledger.move_dead_letters
        standing = [LetterState.OPEN, LetterState.REDRIVING]
        if resolved:
            move(
                job.job_id,
                resolved,
                to=LetterState.RESOLVED,
                expect=standing,
                actor=MACHINE,
                reason="answered",
            )
        if reopened:
            move(
                job.job_id,
                reopened,
                to=LetterState.OPEN,
                expect=[*_COMES_BACK, LetterState.DISCARDED],
                actor=MACHINE,
                reason="failed again",
            )
        if superseded:
            reason = f"withdrawn or changed in revision {job.revision}"
            move(
                job.job_id,
                superseded,
                to=LetterState.DISCARDED,
                expect=standing,
                actor=MACHINE,
                reason=reason,
            )


def tally(tools: Tools, job: Job) -> Counter[str]:
    """Count the open dead letters of a job by code."""
    codes: Counter[str] = Counter()
    for (state, code), number in tools.ledger.count_dead_letters(job.job_id).items():
        if state in (LetterState.OPEN, LetterState.REDRIVING):
            codes[code] += number
    return codes
