"""The Gemini API's batch mode: uploads in pieces, batches as operations, results in files or in those.

Reference: ai.google.dev, guides "Batch API" and "Files API", and the discovery document of
generativelanguage.googleapis.com.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call, client_for
from airflow_batch_llm.backends.content import fetch_content
from airflow_batch_llm.backends.counted import fetch_counted
from airflow_batch_llm.backends.gemini_inline import inline_requests, write_inlined
from airflow_batch_llm.backends.gemini_lines import ENDPOINTS, line_encoder
from airflow_batch_llm.backends.gemini_objects import FileObject, Operation, OperationPage, display_name
from airflow_batch_llm.backends.gemini_refusals import refusal_of
from airflow_batch_llm.backends.gemini_rows import decode_row
from airflow_batch_llm.backends.gemini_upload import ResumableUpload
from airflow_batch_llm.backends.listed import ListedBackend
from airflow_batch_llm.backends.listing import Page
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.provider import Form, Provider
from airflow_batch_llm.backends.replies import parse, quoted, read_apart
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import EMBEDDINGS
from airflow_batch_llm.core.model import RemoteBatch, RequestTemplate, ResultFile, Row
from airflow_batch_llm.core.ports import Backend, CreateOrder, Limits, LineEncoder, carrying_seconds
from airflow_batch_llm.exceptions import AuthError, NotFound, Refused

log = logging.getLogger(__name__)

VERSION = "v1beta"
_ADDRESS = "https://generativelanguage.googleapis.com"
_PAGE_SIZE = 100
#: Seconds until an upload that is being looked through is asked about again.
_READY_AGAIN = 5.0
_CREATE = ":batchGenerateContent"
_CREATE_VECTORS = ":asyncBatchEmbedContent"
_DAY = 86_400.0
_FILES = Limits(
    # No number is published; more rows would not fit a process's memory when a batch is judged.
    max_requests=50_000,
    max_bytes=2_000_000_000,
    max_line_bytes=100_000_000,
    # Waiting or running, a batch expires after 48 h.
    window_seconds=2 * _DAY,
)
#: Of a batch whose requests go with the create call: the whole call must stay below 20 MB. Its frame takes 13
#: bytes a request more than a line does.
_INLINE_REQUESTS = 10_000
_INLINE_BYTES = 19_000_000


class GeminiBackend(ListedBackend):
    """A :class:`~airflow_batch_llm.core.ports.Backend` for the Gemini API.

    :param client: the HTTP API; its base URL has no version part.
    :param options: the connection's options.
    :param limits: what one batch may hold.
    """

    def __init__(self, client: ApiClient, options: BackendOptions, *, limits: Limits) -> None:
        self._root = f"/{options.api_version or VERSION}"
        super().__init__(
            "gemini", client, options, limits, batches=f"{self._root}/batches", inline=options.inline
        )
        #: Uploads go after 48 h, results after some weeks.
        self.files_expire = True
        upload = f"/upload{self._root}/files"
        self._upload = ResumableUpload(client, upload, options.transfer_timeout_seconds)

    # -- lines -------------------------------------------------------------------------------------

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        """Return the encoder for a batch. :raises Refused: the template asks what the protocol lacks."""
        return line_encoder(template)

    def decode(self, line: bytes) -> Row:
        """Decode one result line. Never raises: a line that cannot be read is ``unknown``."""
        return decode_row(line)

    # -- files -------------------------------------------------------------------------------------

    async def upload(self, local: Path, name: str) -> str:
        """Send the encoded file in pieces and return its name (``files/…``).

        :raises TransferError: it did not arrive whole, after some tries.
        """
        return await self._upload.send(local, name)

    async def ready(self, file_id: str, *, waited: float = 0.0) -> float | None:
        """Return None where an upload can be used, else in how many seconds to ask again.

        :raises NotFound: the upload is gone.
        :raises Refused: the provider could not read it.
        """
        path = self._path_of(file_id)
        call = self._client.named("GET", path)
        try:
            file = parse(FileObject, await self._client.call("GET", path), call)
        except AuthError as e:
            # A file that is not there is forbidden (403). A key without rights would have sent no file.
            raise NotFound(f"{call}: the file is gone, or is another project's") from e
        if file.state == "FAILED":
            raise Refused(f"{call}: the provider could not read the file", reason="file_failed")
        return _READY_AGAIN if file.state == "PROCESSING" else None

    async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
        """Fetch a batch's results whole to ``local``, from its file or from the batch itself.

        :raises TransferError: they did not arrive whole, after some tries.
        :raises NotFound: the provider has them no more.
        """
        counted = batch.counts.get("completed", 0) + batch.counts.get("failed", 0)

        async def fetch(target: Path) -> None:
            operation = await self._operation(file.file_id)
            name = operation.responses_file()
            if name is not None:
                await self._fetch_file(name, target)
                return
            rows = operation.inlined()
            if rows is None:
                raise NotFound(f"batch {file.file_id}: its results are gone")
            await asyncio.to_thread(write_inlined, rows, target)

        what = f"results of {file.file_id}"
        await fetch_counted(fetch, local, rows=counted, what=what, pause=self._client.pause)

    async def delete_file(self, file_id: str) -> None:
        """Delete an upload, or a batch with its results; one that is gone already is fine.

        :raises Refused: a batch that has not ended: deleting it may stop it, or leave it running unseen.
        """
        path = self._path_of(file_id)
        if file_id.startswith("batches/"):
            try:
                batch = await self.retrieve(file_id)
            except NotFound:
                return
            if not batch.status.terminal:
                raise Refused(f"batch {file_id} has not ended: cancel it first", reason="not_ended")
        try:
            await self._client.call("DELETE", path)
        except NotFound:
            log.debug("%s was gone already", file_id)
        except AuthError:
            if not file_id.startswith("files/"):
                raise
            log.debug("File %s was gone already", file_id)  # deleted twice: 403

    async def _fetch_file(self, name: str, local: Path) -> None:
        path = f"/download{self._path_of(name)}:download?alt=media"
        timeout = self._client.timeout(self._options.transfer_timeout_seconds)
        # No size: the file's own description cannot be read.
        await fetch_content(self._client, path, local, expected=None, timeout=timeout)

    # -- batches -----------------------------------------------------------------------------------

    async def create(self, order: CreateOrder) -> RemoteBatch:
        """Create the batch, of an upload or of the requests themselves: exactly one request on the wire.

        :raises InDoubt: time-out, reset, 5xx, or a success that cannot be read.
        :raises LinesRefused: something in the requests is refused; nothing was created.
        :raises Refused: the model is unknown, say.
        :raises Unreachable: no connection came about; nothing was sent.
        """
        model = order.template.model
        if not model.strip():
            raise Refused("the batch names no model", reason="missing_model")
        named = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        verb = _CREATE_VECTORS if order.template.endpoint == EMBEDDINGS else _CREATE
        call = self._client.named("POST", f"{self._root}/{quote(named, safe='/')}{verb}")

        def refused(reply: httpx.Response, call: Call) -> None:
            refusal_of(reply, call, order)

        reply = await self._client.call_once(
            "POST",
            call.path,
            seconds=self.create_timeout + carrying_seconds(None if order.input_file_id else order.lines),
            refused=refused,
            content=await asyncio.to_thread(_create_body, order),
            headers={"content-type": "application/json"},
        )
        return self._created(reply, call, order)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """Return the batch as it is now. :raises NotFound: the provider denies it."""
        return self._read(await self._operation(batch_id))

    async def cancel(self, batch_id: str) -> RemoteBatch:
        """Ask for cancellation and return the batch; one that has already ended is returned as it is.

        :raises Refused: the provider will not cancel a batch that still runs.
        """
        try:
            await self._client.call("POST", f"{self._path_of(batch_id)}:cancel")
        except Refused:
            batch = await self.retrieve(batch_id)
            if not batch.status.terminal:
                raise
            return batch
        return await self.retrieve(batch_id)

    async def probe(self) -> str:
        """List one batch: the cheapest call that needs the key and the right to use batches."""
        await self._page({"pageSize": "1"})
        return f"{self._client.host} accepts the key and lists batches."

    # -- replies -----------------------------------------------------------------------------------

    async def _read_page(self, cursor: str | None) -> Page:
        params = {"pageSize": str(_PAGE_SIZE)} | ({"pageToken": cursor} if cursor else {})
        page = await self._page(params)
        return Page([self._read(one) for one in page.operations], page.next_page)

    async def _page(self, params: dict[str, str]) -> OperationPage:
        call = self._client.named("GET", self._batches)
        try:
            reply = await self._client.call("GET", self._batches, params=params)
        except NotFound as e:
            what = f"{call}: HTTP 404: no such endpoint; check dialect, base URL and api_version"
            raise Refused(what, status_code=404, reason="not_found") from e
        return await read_apart(reply, lambda: parse(OperationPage, reply, call))

    async def _operation(self, batch_id: str) -> Operation:
        path = self._path_of(batch_id)
        reply = await self._client.call("GET", path)
        return await read_apart(reply, lambda: parse(Operation, reply, self._client.named("GET", path)))

    def _batch(self, reply: httpx.Response, call: Call) -> RemoteBatch:
        return self._read(parse(Operation, reply, call))

    def _read(self, operation: Operation) -> RemoteBatch:
        return self._strange.tell(operation.normalised())

    def _path_of(self, name: str) -> str:
        """Return the path of ``files/…`` or ``batches/…``."""
        kind, _, rest = name.partition("/")
        if kind not in ("files", "batches"):
            raise Refused("an id of another protocol cannot be asked for", reason="foreign_id")
        return f"{self._root}/{kind}/{quoted(rest)}"


def _create_body(order: CreateOrder) -> bytes:
    """Return the body of a create call. What it was asked to hold more (``extra``) stands beside the rest."""
    source: dict[str, Any] = {"fileName": order.input_file_id}
    if not order.input_file_id:
        if order.lines is None:
            raise ValueError("a create order needs an upload or the requests themselves")
        source = {"requests": {"requests": inline_requests(order.lines)}}
    batch = {**order.extra, "displayName": display_name(order.metadata), "inputConfig": source}
    return jsonl.dumps({"batch": batch})


_VERSION_IN_URL = re.compile(r"/v1(?:alpha|beta)?\d*$")


def _build(provider: Provider, address: str, api_key: str, options: BackendOptions) -> Backend:
    headers = {"x-goog-api-key": api_key} if api_key else {}
    if api_key and options.auth == "bearer":
        headers = {"Authorization": f"Bearer {api_key}"}
    client = client_for(_VERSION_IN_URL.sub("", address.strip().rstrip("/")), headers, options)
    return GeminiBackend(client, options, limits=_limits_of(provider.limits, options))


def _limits_of(limits: Limits, options: BackendOptions) -> Limits:
    """Return what one batch may hold in the form that the connection chose."""
    if not options.inline:
        return limits
    most = min(limits.max_bytes, _INLINE_BYTES)
    return replace(
        limits,
        max_requests=min(limits.max_requests, _INLINE_REQUESTS),
        max_bytes=most,
        max_line_bytes=min(limits.max_line_bytes, most),
    )


def providers() -> tuple[Provider, ...]:
    """Return the row of the capability table."""
    return (
        Provider(
            name="gemini",
            title="Google Gemini API",
            protocol="gemini",
            base_url=_ADDRESS,
            limits=_FILES,
            endpoints=ENDPOINTS,
            build=_build,
            decode=decode_row,
            example_url=_ADDRESS,
            mark="display name",
            keeps_partial=False,
            options={
                "api_version": Form(
                    r"v\d+((alpha|beta)\d*)?", "a version as the paths have it, such as v1beta"
                ),
                "auth": None,
                "inline": None,
            },
            notes=(
                "A batch that expired (48 h) or was cancelled shows no answers.",
                "With `inline` the requests go with the create call: at most 10,000, below 19 MB.",
                "One faulty line refuses the whole create call: the batch is halved until the line is alone.",
                "Requests for vectors hold one text each.",
                "Images and PDFs are sent with their bytes, never by address.",
            ),
        ),
    )
