"""Executes one piece of a batch: asks the upstream, applies the scenario, makes result lines and charges."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.charge_log import Charge
from airflow_batch_llm.server.faults import RowFaults
from airflow_batch_llm.server.replies import error_reply
from airflow_batch_llm.server.scenario import RowRule
from airflow_batch_llm.server.wire import Dialect, Endpoint, Reply, Request, Upstream

#: Faults that spoil an answer; the others come in place of one.
_SPOILING = frozenset({"error_in_200", "truncated", "content_filter", "refusal", "empty", "invalid_json"})
#: Bytes of answers that are enough for one piece.
_FULL = 8_000_000
_UNCHARGED = frozenset({"error_in_200", "missing"})


@dataclass(slots=True)
class Piece:
    """What came of some consecutive lines: bytes for both files, charges, counts."""

    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    charges: list[Charge] = field(default_factory=list)
    rows: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class RowRunner:
    """Runs the lines of one batch."""

    def __init__(
        self,
        batch: StoredBatch,
        dialect: Dialect,
        endpoint: Endpoint,
        upstream: Upstream,
        faults: RowFaults,
        *,
        failures_in_output: bool = False,
    ) -> None:
        self._batch = batch
        self._dialect = dialect
        self._endpoint = endpoint
        self._upstream = upstream
        self._faults = faults
        self._failures_in_output = failures_in_output

    def execute(self, first: int, lines: Sequence[bytes]) -> Piece:
        """Run lines, or the first of them where their answers are long (``Piece.rows``).

        :param first: number of the first line, from 1.
        """
        piece = Piece()
        while piece.rows < len(lines) and len(piece.output) < _FULL:
            some = lines[piece.rows : piece.rows + self._endpoint.piece]
            self._execute(piece, first + piece.rows, some)
        return piece

    def _execute(self, piece: Piece, first: int, lines: Sequence[bytes]) -> None:
        requests = [
            self._dialect.read(self._batch, number, line) for number, line in enumerate(lines, start=first)
        ]
        rules = [self._rule(request) for request in requests]
        asked = [
            request
            for request, rule in zip(requests, rules, strict=True)
            if request.refused is None and (rule is None or rule.fault in _SPOILING)
        ]
        created = self._batch.in_progress_at or self._batch.created_at
        answers = iter(self._upstream.answer(self._batch.endpoint, asked, created) if asked else ())
        for request, rule in zip(requests, rules, strict=True):
            if request.refused is not None:
                reply, rule = request.refused, None
            elif rule is None:
                reply = next(answers)
            elif rule.fault in _SPOILING:
                reply = next(answers)
                if reply.status == 200:
                    reply = self._endpoint.spoil(reply, rule)
            else:
                reply = _instead(rule)
            self._add(piece, request, rule, reply)

    def leave_out(self, first: int, lines: Sequence[bytes], code: str) -> Piece:
        """Write lines that are not executed into the error file, under ``code``; nothing where the dialect
        has no words for them."""
        piece = Piece()
        target = piece.output if self._dialect.one_file else piece.errors
        for number, line in enumerate(lines, start=first):
            custom_id = self._dialect.read(self._batch, number, line).custom_id
            row = self._dialect.unexecuted(self._batch, row_id(self._batch.id, number), custom_id, code)
            target += row + b"\n" if row else b""
            piece.rows += 1
        return piece

    def _rule(self, request: Request) -> RowRule | None:
        """Return what the scenario does to a row; a fault that its endpoint's answers cannot have is none."""
        rule = self._faults.choose(
            request.line, request.custom_id, request.model, lambda: self._endpoint.prompt(request.body)
        )
        if rule is not None and rule.fault in _SPOILING and rule.fault not in self._endpoint.spoils:
            return None
        return rule

    def _add(self, piece: Piece, request: Request, rule: RowRule | None, reply: Reply) -> None:
        piece.rows += 1
        fault = rule.fault if rule is not None else None
        charged = reply.status == 200 and fault not in _UNCHARGED
        if fault == "missing":
            piece.completed += 1
        else:
            # Where rows carry no HTTP status, an error with 200 cannot be told from any other.
            good = reply.status == 200 and not (fault == "error_in_200" and self._dialect.one_file)
            answered = good or (reply.status and self._failures_in_output) or self._dialect.one_file
            target = piece.output if answered else piece.errors
            target += self._dialect.row(self._batch, row_id(self._batch.id, request.line), request, reply)
            target += b"\n"
            piece.completed += good
            piece.failed += not good
        if charged:
            piece.input_tokens += reply.input_tokens
            piece.output_tokens += reply.output_tokens
        piece.charges.append(
            Charge(
                self._batch.seq,
                request.line,
                request.custom_id,
                hashlib.sha256(request.body).digest(),
                request.model,
                reply.status,
                fault,
                reply.input_tokens,
                reply.output_tokens,
                charged,
            )
        )


def row_id(batch_id: str, line: int) -> str:
    """Return the id of a result row: the same whenever the row is made again."""
    return "batch_req_" + hashlib.blake2b(f"{batch_id}/{line}".encode(), digest_size=16).hexdigest()


def _instead(rule: RowRule) -> Reply:
    """Return what comes in place of an answer."""
    fault = rule.fault
    if fault in ("request_timeout", "missing"):
        return Reply(0)
    if fault == "server_error":
        return error_reply(500, "The server had an error.", code=rule.code, kind="server_error")
    if fault == "rate_limited":
        return error_reply(
            429, "Rate limit reached.", code=rule.code or "rate_limit_exceeded", kind="requests"
        )
    if fault == "insufficient_quota":
        return error_reply(429, "The quota is used up.", code="insufficient_quota", kind="insufficient_quota")
    if fault == "context_length_exceeded":
        return error_reply(400, "The prompt is too long.", code="context_length_exceeded", param="messages")
    return error_reply(400, "The request was refused.", code=rule.code or "invalid_value", param=rule.param)
