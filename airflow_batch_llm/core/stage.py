"""stage: reads the source once per revision and pins a plan."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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
from airflow_batch_llm.core.model import Job, Plan, Request
from airflow_batch_llm.core.plan_files import feed_digests
from airflow_batch_llm.core.ports import RowIndex, WholeFile
from airflow_batch_llm.core.prior import Prior
from airflow_batch_llm.core.shards import ShardWriter, TooLarge, batch_template, counts_in_use, paced
from airflow_batch_llm.core.sharing import Asking, Sharing
from airflow_batch_llm.core.spec import OnEmpty, StageOrder
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.verdicts import VALIDATOR_FAILED, Verdict
from airflow_batch_llm.exceptions import (
    ConfigurationError,
    CustomIdError,
    EmptySourceError,
    Refused,
    TooFewRows,
)

_MAX_COMPLAINTS = 20
#: Drafts that are looked at together: their number, and the text in them.
_HANDFUL = 1000
_HANDFUL_CHARACTERS = 8 << 20
#: Characters of why a row was refused: it may name a value of the row.
_MESSAGE_LIMIT = 500
_member_encoder = msgspec.json.Encoder(enc_hook=str)


def stage(tools: Tools, order: StageOrder, job: Job) -> Job:
    """Write a plan for the job's revision and pin it; returns the job as pinned, by us or by another.

    :raises ConfigurationError: no request of the template can be made for the policy's ``escalate_to``.
    :raises CustomIdError: ids that are missing, empty, repeated or not strings (with line numbers).
    :raises EmptySourceError: no row and ``on_empty="fail"``.
    :raises TooFewRows: fewer rows than ``min_rows``, but not none.
    """
    _check_escalation(tools, order)
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


def _check_escalation(tools: Tools, order: StageOrder) -> None:
    """Try what retry rounds would ask the other model for: in a round, the first answers are paid for."""
    model = tools.spec.policy.escalate_to
    if not model:
        return
    try:
        tools.backend.line_encoder(batch_template(order.template, model, {}))
    except Refused as error:
        raise ConfigurationError(
            f"RowRetry: escalate_to={model!r} cannot be asked as the task asks: {_words_of(error)}; nothing "
            "was sent"
        ) from error


def _words_of(error: Refused) -> str:
    """Return what a refusal says, without its code and in characters that files can keep."""
    return str(error.args[0])[:_MESSAGE_LIMIT].encode("utf-8", "replace").decode()


def _describe_for_people(tools: Tools, plan_id: str) -> None:
    with tools.workspace.open(plan_job_path(tools.root, plan_id)) as file:
        tools.workspace.put(job_path(tools.root), file.read())


@dataclass(slots=True)
class _Row:
    """A row as it goes into the plan: asked for, or at fault (verdict and code)."""

    draft: Draft
    key: dict[str, Any]
    wire_id: str
    asking: Asking | None
    fault: tuple[Verdict, str] | None


class _Staging:
    """One pass over the source."""

    def __init__(self, tools: Tools, order: StageOrder, job: Job, plan_id: str) -> None:
        self._tools, self._order, self._job, self._plan_id = tools, order, job, plan_id
        self._wire_ids = WireIds(job.key, order.template)
        self._complaints: list[tuple[int, str]] = []
        self._checked_rows = 0
        self._counts: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self._files: dict[str, dict[str, Any]] = {}

    def write(self) -> Plan:
        tools, order, root = self._tools, self._order, self._tools.root
        begin_plan(tools.workspace, root, self._plan_id, self._job.revision, 0)
        with ExitStack() as stack:
            custom_ids = stack.enter_context(tools.new_index())
            prior = Prior(tools, self._job, order.rerun, stack)
            if self._job.revision > 1:
                self._counts["carried_batches"] = prior.carried_batches
            members = stack.enter_context(tools.workspace.writer(rows_path(root, self._plan_id)))
            refused = stack.enter_context(tools.workspace.writer(refused_path(root, self._plan_id)))
            sharing = Sharing(tools, order, self._job, self._plan_id, prior, stack)
            shards = stack.enter_context(
                ShardWriter(
                    tools.workspace,
                    root,
                    f"plan-{self._plan_id}",
                    template=order.template,
                    limits=tools.backend.limits,
                    encoder=tools.backend.line_encoder,
                    taken=counts_in_use(tools, self._job),
                )
            )
            for chunk in _handfuls(order.drafts()):
                tools.fault("stage.rows")
                rows = [self._prepare(draft, prior, sharing) for draft in self._checked(chunk, custom_ids)]
                sharing.look_up(row.asking for row in rows if row.asking is not None)
                for row in rows:
                    self._take(row, members, refused, shards, sharing)
            self._refuse_bad_ids()
            self._refuse_few_rows()
            self._send_unanswered(sharing, refused, shards)
            self._count_withdrawn(custom_ids)
            batches = paced(shards.plans(), tools.backend.limits, tools.ledger.now())
        self._files = sharing.files()
        feed_digests(self._digest, self._files)
        self._counts["batches"] = len(batches)
        plan = Plan(self._plan_id, self._digest.hexdigest(), batches, dict(self._counts))
        tools.fault("stage.before_describe")
        tools.workspace.put(plan_job_path(root, self._plan_id), self._describe())
        return plan

    def _refuse_few_rows(self) -> None:
        rows, order = self._counts["rows"], self._order
        if rows == 0 and order.on_empty is OnEmpty.FAIL:
            raise EmptySourceError("the source returned no row, and on_empty is 'fail'")
        if 0 < rows < order.min_rows:
            raise TooFewRows(
                f"the source returned {rows} rows, and min_rows is {order.min_rows}; nothing was sent"
            )

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

    def _prepare(self, draft: Draft, prior: Prior, sharing: Sharing) -> _Row:
        """Make the request that a row would be, and look up what is known of it."""
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
        key = _plain_key(draft.key)
        if fault is not None:
            return _Row(draft, key, wire_id, None, fault)
        standing = prior.look(wire_id)
        request = Request(
            draft.custom_id, wire_id, msgspec.Raw(body), key, standing.history, carry=draft.carry
        )
        sharing.identify(request, model, draft.sample)
        return _Row(draft, key, wire_id, Asking(request, model, draft.line, standing), None)

    def _take(
        self, row: _Row, members: WholeFile, refused: WholeFile, shards: ShardWriter, sharing: Sharing
    ) -> None:
        """Write the row down, with its request where it needs one."""
        self._counts["rows"] += 1
        asking, draft = row.asking, row.draft
        if asking is None:
            assert row.fault is not None
            self._refuse(refused, draft.custom_id, row.wire_id, row.fault, draft.line, row.key)
        elif settled := sharing.settles(asking):
            self._counts[settled] += 1
        elif self._send(asking.request, asking.model, asking.line, refused, shards):
            sharing.sends(asking)
        member = Member(draft.line, draft.custom_id, row.wire_id, draft.row, row.key, draft.carry)
        members.write(_member_line(member))
        self._digest.update(row.wire_id.encode())

    def _send_unanswered(self, sharing: Sharing, refused: WholeFile, shards: ShardWriter) -> None:
        """Send the rows for which an earlier job's answer was looked up, but does not do."""
        reused = self._counts.pop("candidates", 0)
        for candidate, may_be_sent in sharing.unanswered():
            reused -= 1
            request, line = candidate.request, candidate.line
            if may_be_sent:
                self._send(request, candidate.model, line, refused, shards)
            else:
                fault = (Verdict.INVALID_OUTPUT, VALIDATOR_FAILED)
                self._refuse(refused, request.custom_id, request.wire_id, fault, line, request.key)
        if reused:
            self._counts["reused"] = reused

    def _send(self, request: Request, model: str, line: int, refused: WholeFile, shards: ShardWriter) -> bool:
        """Put a request into a batch; one that cannot be sent is refused, and False returned."""
        try:
            shards.add(request, model=model)
        except TooLarge:
            fault, message = (Verdict.TOO_LARGE, "request_over_limit"), ""
        except Refused as error:
            fault, message = (Verdict.BAD_REQUEST, error.reason), _words_of(error)
        else:
            self._counts["sent"] += 1
            return True
        self._refuse(refused, request.custom_id, request.wire_id, fault, line, request.key, message)
        return False

    def _refuse(
        self,
        refused: WholeFile,
        custom_id: str,
        wire_id: str,
        fault: tuple[Verdict, str],
        line: int,
        key: dict[str, Any],
        message: str = "",
    ) -> None:
        self._counts["refused"] += 1
        refused.write(encode_line(Refusal(custom_id, wire_id, fault[0], fault[1], line, key, message)))

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
                    "staged_at": self._tools.ledger.now(),
                    **({"reuse": self._order.reuse.serialize()} if self._order.reuse else {}),
                    **({"files": self._files} if self._files else {}),
                    **self._order.describe,
                }
            )
        )


def _handfuls(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """Yield drafts in lists, small enough that rows of a megabyte each do not fill memory."""
    held: list[Draft] = []
    size = 0
    for draft in drafts:
        held.append(draft)
        size += _text_size(draft.body) + _text_size(draft.row)
        if len(held) == _HANDFUL or size > _HANDFUL_CHARACTERS:
            yield held
            held, size = [], 0
    if held:
        yield held


def _text_size(value: Any) -> int:
    """Return how many characters and bytes of text are in a body or a row."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_text_size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_text_size, value))
    return 0


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
