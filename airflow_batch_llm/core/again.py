"""What is sent again, written and pinned as the plan of a further round."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.core.files import begin_plan, plan_path
from airflow_batch_llm.core.model import Job, Plan, Request, RequestTemplate
from airflow_batch_llm.core.shards import ShardWriter, TooLarge, counts_in_use, paced
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.exceptions import Refused


@dataclass(frozen=True, slots=True)
class Again:
    """A request to send again, changed as the policy says."""

    request: Request
    model: str
    overrides: Mapping[str, Any]
    cut_before: bool = False


def pin_again(
    tools: Tools,
    job: Job,
    template: RequestTemplate,
    again: Iterable[Again],
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


def _write(shards: ShardWriter, again: Iterable[Again]) -> dict[str, str]:
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
