"""stage: reads the source once per revision and pins a plan."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import msgspec

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.files import (
    Member,
    Refusal,
    begin_plan,
    encode_line,
    iter_member_ids,
    job_path,
    plan_job_path,
    plan_path,
    refused_path,
    rows_path,
)
from airflow_batch_llm.core.ids import WireIds
from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import Attempt, Batch, Job, Plan, Request
from airflow_batch_llm.core.ports import RowIndex, WholeFile
from airflow_batch_llm.core.prior import Known, index_prior, must_send
from airflow_batch_llm.core.shards import ShardWriter, TooLarge
from airflow_batch_llm.core.spec import OnEmpty, StageOrder
from airflow_batch_llm.core.tools import Tools, chunks, log
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import CustomIdError, EmptySourceError, Refused, TooFewRows

_MAX_COMPLAINTS = 20
_member_encoder = msgspec.json.Encoder(enc_hook=str)


def stage(tools: Tools, order: StageOrder, job: Job) -> Job:
    """Write a plan for the job's revision and pin it; returns the job as pinned, by us or by another.

    :raises CustomIdError: ids that are missing, empty, repeated or not strings (with line numbers).
    :raises EmptySourceError: no row and ``on_empty="fail"``.
    :raises TooFewRows: fewer rows than ``min_rows``, but not none.
    """
    plan_id = secrets.token_hex(8)
    try:
        plan = _Staging(tools, order, job, plan_id).write()
    except BaseException:
        tools.workspace.delete_tree(plan_path(tools.root, plan_id))
        raise
    tools.fault("stage.before_pin")
    pinned = tools.ledger.pin_plan(job, plan)
    tools.fault("stage.after_pin")
    if pinned is None:
        log.info("job %s: another try pinned its plan first; ours is dropped", job.job_id)
        tools.workspace.delete_tree(plan_path(tools.root, plan_id))
        return tools.reload(job)
    _describe_for_people(tools, plan_id)
    return pinned


def _describe_for_people(tools: Tools, plan_id: str) -> None:
    with tools.workspace.open(plan_job_path(tools.root, plan_id)) as file:
        tools.workspace.put(job_path(tools.root), file.read())


class _Staging:
    """One pass over the source."""

    def __init__(self, tools: Tools, order: StageOrder, job: Job, plan_id: str) -> None:
        self._tools, self._order, self._job, self._plan_id = tools, order, job, plan_id
        self._wire_ids = WireIds(job.key, order.template)
        self._complaints: list[tuple[int, str]] = []
        self._checked_rows = 0
        self._counts: Counter[str] = Counter()
        self._digest = hashlib.sha256()

    def write(self) -> Plan:
        tools, order, root = self._tools, self._order, self._tools.root
        begin_plan(tools.workspace, root, self._plan_id, self._job.revision, 0)
        with ExitStack() as stack:
            custom_ids = stack.enter_context(tools.new_index())
            prior = self._open_prior(stack)
            members = stack.enter_context(tools.workspace.writer(rows_path(root, self._plan_id)))
            refused = stack.enter_context(tools.workspace.writer(refused_path(root, self._plan_id)))
            shards = stack.enter_context(
                ShardWriter(
                    tools.workspace,
                    root,
                    f"plan-{self._plan_id}",
                    template=order.template,
                    limits=tools.backend.limits,
                    encoder=tools.backend.line_encoder,
                )
            )
            for chunk in chunks(order.drafts(), 1000):
                tools.fault("stage.rows")
                for draft in self._checked(chunk, custom_ids):
                    self._take(draft, members, refused, shards, prior)
            self._refuse_bad_ids()
            self._count_withdrawn(custom_ids)
            batches = shards.plans()
        if self._counts["rows"] == 0 and order.on_empty is OnEmpty.FAIL:
            raise EmptySourceError("the source returned no row, and on_empty is 'fail'")
        if 0 < self._counts["rows"] < order.min_rows:
            raise TooFewRows(
                f"the source returned {self._counts['rows']} rows, and min_rows is {order.min_rows}; nothing "
                "was sent"
            )
        self._counts["batches"] = len(batches)
        plan = Plan(self._plan_id, self._digest.hexdigest(), batches, dict(self._counts))
        tools.fault("stage.before_describe")
        tools.workspace.put(plan_job_path(root, self._plan_id), self._describe())
        return plan

    def _open_prior(self, stack: ExitStack) -> RowIndex | None:
        if self._job.revision == 1:
            return None
        prior = stack.enter_context(self._tools.new_index())
        carried: list[Batch] = index_prior(self._tools, self._job, prior)
        self._counts["carried_batches"] = len(carried)
        return prior

    def _checked(self, drafts: list[Draft], custom_ids: RowIndex) -> Iterator[Draft]:
        """Complain about bad ids and pass on the others."""
        good = []
        for draft in drafts:
            complaint = _id_complaint(draft.custom_id)
            if complaint:
                self._complain(draft.line, complaint)
            else:
                good.append(draft)
        # The ordinal tells two rows apart whose source gives both the same line.
        places = range(self._checked_rows, self._checked_rows + len(good))
        self._checked_rows += len(good)
        repeated = custom_ids.insert(
            [(draft.custom_id, draft.line, place) for draft, place in zip(good, places, strict=True)]
        )
        for _, line, first in repeated:
            self._complain(line, f"repeats the custom_id of {self._order.place_name(first)}")
        if not self._complaints:
            yield from good

    def _complain(self, line: int, what: str) -> None:
        self._counts["bad_ids"] += 1
        if len(self._complaints) < _MAX_COMPLAINTS:
            self._complaints.append((line, f"{self._order.place_name(line)}: {what}"))

    def _refuse_bad_ids(self) -> None:
        if not self._complaints:
            return
        more = self._counts["bad_ids"] - len(self._complaints)
        raise CustomIdError(
            f"{self._counts['bad_ids']} bad custom_ids, nothing was sent: "
            + "; ".join(complaint for _, complaint in sorted(self._complaints))
            + (f"; and {more} more" if more else "")
            + (f" ({self._order.id_origin})" if self._order.id_origin else "")
        )

    def _take(
        self,
        draft: Draft,
        members: WholeFile,
        refused: WholeFile,
        shards: ShardWriter,
        prior: RowIndex | None,
    ) -> None:
        self._counts["rows"] += 1
        fault, body = draft.fault, b""
        if fault is None:
            try:
                body = dumps_canonical(draft.body)
            except ValueError:
                fault = (Verdict.BAD_REQUEST, "unencodable")
        model = draft.model or self._order.template.model
        if fault is None and not model:
            fault = (Verdict.BAD_REQUEST, "no_model")
        wire_id = self._wire_ids.derive(draft.custom_id, body if fault is None else b"refused")
        known: Known | None = None
        history: tuple[Attempt, ...] = ()
        if fault is None and prior is not None:
            known, history = must_send(prior, wire_id, self._order.rerun)
        if fault is None and known is None:
            request = Request(
                draft.custom_id, wire_id, msgspec.Raw(body), _plain_key(draft.key), history, draft.carry
            )
            try:
                shards.add(request, model=model)
            except TooLarge:
                fault = (Verdict.TOO_LARGE, "request_over_limit")
            except Refused as error:
                fault = (Verdict.BAD_REQUEST, error.reason)
        if fault is not None:
            self._counts["refused"] += 1
            refused.write(
                encode_line(
                    Refusal(draft.custom_id, wire_id, fault[0], fault[1], draft.line, _plain_key(draft.key))
                )
            )
        else:
            self._counts[_COUNT_NAMES[known]] += 1
        line = _member_line(Member(draft.line, draft.custom_id, wire_id, draft.row))
        members.write(line)
        self._digest.update(wire_id.encode())

    def _count_withdrawn(self, custom_ids: RowIndex) -> None:
        previous = self._job.seen.get("previous_plan")
        if previous is None:
            return
        for custom_id, _ in iter_member_ids(self._tools.workspace, self._tools.root, previous):
            if custom_ids.get(custom_id) is None:
                self._counts["withdrawn"] += 1

    def _describe(self) -> bytes:
        spec, job = self._tools.spec, self._job
        return msgspec.json.format(
            msgspec.json.encode(
                {
                    "version": 1,
                    "job": job.job_id,
                    "key": list(job.key.parts),
                    "revision": job.revision,
                    "provider": self._tools.backend.provider,
                    "conn_id": spec.conn_id,
                    "template": asdict(self._order.template),
                    "policy": spec.policy.serialize(),
                    "judge": spec.judge.fingerprint,
                    "counts": dict(self._counts),
                    **self._order.describe,
                }
            )
        )


_COUNT_NAMES: dict[Known | None, str] = {
    None: "sent",
    Known.ANSWERED: "kept_answered",
    Known.IN_FLIGHT: "kept_in_flight",
    Known.DEAD: "kept_dead",
    Known.EXHAUSTED: "kept_dead",
    Known.OPEN: "sent",
}


def _id_complaint(custom_id: Any) -> str | None:
    if custom_id is None:
        return "the custom_id is missing or null"
    if not isinstance(custom_id, str):
        return f"the custom_id is a {type(custom_id).__name__}, not a string"
    if not custom_id:
        return "the custom_id is empty"
    if "\x00" in custom_id:
        return "the custom_id holds a NUL character"
    try:
        custom_id.encode("utf-8")
    except UnicodeEncodeError:
        return "the custom_id holds half a surrogate pair"
    return None


def _member_line(member: Member) -> bytes:
    try:
        return _member_encoder.encode(member) + b"\n"
    except UnicodeEncodeError:
        # The row holds half a surrogate pair, which no file in UTF-8 can keep; it was refused.
        return encode_line(Member(member.line, member.custom_id, member.wire_id))


def _plain_key(key: dict[str, Any]) -> dict[str, Any]:
    """Return the key columns as JSON types."""
    if not key:
        return key
    plain: dict[str, Any] = msgspec.to_builtins(key, enc_hook=str)
    return plain
