"""OpenAI's files, batches and models over HTTP."""

from __future__ import annotations

from collections.abc import Callable
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
from airflow_batch_llm.server.looks import Look, look_at, look_of
from airflow_batch_llm.server.openai_lines import OpenAIDialect
from airflow_batch_llm.server.openai_objects import (
    BadCall,
    CreateBatch,
    batch_object,
    file_object,
    list_object,
    parse_create,
    parse_life,
)
from airflow_batch_llm.server.scenario import Scenario
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.uploads import Upload, UploadRefused, receive_upload

_PURPOSES = ("batch", "assistants", "evals", "fine-tune", "user_data", "vision")
_MAX_JSON = 1_000_000


class OpenAIApi:
    """The handlers of ``/v1``. A protocol of the family overrides what is other there."""

    dialect = OpenAIDialect.name
    #: Seconds that an upload is kept where the client does not say; None: for ever.
    default_life: int | None = DEFAULT_LIFE

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = services.limits.of(self.dialect)

    def routes(self) -> list[Route]:
        """Return the routes, each with the scenario's faults around it."""
        return self.routes_below("/v1")

    def routes_below(
        self, root: str, around: Callable[[Handler], Handler] = lambda handler: handler
    ) -> list[Route]:
        """Return the routes below a path. :param around: wraps each handler, outside of the faults."""
        table: list[tuple[str, str, str | None, Handler]] = [
            ("POST", "/files", "upload", self._upload),
            ("GET", "/files", None, self._list_files),
            ("GET", "/files/{file_id}", "file", self._get_file),
            ("DELETE", "/files/{file_id}", "delete", self._delete_file),
            ("GET", "/files/{file_id}/content", "download", self._download),
            ("POST", "/batches", "create", self._create),
            ("GET", "/batches", "list", self._list_batches),
            ("GET", "/batches/{batch_id}", "retrieve", self._retrieve),
            ("POST", "/batches/{batch_id}/cancel", "cancel", self._cancel),
            ("GET", "/models", None, self._models),
        ]
        scenarios = self._services.scenarios
        return [
            Route(
                root + path,
                around(handler if on is None else spoiled(on, handler, scenarios)),
                methods=[method],
            )
            for method, path, on, handler in table
        ]

    # -- what a protocol of the family has its own of ------------------------------------------------
    def life_of(self, fields: dict[str, str]) -> int | None:
        """Return the seconds that an upload is kept. :raises BadCall: the form's expiry is wrong."""
        return parse_life(fields, self.default_life)

    def new_file_id(self) -> str | None:
        """Return the id of an upload; None for the store's own."""
        return None

    def show_file(self, stored: StoredFile, *, look: bool) -> dict[str, Any]:
        """Show a file. :param look: whether the client asked for this one, and a look is counted."""
        return file_object(stored)

    def order_of(self, body: bytes) -> CreateBatch:
        """Read a create call. :raises BadCall: it is wrong."""
        return parse_create(body)

    def check_input(self, stored: StoredFile | None) -> None:
        """:raises BadCall: the create call is refused for its input file."""
        if stored is not None and stored.lines > self._limits.max_requests:
            raise BadCall(
                f"The file holds more than {self._limits.max_requests} requests.",
                code="too_many_tasks",
                param="input_file_id",
            )

    def new_batch(self, order: CreateBatch) -> dict[str, Any]:
        """Return what the batch is stored with, beside the order: ``endpoint``, ``batch_id``, ``extra``."""
        return {"endpoint": order.endpoint}

    def show_batch(self, batch: StoredBatch, scenario: Scenario, look: Look) -> dict[str, Any]:
        """Show a batch."""
        return batch_object(batch, scenario, look)

    # -- files ---------------------------------------------------------------------------------------
    async def _upload(self, request: HttpRequest) -> Response:
        files = self._services.files
        temporary = files.new_temporary()
        try:
            upload = await receive_upload(request, temporary, max_bytes=self._limits.max_bytes)
            _check_upload(upload)
            life = self.life_of(upload.fields)
            stored = await run_sync(
                lambda: files.add(
                    temporary,
                    filename=upload.filename or "",
                    purpose=upload.fields["purpose"],
                    lines=upload.lines,
                    life=life,
                    file_id=self.new_file_id(),
                    dialect=self.dialect,
                )
            )
        except UploadRefused as e:
            raise BadCall(str(e), status=e.status, param=e.param) from e
        finally:
            temporary.unlink(missing_ok=True)
        return JSONResponse(await run_sync(lambda: self.show_file(stored, look=False)))

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
                    dialect=self.dialect,
                )
            )
        except KeyError as e:
            raise BadCall("No file has the id given as after.", param="after") from e
        shown = await run_sync(lambda: [self.show_file(stored, look=False) for stored in found])
        return JSONResponse(list_object(shown, more=more))

    async def _get_file(self, request: HttpRequest) -> Response:
        stored = await self._file(request)
        return JSONResponse(await run_sync(lambda: self.show_file(stored, look=True)))

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
        if stored is None or stored.dialect != self.dialect:
            raise BadCall("No file has this id.", status=404, param="id")
        return stored

    # -- batches -------------------------------------------------------------------------------------
    async def _create(self, request: HttpRequest) -> Response:
        order = self.order_of(await small_body(request))
        batch = await run_sync(self._new_batch, order)
        self._services.engine.wake()
        return JSONResponse(self._shown(batch))

    def _new_batch(self, order: CreateBatch) -> StoredBatch:
        self.check_input(self._services.files.get(order.input_file_id))
        full = self._services.scenarios.draw_refusal(
            lambda rule: rule.fault == "queue_full" and rule.at_create
        )
        if full is not None:
            raise BadCall(
                "Enqueued token limit reached.", status=full.status or 400, code="token_limit_exceeded"
            )
        expiry = order.output_expires_after
        return self._services.batches.create(
            dialect=self.dialect,
            input_file_id=order.input_file_id,
            completion_window=order.completion_window,
            metadata=order.metadata,
            output_seconds=expiry.seconds if expiry else None,
            **self.new_batch(order),
        )

    async def _list_batches(self, request: HttpRequest) -> Response:
        limit = _limit(request.query_params.get("limit"), default=20, most=100)
        after = request.query_params.get("after")
        try:
            data, more = await run_sync(lambda: self._page(after, limit))
        except KeyError as e:
            raise BadCall("No batch has the id given as after.", param="after") from e
        return JSONResponse(list_object(data, more=more))

    def _page(self, after: str | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
        found, more = self._services.batches.page(after=after, limit=limit, dialect=self.dialect)
        return [self._looked_at(batch)[0] for batch in found], more

    async def _retrieve(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        shown, hidden = await run_sync(self._looked_at, batch)
        if hidden:
            raise BadCall("No batch has this id.", status=404)
        return JSONResponse(shown)

    async def _cancel(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        seconds = self._services.scenarios.get(batch.scenario).pace.cancel_seconds
        await run_sync(lambda: self._services.batches.ask_cancel(batch, seconds=seconds))
        self._services.engine.wake()
        batch = await self._batch(request)
        if batch.status not in ("cancelling", "cancelled"):
            raise BadCall(f"A batch that is {batch.status} cannot be cancelled.", status=409)
        return JSONResponse(self._shown(batch))

    async def _batch(self, request: HttpRequest) -> StoredBatch:
        batch_id: str = request.path_params["batch_id"]
        batch = await run_sync(self._services.batches.get, batch_id)
        if batch is None or batch.dialect != self.dialect:
            raise BadCall("No batch has this id.", status=404)
        return batch

    def _looked_at(self, batch: StoredBatch) -> tuple[dict[str, Any], bool]:
        """Count a look; return the object and whether the batch cannot be found yet."""
        scenario = self._services.scenarios.get(batch.scenario)
        batch, look = look_at(self._services.batches, batch, scenario)
        return self.show_batch(batch, scenario, look), look.hidden

    def _shown(self, batch: StoredBatch) -> dict[str, Any]:
        scenario = self._services.scenarios.get(batch.scenario)
        return self.show_batch(batch, scenario, look_of(batch, scenario))

    # -- models --------------------------------------------------------------------------------------
    async def _models(self, request: HttpRequest) -> Response:
        try:
            data = await run_sync(self._services.upstream.models)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
            raise BadCall("The upstream does not list its models.", status=502) from e
        return JSONResponse({"object": "list", "data": data})


def _check_upload(upload: Upload) -> None:
    """:raises BadCall: purpose or name are wrong."""
    purpose = upload.fields.get("purpose")
    if purpose is None:
        raise BadCall("purpose is required.", param="purpose", code="missing_required_parameter")
    if purpose not in _PURPOSES:
        raise BadCall(
            f"purpose must be one of {', '.join(_PURPOSES)}.", param="purpose", code="invalid_value"
        )
    if purpose == "batch" and not (upload.filename or "").endswith(".jsonl"):
        raise BadCall("A file for batches must have a name that ends in .jsonl.")


def _limit(given: str | None, *, default: int, most: int) -> int:
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= most:
        raise BadCall(f"limit must be from 1 to {most}.", code="invalid_value", param="limit")
    return int(given)


async def small_body(request: HttpRequest) -> bytes:
    """Return the body of a call without requests in it. :raises BadCall: it is above a megabyte."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_JSON:
            raise BadCall("The body is too long.", status=413)
    return bytes(body)
