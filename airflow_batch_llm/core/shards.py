"""Cuts a stream of requests into batches that a provider takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from airflow_batch_llm.core.endpoints import EMBEDDINGS, count_inputs
from airflow_batch_llm.core.files import encode_line
from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import BatchPlan, Request, RequestTemplate
from airflow_batch_llm.core.ports import Limits, LineEncoder, WholeFile, Workspace


class TooLarge(Exception):
    """The encoded request is larger than the provider takes."""


class ShardWriter:
    """Writes ``batch-NNNN/requests.jsonl`` files, each within the limits in requests and encoded bytes.

    Requests of different models (or other overrides) never share a batch. Used as a context manager;
    what is half written disappears when the block is left by an exception.

    :param root: the job's folder; :param plan: the plan's folder name below it.
    :param encoder: makes the backend's line encoder for (model, overrides).
    :param not_before: when the batches may be sent, seconds since the epoch.
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
    ) -> None:
        self._workspace = workspace
        self._root = root
        self._plan = plan
        self._template = template
        self._limits = limits
        self._encoder = encoder
        self._not_before = not_before
        self._counts_inputs = limits.max_inputs is not None and template.endpoint == EMBEDDINGS
        self._open: dict[tuple[str, bytes], _Shard] = {}
        self._encoders: dict[tuple[str, bytes], tuple[LineEncoder, int]] = {}
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
        size = len(encode(request.wire_id, body))
        inputs = count_inputs(body) if self._counts_inputs else 0
        if not self._limits.allow(size, inputs):
            raise TooLarge
        shard = self._open.get(lane)
        if shard is not None and not shard.has_room(size, inputs, self._limits):
            self._finish(lane)
            shard = None
        if shard is None:
            shard = self._open[lane] = self._start(model, overrides)
        shard.add(request, size, max_tokens, inputs)

    def cut(self) -> None:
        """End all open batches: what follows goes into new ones."""
        for lane in list(self._open):
            self._finish(lane)

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

    def _make_encoder(
        self, lane: tuple[str, bytes], model: str, overrides: Mapping[str, Any]
    ) -> tuple[LineEncoder, int]:
        template = batch_template(self._template, model, overrides)
        limit = template.params.get("max_tokens")
        made = self._encoders[lane] = (self._encoder(template), limit if isinstance(limit, int) else 0)
        return made

    def _start(self, model: str, overrides: Mapping[str, Any]) -> _Shard:
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        path = f"{self._plan}/batch-{seq:04d}/requests.jsonl"
        return _Shard(seq, path, model, overrides, self._workspace.writer(f"{self._root}/{path}"))

    def _finish(self, lane: tuple[str, bytes]) -> None:
        self._done.append(self._open.pop(lane).finish(self._not_before))


class _Shard:
    """One batch being written."""

    def __init__(
        self,
        seq: int,
        path: str,
        model: str,
        overrides: Mapping[str, Any],
        opened: AbstractContextManager[WholeFile],
    ) -> None:
        self.seq, self.path, self.model, self.overrides, self.opened = seq, path, model, overrides, opened
        self.file = opened.__enter__()
        self.requests = self.upload_bytes = self.input_tokens = self.output_tokens = self.inputs = 0

    def has_room(self, size: int, inputs: int, limits: Limits) -> bool:
        return (
            self.requests < limits.max_requests
            and self.upload_bytes + size <= limits.max_bytes
            and (limits.max_inputs is None or self.inputs + inputs <= limits.max_inputs)
        )

    def add(self, request: Request, size: int, max_tokens: int, inputs: int) -> None:
        self.file.write(encode_line(request))
        self.requests += 1
        self.inputs += inputs
        self.upload_bytes += size
        self.input_tokens += (len(bytes(request.body)) + 3) // 4
        self.output_tokens += max_tokens

    def finish(self, not_before: float | None) -> BatchPlan:
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


def batch_template(template: RequestTemplate, model: str, overrides: Mapping[str, Any]) -> RequestTemplate:
    """Return the template with what a batch changes."""
    return RequestTemplate(
        endpoint=template.endpoint,
        model=model,
        params={**template.params, **overrides},
        output_schema=template.output_schema,
        schema_name=template.schema_name,
        native=template.native,
        cache_prefix=template.cache_prefix,
    )
