"""Mistral's batch jobs over HTTP."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.call_faults import Handler, spoiled
from airflow_batch_llm.server.downloads import Download
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.looks import look_at, look_of
from airflow_batch_llm.server.mistral_files import MistralFiles, names_a_line, refused, scenario_fault
from airflow_batch_llm.server.mistral_lines import MistralDialect
from airflow_batch_llm.server.mistral_list import JobFilter
from airflow_batch_llm.server.mistral_objects import CreateJob, job_object, parse_create, rows_of
from airflow_batch_llm.server.mistral_paths import as_uuid
from airflow_batch_llm.server.mistral_validation import LineFault, check_line
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.scenario import BatchRule
from airflow_batch_llm.server.services import Services

#: Results do not expire: a hundred years, in seconds.
_FOR_EVER = 100 * 365 * 86_400
_TRUE = ("true", "1", "True")

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class LinesRefused(Exception):
    """Requests that came along with a create call are wrong."""

    def __init__(self, faults: list[LineFault]) -> None:
        super().__init__()
        self.faults = faults


class MistralJobs:
    """The handlers of ``/mistral/v1/batch/jobs``."""

    def __init__(self, services: Services, files: MistralFiles) -> None:
        self._services = services
        self._files = files
        self._limits = services.limits.of(MistralDialect.name)
        self._retrieve_spoiled = spoiled("retrieve", self._retrieve, services.scenarios)
        self._results_spoiled = spoiled("download", self._results, services.scenarios)

    def table(self) -> list[tuple[str, str, str | None, Handler]]:
        """Return method, path, kind of call and handler of each route."""
        return [
            ("POST", "/v1/batch/jobs", "create", self._create),
            ("GET", "/v1/batch/jobs", "list", self._list),
            ("GET", "/v1/batch/jobs/{job_id}", None, self._get),
            ("DELETE", "/v1/batch/jobs/{job_id}", "delete", self._delete),
            ("POST", "/v1/batch/jobs/{job_id}/cancel", "cancel", self._cancel),
        ]

    # -- creating ------------------------------------------------------------------------------------
    async def _create(self, request: HttpRequest) -> Response:
        body = await self._body(request)
        try:
            batch = await run_sync(self._new, body)
        except LinesRefused as e:
            return refused(e.faults)
        self._services.engine.wake()
        return JSONResponse(await run_sync(self._shown, batch))

    async def _body(self, request: HttpRequest) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            if len(body) <= self._limits.max_bytes:
                body += chunk
        if len(body) > self._limits.max_bytes:
            raise BadCall("The body is too long.", status=413)
        return bytes(body)

    def _new(self, body: bytes) -> StoredBatch:
        order = parse_create(body, self._services.scenarios.current()[1].unknown_models)
        given = [self._files.get(file_id) for file_id in order.input_files or ()]
        if any(stored.purpose != "batch" for stored in given):
            raise BadCall("A file is not for batches.", status=422, param="input_files")
        faults = _faults(order.requests or ())
        self._refuse(order, faults)
        input_file = given[0] if len(given) == 1 else self._joined(given, order.requests or ())
        return self._services.batches.create(
            dialect=MistralDialect.name,
            endpoint=order.endpoint,
            input_file_id=input_file.id,
            completion_window=f"{order.timeout_hours}h",
            metadata=order.metadata,
            output_seconds=_FOR_EVER,
            batch_id=str(uuid.uuid4()),
            model=order.model,
            extra={
                "input_files": [stored.id for stored in given],
                "requests": input_file.lines,
                "result_ids": {kind: str(uuid.uuid4()) for kind in ("output", "error")},
            },
        )

    def _refuse(self, order: CreateJob, faults: list[LineFault]) -> None:
        """:raises BadCall: the queue is full. :raises LinesRefused: requests that came along are wrong."""

        def refuses(rule: BatchRule) -> bool:
            return rule.fault == "queue_full" or (bool(order.requests) and names_a_line(rule))

        if faults:
            raise LinesRefused(faults)
        rule = self._services.scenarios.draw_refusal(refuses)
        if rule is not None and rule.fault == "queue_full":
            raise BadCall("Too many requests are pending in this workspace.", status=rule.status or 429)
        if rule is not None:
            raise LinesRefused([scenario_fault(rule)])

    def _joined(self, given: Sequence[StoredFile], requests: Sequence[msgspec.Raw]) -> StoredFile:
        """Write several files, or the requests that came along, as one that no client sees."""
        files = self._services.files
        temporary = files.new_temporary()
        try:
            with temporary.open("wb") as target:
                for stored in given:
                    with files.path(stored.id).open("rb") as source:
                        shutil.copyfileobj(source, target)
                    if not _ends_line(files.path(stored.id)):
                        target.write(b"\n")
                for request in requests:
                    target.write(_encoder.encode(_any.decode(request)) + b"\n")
            return files.add(
                temporary,
                filename="requests.jsonl",
                purpose="batch",
                lines=sum(stored.lines for stored in given) + len(requests),
                life=None,
                file_id=str(uuid.uuid4()),
                dialect=MistralDialect.name,
                extra={"joined": True},
            )
        finally:
            temporary.unlink(missing_ok=True)

    # -- looking -------------------------------------------------------------------------------------
    async def _list(self, request: HttpRequest) -> Response:
        wanted = JobFilter.of(request.query_params)
        found = await run_sync(wanted.all_of, self._services.batches)
        data = await run_sync(lambda: [self._looked_at(batch) for batch in wanted.page_of(found)])
        return JSONResponse({"object": "list", "data": data, "total": len(found)})

    async def _get(self, request: HttpRequest) -> Response:
        inline = request.query_params.get("inline") in _TRUE
        return await (self._results_spoiled if inline else self._retrieve_spoiled)(request)

    async def _retrieve(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        return JSONResponse(await run_sync(lambda: self._looked_at(batch, alone=True)))

    async def _results(self, request: HttpRequest) -> Response:
        """Send a job with its rows in it."""
        batch = await self._batch(request)
        temporary = self._services.files.new_temporary()
        await run_sync(self._write_results, batch, temporary)
        rule = getattr(request.state, "rule", None)
        return _Once(temporary, temporary.stat().st_size, rule, media_type="application/json")

    def _write_results(self, batch: StoredBatch, target: Path) -> None:
        shown = self._looked_at(batch, alone=True)
        named = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id]
        kept = [file_id for file_id in named if self._services.files.get(file_id) is not None]
        if not self._is_ended(batch):
            target.write_bytes(_encoder.encode(shown))
            return
        del shown["outputs"]
        with target.open("wb") as file:
            file.write(_encoder.encode(shown).removesuffix(b"}") + b',"outputs":[')
            rows = rows_of([self._services.files.path(file_id) for file_id in kept])
            for place, row in enumerate(rows):
                file.write((b"," if place else b"") + _encoder.encode(row))
            file.write(b"]}")

    def _is_ended(self, batch: StoredBatch) -> bool:
        return look_of(batch, self._services.scenarios.get(batch.scenario)).files and batch.status in (
            "completed",
            "failed",
            "expired",
            "cancelled",
        )

    def _looked_at(self, batch: StoredBatch, *, alone: bool = False) -> dict[str, Any]:
        """Count a look and show what is to be seen. :raises BadCall: 404, nothing yet (``alone``)."""
        scenario = self._services.scenarios.get(batch.scenario)
        batch, look = look_at(self._services.batches, batch, scenario)
        if alone and look.hidden:
            raise _not_found()
        return job_object(batch, scenario, look, self._error_path(batch))

    def _shown(self, batch: StoredBatch) -> dict[str, Any]:
        scenario = self._services.scenarios.get(batch.scenario)
        return job_object(batch, scenario, look_of(batch, scenario), self._error_path(batch))

    def _error_path(self, batch: StoredBatch) -> Path | None:
        return self._services.files.path(batch.error_file_id) if batch.error_file_id else None

    async def _batch(self, request: HttpRequest) -> StoredBatch:
        job_id = as_uuid(request.path_params["job_id"])
        batch = await run_sync(self._services.batches.get, job_id) if job_id else None
        if batch is None or batch.dialect != MistralDialect.name:
            raise _not_found()
        return batch

    # -- ending --------------------------------------------------------------------------------------
    async def _cancel(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        seconds = self._services.scenarios.get(batch.scenario).pace.cancel_seconds
        await run_sync(lambda: self._services.batches.ask_cancel(batch, seconds=seconds))
        self._services.engine.wake()
        return JSONResponse(await run_sync(self._shown, await self._batch(request)))

    async def _delete(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        if not await run_sync(self._services.batches.delete, batch):
            raise BadCall("A job that is not at rest cannot be deleted.", status=409)
        if not batch.kept["input_files"]:
            await run_sync(self._services.files.delete, batch.input_file_id)
        return JSONResponse({"id": batch.id, "object": "batch", "deleted": True})


class _Once(Download):
    """A download of a file that is there for it alone."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._path.unlink(missing_ok=True)


def _faults(requests: Sequence[msgspec.Raw]) -> list[LineFault]:
    checked = ((number, check_line(bytes(request))) for number, request in enumerate(requests, start=1))
    return [LineFault(number, fault) for number, fault in checked if fault is not None]


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _not_found() -> BadCall:
    return BadCall("No batch job matches the given query.", status=404)
