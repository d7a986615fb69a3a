"""OpenAI's files, batches and models over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.call_faults import Handler, spoiled
from airflow_batch_llm.server.downloads import Download
from airflow_batch_llm.server.files import DEFAULT_LIFE, StoredFile
from airflow_batch_llm.server.openai_lines import OpenAIDialect
from airflow_batch_llm.server.openai_objects import (
    BadCall,
    batch_object,
    file_object,
    list_object,
    parse_create,
    parse_life,
    wants_looks_counted,
)
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.uploads import Upload, UploadRefused, receive_upload

_PURPOSES = ("batch", "assistants", "evals", "fine-tune", "user_data", "vision")
_MAX_JSON = 1_000_000


class OpenAIApi:
    """The handlers of ``/v1``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the routes, each with the scenario's faults around it."""
        table: list[tuple[str, str, str | None, Handler]] = [
            ("POST", "/v1/files", "upload", self._upload),
            ("GET", "/v1/files", None, self._list_files),
            ("GET", "/v1/files/{file_id}", "file", self._get_file),
            ("DELETE", "/v1/files/{file_id}", "delete", self._delete_file),
            ("GET", "/v1/files/{file_id}/content", "download", self._download),
            ("POST", "/v1/batches", "create", self._create),
            ("GET", "/v1/batches", "list", self._list_batches),
            ("GET", "/v1/batches/{batch_id}", "retrieve", self._retrieve),
            ("POST", "/v1/batches/{batch_id}/cancel", "cancel", self._cancel),
            ("GET", "/v1/models", None, self._models),
        ]
        scenarios = self._services.scenarios
        return [
            Route(path, handler if on is None else spoiled(on, handler, scenarios), methods=[method])
            for method, path, on, handler in table
        ]

    # -- files ---------------------------------------------------------------------------------------
    async def _upload(self, request: HttpRequest) -> Response:
        files = self._services.files
        temporary = files.new_temporary()
        try:
            upload = await receive_upload(request, temporary, max_bytes=self._services.limits.max_bytes)
            life = _check_upload(upload)
            stored = await run_sync(
                lambda: files.add(
                    temporary,
                    filename=upload.filename or "",
                    purpose=upload.fields["purpose"],
                    lines=upload.lines,
                    life=life,
                )
            )
        except UploadRefused as e:
            raise BadCall(str(e), status=e.status, param=e.param) from e
        finally:
            temporary.unlink(missing_ok=True)
        return JSONResponse(file_object(stored))

    async def _list_files(self, request: HttpRequest) -> Response:
        query = request.query_params
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BadCall("order must be asc or desc.", code="invalid_value", param="order")
        limit = _limit(query.get("limit"), default=10_000, most=10_000)
        try:
            found, more = await run_sync(
                lambda: self._services.files.page(
                    purpose=query.get("purpose"),
                    after=query.get("after"),
                    limit=limit,
                    newest_first=order == "desc",
                )
            )
        except KeyError as e:
            raise BadCall("No file has the id given as after.", param="after") from e
        return JSONResponse(list_object([file_object(stored) for stored in found], more=more))

    async def _get_file(self, request: HttpRequest) -> Response:
        return JSONResponse(file_object(await self._file(request)))

    async def _delete_file(self, request: HttpRequest) -> Response:
        stored = await self._file(request)
        await run_sync(self._services.files.delete, stored.id)
        return JSONResponse({"id": stored.id, "object": "file", "deleted": True})

    async def _download(self, request: HttpRequest) -> Response:
        stored = await self._file(request)
        path = self._services.files.path(stored.id)
        return Download(path, stored.bytes, getattr(request.state, "rule", None))

    async def _file(self, request: HttpRequest) -> StoredFile:
        file_id: str = request.path_params["file_id"]
        stored = await run_sync(self._services.files.get, file_id)
        if stored is None:
            raise BadCall("No file has this id.", status=404, param="id")
        return stored

    # -- batches -------------------------------------------------------------------------------------
    async def _create(self, request: HttpRequest) -> Response:
        order = parse_create(await _small_body(request))
        stored = await run_sync(self._services.files.get, order.input_file_id)
        if stored is not None and stored.lines > self._services.limits.max_requests:
            most = self._services.limits.max_requests
            raise BadCall(
                f"The file holds more than {most} requests.", code="too_many_tasks", param="input_file_id"
            )
        expiry = order.output_expires_after
        batch = await run_sync(
            lambda: self._services.batches.create(
                dialect=OpenAIDialect.name,
                endpoint=order.endpoint,
                input_file_id=order.input_file_id,
                completion_window=order.completion_window,
                metadata=order.metadata,
                output_seconds=expiry.seconds if expiry else None,
            )
        )
        self._services.engine.wake()
        return JSONResponse(batch_object(batch, self._services.scenarios.get(batch.scenario)))

    async def _list_batches(self, request: HttpRequest) -> Response:
        limit = _limit(request.query_params.get("limit"), default=20, most=100)
        after = request.query_params.get("after")
        try:
            data, more = await run_sync(lambda: self._page(after, limit))
        except KeyError as e:
            raise BadCall("No batch has the id given as after.", param="after") from e
        return JSONResponse(list_object(data, more=more))

    def _page(self, after: str | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
        found, more = self._services.batches.page(after=after, limit=limit, dialect=OpenAIDialect.name)
        return [self._look(batch) for batch in found], more

    async def _retrieve(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        return JSONResponse(await run_sync(self._look, batch))

    async def _cancel(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        seconds = self._services.scenarios.get(batch.scenario).pace.cancel_seconds
        await run_sync(lambda: self._services.batches.ask_cancel(batch, seconds=seconds))
        self._services.engine.wake()
        batch = await self._batch(request)
        if batch.status not in ("cancelling", "cancelled"):
            raise BadCall(f"A batch that is {batch.status} cannot be cancelled.", status=409)
        return JSONResponse(batch_object(batch, self._services.scenarios.get(batch.scenario)))

    async def _batch(self, request: HttpRequest) -> StoredBatch:
        batch_id: str = request.path_params["batch_id"]
        batch = await run_sync(self._services.batches.get, batch_id)
        if batch is None or batch.dialect != OpenAIDialect.name:
            raise BadCall("No batch has this id.", status=404)
        return batch

    def _look(self, batch: StoredBatch) -> dict[str, Any]:
        scenario = self._services.scenarios.get(batch.scenario)
        if wants_looks_counted(scenario):
            batch = self._services.batches.count_look(batch.id) or batch
        return batch_object(batch, scenario)

    # -- models --------------------------------------------------------------------------------------
    async def _models(self, request: HttpRequest) -> Response:
        try:
            data = await run_sync(self._services.upstream.models)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
            raise BadCall("The upstream does not list its models.", status=502) from e
        return JSONResponse({"object": "list", "data": data})


def _check_upload(upload: Upload) -> int:
    """Return how many seconds the file is kept. :raises BadCall: purpose, name or expiry are wrong."""
    purpose = upload.fields.get("purpose")
    if purpose is None:
        raise BadCall("purpose is required.", param="purpose", code="missing_required_parameter")
    if purpose not in _PURPOSES:
        raise BadCall(
            f"purpose must be one of {', '.join(_PURPOSES)}.", param="purpose", code="invalid_value"
        )
    if purpose == "batch" and not (upload.filename or "").endswith(".jsonl"):
        raise BadCall("A file for batches must have a name that ends in .jsonl.")
    return parse_life(upload.fields, DEFAULT_LIFE)


def _limit(given: str | None, *, default: int, most: int) -> int:
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= most:
        raise BadCall(f"limit must be from 1 to {most}.", code="invalid_value", param="limit")
    return int(given)


async def _small_body(request: HttpRequest) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_JSON:
            raise BadCall("The body is too long.", status=413)
    return bytes(body)
