"""Cuts a stream of requests into batches that a provider takes."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from airflow_batch_llm.core.endpoints import EMBEDDINGS, count_inputs
from airflow_batch_llm.core.files import encode_line
from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import IN_FLIGHT, NOT_SENT, BatchPlan, Job, Request, RequestTemplate
from airflow_batch_llm.core.ports import Limits, LineEncoder, WholeFile, Workspace
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.exceptions import Refused


def _encoded(encode: LineEncoder, wire_id: str, body: bytes) -> bytes:
    """Encode a request. Whatever a body makes an encoder raise, its row is refused alone.

    :raises Refused: it cannot be sent.
    """
    try:
        return encode(wire_id, body)
    except Refused:
        raise
    except Exception as e:
        raise Refused(f"the request cannot be encoded ({type(e).__name__})", reason="unencodable") from e


class TooLarge(Exception):
    """The encoded request is larger than the provider takes."""


#: Requests, and bytes of them, that are held back from a batch's file, so that its count can still change.
_HELD, _HELD_BYTES = 256, 16 << 20


@dataclass(frozen=True, slots=True)
class _Line:
    """A request on its way into a batch.

    :param data: its line of ``requests.jsonl``.
    :param size: bytes of its line in the upload.
    """

    data: bytes
    size: int
    inputs: int
    input_tokens: int
    output_tokens: int


class ShardWriter:
    """Writes ``batch-NNNN/requests.jsonl`` files, each within the limits in requests and encoded bytes.

    Requests of different models (or other overrides) never share a batch. Used as a context manager;
    what is half written disappears when the block is left by an exception.

    :param root: the job's folder; :param plan: the plan's folder name below it.
    :param encoder: makes the backend's line encoder for (model, overrides).
    :param not_before: when the batches may be sent, seconds since the epoch.
    :param taken: counts of requests that no batch is to have, as nothing but its count tells it from others
        at the provider: each batch then gets a count of its own, where there is one. A few requests move to
        the next batch for that, or the last ones into a small one more. None: counts do not matter.
    """

    def __init__(
        self,
        workspace: Workspace,
        root: str,
        plan: str,
        *,
        template: RequestTemplate,
        limits: Limits,
        encoder: Callable[[RequestTemplate], LineEncoder],
        not_before: float | None = None,
        taken: Collection[int] | None = None,
    ) -> None:
        self._workspace = workspace
        self._root = root
        self._plan = plan
        self._template = template
        self._limits = limits
        self._encoder = encoder
        self._not_before = not_before
        self._taken = set(taken) if taken is not None else None
        self._counts_inputs = limits.max_inputs is not None and template.endpoint == EMBEDDINGS
        self._open: dict[_Lane, _Shard] = {}
        self._encoders: dict[_Lane, tuple[LineEncoder, int]] = {}
        self._done: list[BatchPlan] = []
        self._next_seq = 0

    def add(self, request: Request, *, model: str, overrides: Mapping[str, Any] | None = None) -> None:
        """Put the request into its batch.

        :raises TooLarge: it is over the limit alone.
        :raises Refused: the protocol cannot send it.
        """
        overrides = overrides or {}
        lane = (model, dumps_canonical(overrides) if overrides else b"")
        encode, max_tokens = self._encoders.get(lane) or self._make_encoder(lane, model, overrides)
        body = bytes(request.body)
        size = len(_encoded(encode, request.wire_id, body))
        inputs = count_inputs(body) if self._counts_inputs else 0
        if not self._limits.allow(size, inputs):
            raise TooLarge
        line = _Line(encode_line(request), size, inputs, (len(body) + 3) // 4, max_tokens)
        shard = self._open.get(lane)
        while shard is not None and not shard.has_room(line, self._limits):
            shard = self._begin_next(lane, shard)
        if shard is None:
            shard = self._open[lane] = self._start(model, overrides)
        shard.add(line)

    def cut(self) -> None:
        """End all open batches: what follows goes into new ones."""
        for lane in list(self._open):
            shard = self._open.pop(lane)
            last = self._take_back(shard, alone=True)
            self._finish(shard)
            if last:
                self._finish(self._filled(shard, last))

    def plans(self) -> tuple[BatchPlan, ...]:
        """End all open batches and return every batch in order."""
        self.cut()
        return tuple(sorted(self._done, key=lambda plan: plan.seq))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        abandoned = error if error is not None else RuntimeError("the shard writer was left open")
        for shard in self._open.values():
            # The writer re-raises what it is given, after it has removed its half file.
            with contextlib.suppress(type(abandoned)):
                shard.opened.__exit__(type(abandoned), abandoned, trace)
        self._open.clear()

    def _make_encoder(self, lane: _Lane, model: str, overrides: Mapping[str, Any]) -> tuple[LineEncoder, int]:
        template = batch_template(self._template, model, overrides)
        limit = template.params.get("max_tokens")
        made = self._encoders[lane] = (self._encoder(template), limit if isinstance(limit, int) else 0)
        return made

    def _start(self, model: str, overrides: Mapping[str, Any]) -> _Shard:
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        path = f"{self._plan}/batch-{seq:04d}/requests.jsonl"
        opened = self._workspace.writer(f"{self._root}/{path}")
        return _Shard(seq, path, model, overrides, opened, keep=_HELD if self._taken is not None else 0)

    def _begin_next(self, lane: _Lane, full: _Shard) -> _Shard | None:
        """End a batch that is full; returns the next one where requests moved there."""
        moved = self._take_back(full, alone=False)
        del self._open[lane]
        self._finish(full)
        if moved:
            self._open[lane] = self._filled(full, moved)
        return self._open.get(lane)

    def _filled(self, like: _Shard, lines: list[_Line]) -> _Shard:
        shard = self._start(like.model, like.overrides)
        for line in lines:
            shard.add(line)
        return shard

    def _take_back(self, shard: _Shard, *, alone: bool) -> list[_Line]:
        """Take as few requests out of a batch as give it a count of its own; none where there is no such.

        :param alone: what is taken out makes a batch by itself, whose count must be its own as well.
        """
        taken, count = self._taken, shard.requests
        if taken is None or count not in taken:
            return []
        for number in range(1, min(len(shard.held), count - 1) + 1):
            left = count - number
            if left not in taken and not (alone and (number in taken or number == left)):
                return shard.take_back(number)
        return []

    def _finish(self, shard: _Shard) -> None:
        if self._taken is not None:
            self._taken.add(shard.requests)
        self._done.append(shard.finish(self._not_before))


_Lane = tuple[str, bytes]


class _Shard:
    """One batch being written.

    :param keep: so many of its last requests are held back from the file until it ends.
    """

    def __init__(
        self,
        seq: int,
        path: str,
        model: str,
        overrides: Mapping[str, Any],
        opened: AbstractContextManager[WholeFile],
        *,
        keep: int,
    ) -> None:
        self.seq, self.path, self.model, self.overrides, self.opened = seq, path, model, overrides, opened
        self.file = opened.__enter__()
        self.requests = self.upload_bytes = self.input_tokens = self.output_tokens = self.inputs = 0
        self.held: deque[_Line] = deque()
        self._keep, self._held_bytes = keep, 0

    def has_room(self, line: _Line, limits: Limits) -> bool:
        return (
            self.requests < limits.max_requests
            and self.upload_bytes + line.size <= limits.max_bytes
            and (limits.max_inputs is None or self.inputs + line.inputs <= limits.max_inputs)
        )

    def add(self, line: _Line) -> None:
        self._count(line, 1)
        if not self._keep:
            self.file.write(line.data)
            return
        self.held.append(line)
        self._held_bytes += len(line.data)
        while len(self.held) > self._keep or (self._held_bytes > _HELD_BYTES and len(self.held) > 1):
            self._write(self.held.popleft())

    def take_back(self, number: int) -> list[_Line]:
        """Take the last requests out; returns them in order."""
        lines = [self.held.pop() for _ in range(number)][::-1]
        for line in lines:
            self._count(line, -1)
        return lines

    def finish(self, not_before: float | None) -> BatchPlan:
        while self.held:
            self._write(self.held.popleft())
        self.opened.__exit__(None, None, None)
        return BatchPlan(
            seq=self.seq,
            path=self.path,
            requests=self.requests,
            bytes=self.file.size,
            sha256=self.file.sha256,
            upload_bytes=self.upload_bytes,
            model=self.model,
            est_input_tokens=self.input_tokens,
            max_output_tokens=self.output_tokens,
            overrides=dict(self.overrides),
            not_before=not_before,
        )

    def _write(self, line: _Line) -> None:
        self._held_bytes -= len(line.data)
        self.file.write(line.data)

    def _count(self, line: _Line, sign: int) -> None:
        self.requests += sign
        self.inputs += sign * line.inputs
        self.upload_bytes += sign * line.size
        self.input_tokens += sign * line.input_tokens
        self.output_tokens += sign * line.output_tokens


def counts_in_use(tools: Tools, job: Job) -> set[int] | None:
    """Return the counts of the job's batches that a further one could be taken for, None where the provider
    shows marks: of those not read yet, and of those that an earlier attempt may have left twice."""
    if tools.backend.marks_batches:
        return None
    batches = tools.ledger.batches(job.job_id)
    return {b.requests for b in batches if b.state in IN_FLIGHT | NOT_SENT or b.attempt > 1}


def paced(plans: Sequence[BatchPlan], limits: Limits, start: float) -> tuple[BatchPlan, ...]:
    """Let no more batches be created in an hour than the provider takes; the others wait for their hour.

    :param start: when the first may be sent, seconds since the epoch.
    """
    per_hour = limits.creates_per_hour
    if per_hour is None:
        return tuple(plans)
    return tuple(
        replace(plan, not_before=max(plan.not_before or 0.0, start) + 3600.0 * (number // per_hour))
        if number >= per_hour
        else plan
        for number, plan in enumerate(plans)
    )


def batch_template(template: RequestTemplate, model: str, overrides: Mapping[str, Any]) -> RequestTemplate:
    """Return the template with what a batch changes."""
    return replace(template, model=model, params={**template.params, **overrides})
