"""Mistral's batch jobs over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.call_faults import Handler, spoiled
from airflow_batch_llm.server.downloads import Download
from airflow_batch_llm.server.looks import look_at, look_of
from airflow_batch_llm.server.mistral_create import JobMaker, LinesRefused
from airflow_batch_llm.server.mistral_files import MistralFiles, refused
from airflow_batch_llm.server.mistral_lines import MistralDialect
from airflow_batch_llm.server.mistral_list import JobFilter
from airflow_batch_llm.server.mistral_objects import job_object, rows_of
from airflow_batch_llm.server.mistral_paths import as_uuid
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.uploads import receive_body

_TRUE = ("true", "1", "True")

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class MistralJobs:
    """The handlers of ``/mistral/v1/batch/jobs``."""

    def __init__(self, services: Services, files: MistralFiles) -> None:
        self._services = services
        self._jobs = JobMaker(services, files)
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
        body = self._services.files.new_temporary()
        try:
            await receive_body(request, body, max_bytes=self._limits.max_bytes)
            batch = await run_sync(self._jobs.create, body)
        except LinesRefused as e:
            return refused(e.faults)
        finally:
            body.unlink(missing_ok=True)
        self._services.engine.wake()
        return JSONResponse(await run_sync(self._shown, batch))

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
        if len(batch.kept["input_files"]) != 1:  # a file of its own
            await run_sync(self._services.files.delete, batch.input_file_id)
        return JSONResponse({"id": batch.id, "object": "batch", "deleted": True})


class _Once(Download):
    """A download of a file that is there for it alone."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._path.unlink(missing_ok=True)


def _not_found() -> BadCall:
    return BadCall("No batch job matches the given query.", status=404)
