"""next_round and re-drive: what is sent again, as a pinned plan of a further round."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_batch_llm.core.endings import FAILED_NAMED, FAILED_WHOLE
from airflow_batch_llm.core.endpoints import RESPONSES
from airflow_batch_llm.core.files import begin_plan, iter_member_ids, iter_outcomes, iter_requests, plan_path
from airflow_batch_llm.core.model import (
    Attempt,
    Batch,
    BatchKind,
    BatchState,
    DeadLetter,
    Job,
    LetterState,
    Outcome,
    Plan,
    RemoteStatus,
    Request,
    RequestTemplate,
)
from airflow_batch_llm.core.plan_files import iter_duplicates, iter_reused_ids
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.prior import attempt_of
from airflow_batch_llm.core.shards import ShardWriter, TooLarge, counts_in_use, paced
from airflow_batch_llm.core.shared_requests import SharedRequests
from airflow_batch_llm.core.tools import Tools, chunks, log
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import Refused

#: More batches refused as a whole in one round than this is no search for single rows any more.
_MOST_REFUSED = 32
#: A provider may name one line at fault at a time. From so many refusals on, what is left of a batch is cut
#: in two as well: otherwise each line at fault would cost all others one of their free rounds.
_NAMED_ONE_BY_ONE = 3
#: Events: a person let the job go on; what is sent was pinned.
_RESUMED, _PINNED = frozenset({"resumed"}), frozenset({"plan_pinned", "round_pinned"})
_AGAIN = frozenset({Disposition.RETRY, Disposition.RETRY_FREE, Disposition.RETRY_CHANGED, Disposition.HALT})


@dataclass(frozen=True, slots=True)
class _Again:
    """A request to send again, changed as the policy says."""

    request: Request
    model: str
    overrides: Mapping[str, Any]
    cut_before: bool = False


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
        return _pin(tools, job, template, again, delay=tools.spec.policy.delay)


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
) -> Iterator[_Again]:
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
) -> Iterator[_Again]:
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
) -> _Again:
    model, overrides = tools.spec.policy.change(
        outcome.verdict, outcome.code, model=batch.model, params=template.params, overrides=batch.overrides
    )
    request = msgspec.structs.replace(
        request,
        history=(*request.history, attempt_of(batch, outcome)),
        changed=request.changed or (model, overrides) != (batch.model, dict(batch.overrides)),
    )
    if (model, overrides) != (batch.model, dict(batch.overrides)):
        request = _with_own_members_changed(request, template, model, overrides)
    return _Again(request, model, overrides, cut_before)


def _with_own_members_changed(
    request: Request, template: RequestTemplate, model: str, overrides: Mapping[str, Any]
) -> Request:
    """Change model and limit where the body itself names them, which goes before what the batch says.

    A ready-made body names everything: there, what it lacks is put in.
    """
    body: dict[str, Any] = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
    changed: dict[str, Any] = {}
    if template.native or "model" in body:
        changed["model"] = model
    if "max_tokens" in overrides:
        named = [name for name in _LIMITS if name in body]
        if template.native and not named:
            named = ["max_output_tokens" if template.endpoint == RESPONSES else "max_tokens"]
        changed |= dict.fromkeys(named, overrides["max_tokens"])
    if not changed:
        return request
    encoded = msgspec.json.encode(body | changed, order="sorted")
    return msgspec.structs.replace(request, body=msgspec.Raw(encoded))


#: What bodies of the endpoints call the output limit.
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def _pin(
    tools: Tools,
    job: Job,
    template: RequestTemplate,
    again: Iterable[_Again],
    *,
    delay: float = 0.0,
    letters_but: Callable[[Collection[str]], Sequence[str]] = lambda unsent: (),
    seen: Mapping[str, Any] | None = None,
    deadline_at: float | None = None,
    actor: str = "machine",
    reason: str = "",
) -> Job | None:
    """Write the round's files and pin them; None where there was nothing to send.

    :param letters_but: the letters that the round takes up, given the wire ids that cannot be sent.
    """
    plan_id = secrets.token_hex(8)
    folder = plan_path(tools.root, plan_id)
    not_before = tools.ledger.now() + delay if delay else None
    try:
        begin_plan(tools.workspace, tools.root, plan_id, job.revision, job.round + 1)
        tools.fault("round.begun")
        with ShardWriter(
            tools.workspace,
            tools.root,
            f"plan-{plan_id}",
            template=template,
            limits=tools.backend.limits,
            encoder=tools.backend.line_encoder,
            not_before=not_before,
            taken=counts_in_use(tools, job),
        ) as shards:
            unsent = _write(shards, again)
            batches = paced(shards.plans(), tools.backend.limits, tools.ledger.now())
    except BaseException:
        tools.workspace.delete_tree(folder)
        raise
    _tell_unsent(tools, job, unsent)
    letters = letters_but(unsent)
    if not batches:
        tools.workspace.delete_tree(folder)
        return None
    plan = Plan(plan_id, "", batches, conn_id=tools.spec.conn_id, provider=tools.backend.provider)
    tools.fault("round.before_pin")
    pinned = tools.ledger.pin_round(
        job, plan, letters=letters, seen=seen, deadline_at=deadline_at, actor=actor, reason=reason
    )
    tools.fault("round.after_pin")
    if pinned is None:
        log.info("job %s: the round was pinned by somebody else first; ours is dropped", job.job_id)
        tools.workspace.delete_tree(folder)
        return tools.reload(job)
    return pinned


def _write(shards: ShardWriter, again: Iterable[_Again]) -> dict[str, str]:
    """Put the requests into batches; returns wire id -> why, of those that cannot be sent as changed.

    A request may grow past the limit by what was changed, or ask a model for what the protocol refuses with
    it. Such a row dies as it is: what came of its last attempt stands.
    """
    unsent: dict[str, str] = {}
    for item in again:
        if item.cut_before:
            shards.cut()
        try:
            shards.add(item.request, model=item.model, overrides=item.overrides)
        except TooLarge:
            unsent[item.request.wire_id] = "over limit"
        except Refused as error:
            # Its reason is a short token; its text may quote the row.
            unsent[item.request.wire_id] = f"refused: {error.reason}"
    return unsent


def _tell_unsent(tools: Tools, job: Job, unsent: Mapping[str, str]) -> None:
    for why, rows in sorted(Counter(unsent.values()).items()):
        log.warning("job %s: %d rows are not sent again: changed request %s", job.job_id, rows, why)
        text = f"changed request {why} ({rows} rows)"
        tools.ledger.add_event(job.job_id, "not_sent_again", reason=text)


def redrive(
    tools: Tools,
    job: Job,
    template: RequestTemplate,
    *,
    wanted: Callable[[DeadLetter], bool],
    actor: str,
    reason: str,
    seen: Mapping[str, Any],
    deadline_at: float | None,
) -> tuple[int, Job | None]:
    """Pin a further round with the requests of open dead letters; a recorded decision of a person.

    Letters without a stored request (refused before they were ever sent) are passed over, and so are rows
    that have an answer by now: another judge found one, or a late result did. Those letters wait to be
    resolved. Letters whose request the protocol refuses by now stay open.

    :param wanted: which open letters are meant.
    :returns: how many letters the round holds, and the job as pinned; None where there was nothing to send.
    """
    with tools.new_index() as index, tools.new_index() as others:
        sent_for = SharedRequests(others)
        paths, chosen = _index_letters(tools, job, wanted, index, sent_for)
        _pass_over_answered(tools, job, index)
        letters = sorted(wire_id for wire_id in chosen if _is_wanted(index, sent_for.of(wire_id)))
        if not letters:
            return 0, None

        def sent_but(unsent: Collection[str]) -> list[str]:
            letters[:] = [wire_id for wire_id in letters if sent_for.of(wire_id) not in unsent]
            return letters

        requests = sum(1 for _ in index.keys(a=_WANTED))
        pinned = _pin(
            tools,
            job,
            template,
            _stored_requests(tools, job, index, paths, requests),
            letters_but=sent_but,
            seen={**seen, "allowance_round": job.round + 1},
            deadline_at=deadline_at,
            actor=actor,
            reason=reason,
        )
        return len(letters), pinned


_WANTED, _ANSWERED = 0, 1
_attempts = msgspec.json.Decoder(tuple[Attempt, ...])


def _index_letters(
    tools: Tools,
    job: Job,
    wanted: Callable[[DeadLetter], bool],
    index: RowIndex,
    sent_for: SharedRequests,
) -> tuple[dict[str, int], list[str]]:
    """Index the requests of the letters: place, attempts so far. Rows with the same request are sent once.

    :param sent_for: where the rows that share another's request come in.
    :returns: request file -> number, and the wire ids of the letters.
    """
    paths: dict[str, int] = {}
    chosen: list[str] = []
    if job.plan_id is not None:
        sent_for.add(tools.workspace, tools.root, job.plan_id)
    for letters in chunks(tools.ledger.dead_letters(job.job_id, states=[LetterState.OPEN])):
        meant = [letter for letter in letters if letter.request_path and wanted(letter)]
        chosen += [letter.wire_id for letter in meant]
        index.put(
            [
                (
                    sent_for.of(letter.wire_id),
                    _WANTED,
                    paths.setdefault(letter.request_path, len(paths)),
                    msgspec.json.encode(letter.attempts),
                )
                for letter in meant
            ],
            unless_a=-1,
        )
    return paths, chosen


def _is_wanted(index: RowIndex, wire_id: str) -> bool:
    found = index.get(wire_id)
    return found is not None and found[0] == _WANTED


def _pass_over_answered(tools: Tools, job: Job, index: RowIndex) -> None:
    for batch in tools.ledger.batches(job.job_id, states=[BatchState.RECONCILED]):
        if batch.revision < job.floor_revision:
            continue
        for outcomes in chunks(iter_outcomes(tools.workspace, tools.root, batch)):
            landed = [(o.wire_id, _ANSWERED, 0) for o in outcomes if o.disposition is Disposition.LAND]
            index.update(landed, where_a=[_WANTED])


def _stored_requests(
    tools: Tools, job: Job, index: RowIndex, paths: Mapping[str, int], expected: int
) -> Iterator[_Again]:
    """Yield the requests of the indexed letters, with their attempts so far."""
    found = 0
    for batch in tools.ledger.batches(job.job_id):
        if batch.path not in paths or batch.kind is BatchKind.DUPLICATE:
            continue
        for request in iter_requests(tools.workspace, tools.root, batch):
            letter = index.get(request.wire_id)
            if letter is None or letter[:2] != (_WANTED, paths[batch.path]):
                continue
            found += 1
            history = _attempts.decode(letter[2] or b"[]")
            yield _Again(msgspec.structs.replace(request, history=history), batch.model, batch.overrides)
    if found != expected:
        raise LookupError(f"{expected - found} dead letters name requests that are not in the workspace")
