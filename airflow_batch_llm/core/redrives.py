"""Re-drive: open dead letters, sent again in a further round as a person decided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from airflow_batch_llm.core.again import Again, pin_again
from airflow_batch_llm.core.files import iter_outcomes, iter_requests
from airflow_batch_llm.core.model import (
    Attempt,
    BatchKind,
    BatchState,
    DeadLetter,
    Job,
    LetterState,
    RequestTemplate,
)
from airflow_batch_llm.core.ports import RowIndex
from airflow_batch_llm.core.shared_requests import SharedRequests
from airflow_batch_llm.core.tools import Tools, chunks
from airflow_batch_llm.core.verdicts import Disposition


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
        pinned = pin_again(
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
) -> Iterator[Again]:
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
            yield Again(msgspec.structs.replace(request, history=history), batch.model, batch.overrides)
    if found != expected:
        raise LookupError(f"{expected - found} dead letters name requests that are not in the workspace")
