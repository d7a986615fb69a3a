"""Anthropic's Message Batches over HTTP, under ``/anthropic``."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import httpx
from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from airflow_batch_llm.server.anthropic_create import check_params, split_requests
from airflow_batch_llm.server.anthropic_lines import AnthropicDialect
from airflow_batch_llm.server.anthropic_objects import (
    RESULTS_LIFE,
    batch_object,
    model_object,
    page_object,
    processing_status,
)
from airflow_batch_llm.server.anthropic_requests import VERSIONS
from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.call_faults import Handler, spoiled
from airflow_batch_llm.server.downloads import Download
from airflow_batch_llm.server.looks import Look, look_at, look_of
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.scenario import BatchRule, Scenario
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.translation import CHAT
from airflow_batch_llm.server.uploads import receive_body

_BATCHES = "/anthropic/v1/messages/batches"
_DIALECT = AnthropicDialect.name
#: Seconds that a running batch asks to be left alone.
_RETRY_AFTER = "10"
#: Seconds that the stored requests outlive their batch's window, should it never end.
_INPUT_LIFE = 2 * 86_400


class AnthropicApi:
    """The handlers of ``/anthropic/v1``."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = services.limits.of(_DIALECT)

    def routes(self) -> list[Route]:
        """Return the routes, each with the scenario's faults around it."""
        one = _BATCHES + "/{batch_id}"
        table: list[tuple[str, str, str | None, Handler]] = [
            ("POST", _BATCHES, "create", self._create),
            ("GET", _BATCHES, "list", self._list),
            ("GET", one, "retrieve", self._retrieve),
            ("POST", one + "/cancel", "cancel", self._cancel),
            ("DELETE", one, "delete", self._delete),
            ("GET", one + "/results", "download", self._results),
            ("GET", "/anthropic/v1/models", None, self._models),
        ]
        scenarios = self._services.scenarios
        return [
            Route(path, handler if on is None else spoiled(on, handler, scenarios), methods=[method])
            for method, path, on, handler in table
        ]

    # -- create --------------------------------------------------------------------------------------
    async def _create(self, request: HttpRequest) -> Response:
        files, scenarios = self._services.files, self._services.scenarios
        body, lines = files.new_temporary(), files.new_temporary()
        try:
            await receive_body(request, body, max_bytes=self._limits.max_bytes)
            version = _version(request)
            scenario = (await run_sync(scenarios.current))[1]
            unknown = scenario.unknown_models
            total = await run_sync(lambda: split_requests(body, lines, self._limits, unknown))
            if scenario.anthropic.params_refused != "in_row":
                named = scenario.anthropic.params_refused == "at_create"
                await run_sync(lambda: check_params(lines, version, named=named))
            rule = await run_sync(scenarios.draw_refusal, _refuses)
            if rule is not None:
                raise _refusal(rule)
            batch = await run_sync(lambda: self._store(lines, total, version))
        finally:
            body.unlink(missing_ok=True)
            lines.unlink(missing_ok=True)
        self._services.engine.wake()
        return JSONResponse(self._show(request, batch))

    def _store(self, lines: Path, total: int, version: str) -> StoredBatch:
        """Create the batch, at once in progress: its requests are checked."""
        files, batches = self._services.files, self._services.batches
        batch_id = "msgbatch_" + secrets.token_hex(12)
        stored = files.add(
            lines,
            filename=f"{batch_id}_requests.jsonl",
            purpose="batch",
            lines=total,
            life=_INPUT_LIFE,
            dialect=_DIALECT,
        )
        batch = batches.create(
            dialect=_DIALECT,
            endpoint=CHAT,
            input_file_id=stored.id,
            completion_window="24h",
            metadata=None,
            output_seconds=RESULTS_LIFE,
            batch_id=batch_id,
            extra={"version": version, "created": time.time()},
        )
        batches.begin(batch, total=total, model=None)
        files.delete(stored.id)  # the bytes stay for as long as the batch runs, and nobody can ask for them
        return batches.require(batch_id)

    # -- looks ---------------------------------------------------------------------------------------
    async def _list(self, request: HttpRequest) -> Response:
        _version(request)
        query = request.query_params
        after, before = query.get("after_id"), query.get("before_id")
        if after is not None and before is not None:
            raise BadCall("after_id, before_id: only one of them may be given")
        limit = _limit(query.get("limit"))
        batches = self._services.batches
        try:
            found, more = await run_sync(
                lambda: batches.page(after=after, before=before, limit=limit, dialect=_DIALECT)
            )
        except KeyError as e:
            raise BadCall("after_id, before_id: no batch has this id") from e
        data = await run_sync(lambda: [self._look(request, batch)[0] for batch in found])
        return JSONResponse(page_object(data, more=more))

    async def _retrieve(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        shown, hidden = await run_sync(self._look, request, batch)
        if hidden:
            raise _not_found()
        headers = {} if shown["processing_status"] == "ended" else {"retry-after": _RETRY_AFTER}
        return JSONResponse(shown, headers=headers)

    async def _results(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        look = look_of(batch, self._services.scenarios.get(batch.scenario))
        if processing_status(batch) != "ended" or not look.files:
            raise BadCall("The batch has no results yet.", status=404)
        rule = getattr(request.state, "rule", None)
        if batch.output_file_id is None:
            return Response(b"", media_type="application/x-jsonl")
        stored = await run_sync(self._services.files.get, batch.output_file_id)
        if stored is None:
            raise BadCall("The results of this batch are not available any more.", status=404)
        path = self._services.files.path(stored.id)
        return Download(path, stored.bytes, rule, media_type="application/x-jsonl", sized=False)

    async def _models(self, request: HttpRequest) -> Response:
        _version(request)
        try:
            models = await run_sync(self._services.upstream.models)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
            raise BadCall("The upstream does not list its models.", status=502) from e
        return JSONResponse(page_object([model_object(model) for model in models], more=False))

    # -- ends ----------------------------------------------------------------------------------------
    async def _cancel(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        seconds = self._services.scenarios.get(batch.scenario).pace.cancel_seconds
        await run_sync(lambda: self._services.batches.ask_cancel(batch, seconds=seconds))
        self._services.engine.wake()
        batch = await self._batch(request)
        if batch.status not in ("cancelling", "cancelled"):
            raise BadCall("The batch has ended and cannot be canceled.")
        return JSONResponse(self._show(request, batch))

    async def _delete(self, request: HttpRequest) -> Response:
        batch = await self._batch(request)
        if not await run_sync(self._services.batches.delete, batch):
            raise BadCall("The batch has not ended yet: cancel it first.")
        if batch.output_file_id is not None:
            await run_sync(self._services.files.delete, batch.output_file_id)
        return JSONResponse({"id": batch.id, "type": "message_batch_deleted"})

    # -- pieces --------------------------------------------------------------------------------------
    async def _batch(self, request: HttpRequest) -> StoredBatch:
        _version(request)
        batch = await run_sync(self._services.batches.get, request.path_params["batch_id"])
        if batch is None or batch.dialect != _DIALECT:
            raise _not_found()
        return batch

    def _look(self, request: HttpRequest, batch: StoredBatch) -> tuple[dict[str, Any], bool]:
        """Count a look; return the object and whether the batch cannot be found yet."""
        scenario = self._services.scenarios.get(batch.scenario)
        batch, look = look_at(self._services.batches, batch, scenario)
        return self._shown(request, batch, look, scenario), look.hidden

    def _show(self, request: HttpRequest, batch: StoredBatch) -> dict[str, Any]:
        scenario = self._services.scenarios.get(batch.scenario)
        return self._shown(request, batch, look_of(batch, scenario), scenario)

    def _shown(
        self, request: HttpRequest, batch: StoredBatch, look: Look, scenario: Scenario
    ) -> dict[str, Any]:
        gone = batch.output_file_id is not None and self._services.files.get(batch.output_file_id) is None
        url = f"{str(request.base_url).rstrip('/')}{_BATCHES}/{batch.id}/results"
        live = scenario.pace.live_counts
        return batch_object(batch, look, url, archived=gone, live_counts=live)


def _not_found() -> BadCall:
    return BadCall("Not found: no batch has this id.", status=404)


def _version(request: HttpRequest) -> str:
    """Return the version asked for. :raises BadCall: none, or one that there is not."""
    version = request.headers.get("anthropic-version")
    if version is None:
        raise BadCall("anthropic-version: header is required")
    if version not in VERSIONS:
        raise BadCall(f"anthropic-version: not a version of this API: {', '.join(VERSIONS)}")
    return version


def _refuses(rule: BatchRule) -> bool:
    """Say whether a rule refuses the create call: a batch that fails is not known here."""
    return rule.fault in ("queue_full", "fail_validation")


def _refusal(rule: BatchRule) -> BadCall:
    if rule.fault == "queue_full":
        text = "This request would exceed the number of batch requests that may be queued."
        return BadCall(text, status=rule.status or 429)
    place = "requests" if rule.line is None else f"requests.{rule.line - 1}"
    place += f".{rule.param}" if rule.param else ""
    return BadCall(f"{place}: The scenario refuses this batch.", code=rule.code)


def _limit(given: str | None) -> int:
    if given is None:
        return 20
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= 1_000:
        raise BadCall("limit: must be from 1 to 1000")
    return int(given)
