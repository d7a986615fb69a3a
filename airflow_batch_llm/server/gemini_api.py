"""The Gemini API's files and batches over HTTP, under ``/gemini``."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.call_faults import Handler, spoiled
from airflow_batch_llm.server.downloads import Download
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.gate import UPLOAD_ID
from airflow_batch_llm.server.gemini_create import GeminiCreator, read_order
from airflow_batch_llm.server.gemini_lines import EMBEDDINGS, GeminiDialect
from airflow_batch_llm.server.gemini_objects import (
    GENERATED,
    GeminiRefusal,
    file_object,
    generated_object,
    invalid,
    model_object,
    no_batch,
    no_file,
    operation,
)
from airflow_batch_llm.server.gemini_refusals import refusals_told
from airflow_batch_llm.server.gemini_uploads import GeminiUploads, OpenUpload, announced
from airflow_batch_llm.server.looks import look_at, look_of
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.translation import CHAT

_ROOT = "/gemini"
_VERSIONS = ("v1beta", "v1")
_DIALECT = GeminiDialect.name
_MAX_JSON = 1_000_000
_BOM = b"\xef\xbb\xbf"

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class GeminiApi:
    """The handlers of ``/gemini``."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._creator = GeminiCreator(services)
        max_bytes = services.limits.of(_DIALECT).max_bytes
        self._uploads = GeminiUploads(services.files, dialect=_DIALECT, max_bytes=max_bytes)

    def routes(self) -> list[Route]:
        """Return the routes of both versions, each with the scenario's faults around it."""
        return [route for version in _VERSIONS for route in self._routes(version)]

    def _routes(self, version: str) -> list[Route]:
        root = f"{_ROOT}/{version}"
        text, vectors = partial(self._create, CHAT), partial(self._create, EMBEDDINGS)
        table: list[tuple[str, str, str | None, Handler]] = [
            ("POST", f"{_ROOT}/upload/{version}/files", "upload", self._upload),
            ("PUT", f"{_ROOT}/upload/{version}/files", "upload", self._upload),
            ("GET", f"{_ROOT}/download/{version}/files/{{file_id}}:download", "download", self._download),
            ("GET", f"{root}/files/{{file_id}}:download", "download", self._download),
            ("GET", f"{root}/files", None, self._list_files),
            ("GET", f"{root}/files/{{file_id}}", "file", self._get_file),
            ("DELETE", f"{root}/files/{{file_id}}", "delete", self._delete_file),
            ("POST", f"{root}/models/{{model}}:batchGenerateContent", "create", text),
            ("POST", f"{root}/models/{{model}}:asyncBatchEmbedContent", "create", vectors),
            ("GET", f"{root}/batches", "list", self._list_batches),
            ("GET", f"{root}/batches/{{batch_id}}", "retrieve", self._retrieve),
            ("POST", f"{root}/batches/{{batch_id}}:cancel", "cancel", self._cancel),
            ("DELETE", f"{root}/batches/{{batch_id}}", "delete", self._delete_batch),
            ("GET", f"{root}/models", None, self._models),
            ("GET", f"{root}/models/{{model}}", None, self._model),
        ]
        scenarios = self._services.scenarios
        return [
            Route(
                path,
                refusals_told(handler if on is None else spoiled(on, handler, scenarios), scenarios),
                methods=[method],
            )
            for method, path, on, handler in table
        ]

    # -- uploads -------------------------------------------------------------------------------------
    async def _upload(self, request: HttpRequest) -> Response:
        if upload_id := request.query_params.get(UPLOAD_ID):
            return await self._go_on(request, self._uploads.require(upload_id))
        headers = request.headers
        protocol = headers.get("x-goog-upload-protocol") or request.query_params.get("uploadType")
        if protocol in ("raw", "media"):
            upload = self._uploads.begin(
                announced({}, mime_type=headers.get("content-type"), size=headers.get("content-length"))
            )
            try:
                await self._uploads.receive(upload, request, 0)
                stored = await self._uploads.finalize(upload)
            finally:
                self._uploads.forget(upload.id)
            return JSONResponse({"file": await self._shown_file(request, stored)})
        if protocol != "resumable" or headers.get("x-goog-upload-command") != "start":
            raise invalid("An upload is resumable, and begins with the command start, or is raw.")
        upload = self._uploads.begin(
            announced(
                await _file_of(request),
                mime_type=headers.get("x-goog-upload-header-content-type"),
                size=headers.get("x-goog-upload-header-content-length"),
            )
        )
        url = request.url.replace(query=f"{UPLOAD_ID}={upload.id}&upload_protocol=resumable")
        return JSONResponse({}, headers={"X-Goog-Upload-URL": str(url), "X-Goog-Upload-Status": "active"})

    async def _go_on(self, request: HttpRequest, upload: OpenUpload) -> Response:
        """Take a chunk, the end, or both; or say how far the upload is; or give it up."""
        commands = {word.strip() for word in request.headers.get("x-goog-upload-command", "").split(",")}
        if not commands or commands - {"upload", "finalize", "query", "cancel"}:
            raise invalid("The upload command is none of upload, finalize, query and cancel.")
        async with upload.lock:
            if "cancel" in commands:
                self._uploads.forget(upload.id)
                return JSONResponse({}, headers={"X-Goog-Upload-Status": "cancelled"})
            if "upload" in commands:
                await self._uploads.receive(upload, request, _offset(request))
            if "finalize" in commands:
                await self._uploads.finalize(upload)
        if upload.stored is None:
            headers = {
                "X-Goog-Upload-Status": "active",
                "X-Goog-Upload-Size-Received": str(upload.received),
            }
            return JSONResponse({}, headers=headers)
        shown = {"file": await self._shown_file(request, upload.stored)}
        return JSONResponse(shown, headers={"X-Goog-Upload-Status": "final"})

    # -- files ---------------------------------------------------------------------------------------
    async def _list_files(self, request: HttpRequest) -> Response:
        limit, after = _page_of(request, default=10)
        try:
            found, more = await run_sync(
                lambda: self._services.files.page(
                    purpose="batch", after=after, limit=limit, newest_first=True, dialect=_DIALECT
                )
            )
        except KeyError as e:
            raise invalid("The page token is not known.", "pageToken") from e
        shown = [await self._shown_file(request, stored) for stored in found]
        return JSONResponse(_page("files", shown, found[-1].id if more else None))

    async def _get_file(self, request: HttpRequest) -> Response:
        file_id: str = request.path_params["file_id"]
        if file_id.startswith(GENERATED):
            batch, stored = await run_sync(self._results, file_id)
            return JSONResponse(generated_object(batch, stored, address=_files(request)))
        stored = await run_sync(self._file, file_id)
        return JSONResponse(await self._shown_file(request, stored, look=True))

    async def _delete_file(self, request: HttpRequest) -> Response:
        file_id: str = request.path_params["file_id"]
        if file_id.startswith(GENERATED):
            raise invalid("A file's id has at most 40 characters.", "name")
        stored = await run_sync(self._file, file_id)
        await run_sync(self._services.files.delete, stored.id)
        return JSONResponse({})

    async def _download(self, request: HttpRequest) -> Response:
        file_id: str = request.path_params["file_id"]
        if not file_id.startswith(GENERATED):
            await run_sync(self._file, file_id)
            raise invalid("Only generated files can be downloaded.", "name")
        _, stored = await run_sync(self._results, file_id)
        path = self._services.files.path(stored.id)
        return Download(path, stored.bytes, getattr(request.state, "rule", None))

    def _file(self, file_id: str) -> StoredFile:
        stored = self._services.files.get(file_id)
        if stored is None or stored.dialect != _DIALECT or stored.purpose != "batch":
            raise no_file(file_id)
        return stored

    def _results(self, file_id: str) -> tuple[StoredBatch, StoredFile]:
        """Return a batch and its result file."""
        batch = self._services.batches.get(file_id.removeprefix(GENERATED))
        if batch is None or batch.dialect != _DIALECT or batch.kept["inline"]:
            raise no_file(file_id)
        stored = self._services.files.get(batch.output_file_id or "")
        if stored is None:
            raise no_file(file_id)
        return batch, stored

    async def _shown_file(
        self, request: HttpRequest, stored: StoredFile, *, look: bool = False
    ) -> dict[str, Any]:
        ready = await run_sync(lambda: self._services.scenarios.is_ready(stored.id, look=look))
        return file_object(stored, address=_files(request), ready=ready)

    # -- batches -------------------------------------------------------------------------------------
    async def _create(self, endpoint: str, request: HttpRequest) -> Response:
        model = f"models/{request.path_params['model']}"
        order = await read_order(request, endpoint=endpoint, model=model)
        batch = await run_sync(self._creator.create, order, _version(request))
        self._services.engine.wake()
        scenario = self._services.scenarios.get(batch.scenario)
        return JSONResponse(operation(batch, scenario, look_of(batch, scenario)))

    async def _list_batches(self, request: HttpRequest) -> Response:
        limit, after = _page_of(request, default=50)
        if "filter" in request.query_params:
            raise invalid("A filter is not supported.", "filter")
        try:
            found, more = await run_sync(
                lambda: self._services.batches.page(after=after, limit=limit, dialect=_DIALECT)
            )
        except KeyError as e:
            raise invalid("The page token is not known.", "pageToken") from e
        shown = await run_sync(lambda: [self._listed(batch) for batch in found])
        return JSONResponse(_page("operations", shown, found[-1].id if more else None))

    def _listed(self, batch: StoredBatch) -> dict[str, Any]:
        scenario = self._services.scenarios.get(batch.scenario)
        batch, look = look_at(self._services.batches, batch, scenario)
        return operation(batch, scenario, look, listed=True)

    async def _retrieve(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        body = await run_sync(self._seen, batch)
        return Response(body, media_type="application/json")

    def _seen(self, batch: StoredBatch) -> bytes:
        scenario = self._services.scenarios.get(batch.scenario)
        batch, look = look_at(self._services.batches, batch, scenario)
        if look.hidden:
            raise no_batch()
        rows = self._rows(batch) if batch.kept["inline"] and look.files else []
        return _encoder.encode(operation(batch, scenario, look, rows))

    def _rows(self, batch: StoredBatch) -> list[bytes]:
        """Return the result rows of an inline batch; what is no JSON has no place among them."""
        stored = self._services.files.get(batch.output_file_id or "")
        if stored is None:
            return []
        lines = self._services.files.path(stored.id).read_bytes().removeprefix(_BOM).splitlines()
        return [line for line in lines if _is_row(line)]

    async def _cancel(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        seconds = self._services.scenarios.get(batch.scenario).pace.cancel_seconds
        await run_sync(lambda: self._services.batches.ask_cancel(batch, seconds=seconds))
        self._services.engine.wake()
        batch = await self._batch(request)
        if batch.status not in ("cancelling", "cancelled"):
            raise GeminiRefusal(400, "FAILED_PRECONDITION", "The batch has ended.")
        return JSONResponse({})

    async def _delete_batch(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        await run_sync(lambda: self._services.batches.delete(batch, running=True))
        if batch.output_file_id is not None:
            await run_sync(self._services.files.delete, batch.output_file_id)
        return JSONResponse({})

    async def _batch(self, request: HttpRequest) -> StoredBatch:
        batch = await run_sync(self._services.batches.get, request.path_params["batch_id"])
        if batch is None or batch.dialect != _DIALECT:
            raise no_batch()
        return batch

    # -- models --------------------------------------------------------------------------------------
    async def _models(self, request: HttpRequest) -> Response:
        try:
            models = await run_sync(self._services.upstream.models)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
            raise GeminiRefusal(502, "INTERNAL", "The upstream does not list its models.") from e
        return JSONResponse({"models": [model_object(model["id"]) for model in models]})

    async def _model(self, request: HttpRequest) -> Response:
        """Any model is answered for, but one that the scenario does not know."""
        model: str = request.path_params["model"]
        _, scenario = await run_sync(self._services.scenarios.current)
        if model in scenario.unknown_models:
            raise GeminiRefusal(404, "NOT_FOUND", "No model has this name.")
        return JSONResponse(model_object(model))


def _version(request: HttpRequest) -> str:
    return request.url.path.split("/")[2]


def _files(request: HttpRequest) -> str:
    """Return the address of the files, without a name."""
    parts = request.url.path.split("/")
    version = next(part for part in parts if part in _VERSIONS)
    return f"{str(request.base_url).rstrip('/')}{_ROOT}/{version}/files"


async def _file_of(request: HttpRequest) -> dict[str, Any]:
    """Return what the body of an upload's first call says of the file."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_JSON:
            raise invalid("The body is too long.")
    try:
        value = _any.decode(body) if body else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise invalid("Invalid JSON payload received.") from e
    file = value.get("file") if isinstance(value, dict) else None
    if not isinstance(file, dict | None):
        raise invalid("This must be an object.", "file")
    return file or {}


def _offset(request: HttpRequest) -> int:
    given = request.headers.get("x-goog-upload-offset", "0")
    if not given.isascii() or not given.isdigit():
        raise invalid("The upload offset must be a number of bytes.")
    return int(given)


def _page_of(request: HttpRequest, *, default: int) -> tuple[int, str | None]:
    """Return how many to show, at most 100, and after which."""
    given = request.query_params.get("pageSize", "")
    if given and not (given.isascii() and given.isdigit()):
        raise invalid("The page size must be a number.", "pageSize")
    return min(int(given or 0) or default, 100), request.query_params.get("pageToken") or None


def _page(name: str, shown: list[dict[str, Any]], token: str | None) -> dict[str, Any]:
    """Return one page; members without anything in them are left out."""
    page: dict[str, Any] = {name: shown} if shown else {}
    return page if token is None else {**page, "nextPageToken": token}


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(_any.decode(line), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
