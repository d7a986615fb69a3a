"""The OpenAI batch protocol: files and batches over HTTP, in the dialect that a table row describes.

Reference: developers.openai.com, guide "Batch" and API reference "Files", "Batch".
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call, client_for
from airflow_batch_llm.backends.cancelling import ask_cancel
from airflow_batch_llm.backends.counted import rows_of
from airflow_batch_llm.backends.dialects import DIALECTS, Dialect, window_seconds
from airflow_batch_llm.backends.files import FileStore
from airflow_batch_llm.backends.listed import ListedBackend
from airflow_batch_llm.backends.listing import Page
from airflow_batch_llm.backends.openai_lines import line_encoder
from airflow_batch_llm.backends.openai_objects import BatchObject, BatchPage
from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.backends.replies import parse, quoted, read_apart
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, RequestTemplate, ResultFile, Row
from airflow_batch_llm.core.ports import Backend, CreateOrder, Limits, LineEncoder
from airflow_batch_llm.exceptions import ConfigurationError, LinesRefused, Refused

log = logging.getLogger(__name__)

_PAGE_SIZE = 100


class OpenAIBackend(ListedBackend):
    """A :class:`~airflow_batch_llm.core.ports.Backend` for the OpenAI family.

    :param dialect: what this server takes and lacks.
    :param client: its HTTP API.
    :param options: the connection's options.
    :param limits: what the connection makes of the dialect's limits.
    """

    def __init__(
        self, dialect: Dialect, client: ApiClient, options: BackendOptions, *, limits: Limits | None = None
    ) -> None:
        super().__init__(
            dialect.name,
            client,
            options,
            limits or dialect.limits,
            batches="/batches",
            marks_batches=dialect.metadata,
        )
        self._dialect = dialect
        self._files = FileStore(client, "/files", options.transfer_timeout_seconds)
        self._logged: set[str] = set()
        self._window = options.completion_window or dialect.completion_window
        self._input_expiry = _checked_expiry(dialect.input_expiry, options.input_expiry_seconds, "input")
        self._output_expiry = _checked_expiry(dialect.output_expiry, options.output_expiry_seconds, "output")

    # -- lines -------------------------------------------------------------------------------------

    @property
    def files_expire(self) -> bool:
        """Whether uploads and results disappear at the provider by themselves."""
        return bool(self._input_expiry and self._output_expiry)

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        """Return the encoder for a batch. :raises Refused: the template asks what the protocol lacks."""
        return line_encoder(template, self._dialect)

    def decode(self, line: bytes) -> Row:
        """Decode one result line. Never raises: a line that cannot be read is ``unknown``."""
        return decode_row(line)

    # -- files -------------------------------------------------------------------------------------

    async def upload(self, local: Path, name: str) -> str:
        """Send the encoded file as a stream of known length and return its id.

        :raises TransferError: the provider holds fewer bytes than were sent.
        """
        fields = {"purpose": "batch"}
        if self._input_expiry:
            fields["expires_after[anchor]"] = "created_at"
            fields["expires_after[seconds]"] = str(self._input_expiry)
        try:
            return await self._files.upload(local, name, fields)
        except Refused as e:
            if self._dialect.checks_uploads and e.status_code in (400, 422):
                raise LinesRefused(e.args[0], status_code=e.status_code, reason=e.reason) from e
            raise

    async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
        """Fetch a result file whole to ``local``, which appears only then.

        :raises TransferError: it did not arrive whole, after some tries.
        :raises NotFound: the provider has it no more.
        """
        await self._files.download(file.file_id, local, rows=rows_of(batch, file))

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; one that is gone already is fine."""
        await self._files.delete(file_id)

    # -- batches -----------------------------------------------------------------------------------

    async def create(self, order: CreateOrder) -> RemoteBatch:
        """Create the batch: exactly one request on the wire.

        :raises InDoubt: time-out, reset, 5xx, or a success that cannot be read.
        :raises Unreachable: no connection came about; nothing was sent.
        """
        body: dict[str, Any] = dict(order.extra)
        body.setdefault("completion_window", self._window)
        if self._output_expiry:
            body.setdefault("output_expires_after", {"anchor": "created_at", "seconds": self._output_expiry})
        body |= {
            "input_file_id": order.input_file_id,
            "endpoint": self._dialect.path_of(order.template.endpoint),
        }
        if self._dialect.metadata:
            body["metadata"] = dict(order.metadata)
        call = self._client.named("POST", "/batches")
        reply = await self._client.call_once("POST", call.path, seconds=self.create_timeout, json=body)
        return self._created(reply, call, order)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """Return the batch as it is now. :raises NotFound: the provider denies it."""
        return await self._look(f"/batches/{quoted(batch_id)}")

    async def cancel(self, batch_id: str) -> RemoteBatch:
        """Ask for cancellation and return the batch; one that has already ended is returned as it is.

        :raises Refused: the provider will not cancel a batch that still runs.
        """
        return await ask_cancel(
            self._client,
            f"/batches/{quoted(batch_id)}/cancel",
            read=self._batch,
            retrieve=lambda: self.retrieve(batch_id),
            refusals=self._dialect.cancel_refusals,
        )

    async def probe(self) -> str:
        """List one batch: the cheapest call that needs the key and the right to use batches."""
        reply = await self._client.call("GET", "/batches", params={"limit": 1})
        self._page(reply)
        return f"{self._client.host} accepts the key and lists batches."

    async def _read_page(self, cursor: str | None) -> Page:
        params = {"limit": str(_PAGE_SIZE)} | ({"after": cursor} if cursor else {})
        reply = await self._client.call("GET", "/batches", params=params)

        def read() -> Page:
            page = self._page(reply)
            batches = [self._normalised(batch) for batch in page.data]
            if not batches or page.has_more is False:
                return Page(batches, None, page.has_more)
            passed = int(cursor or 0) + len(batches) if self._dialect.offset_paging else None
            return Page(batches, batches[-1].id if passed is None else str(passed), page.has_more)

        return await read_apart(reply, read)

    # -- replies -----------------------------------------------------------------------------------

    def _page(self, reply: httpx.Response) -> BatchPage:
        return parse(BatchPage, reply, self._client.named("GET", "/batches"))

    def _batch(self, reply: httpx.Response, call: Call) -> RemoteBatch:
        return self._normalised(parse(BatchObject, reply, call))

    def _normalised(self, batch: BatchObject) -> RemoteBatch:
        remote = self._strange.tell(batch.normalised(self._dialect.statuses))
        if remote.status is RemoteStatus.CANCELLING and self._never_ends(remote):
            if remote.id not in self._logged:
                self._logged.add(remote.id)
                log.warning("Batch %s: its cancel never ends; it counts as cancelled", remote.id)
            return replace(remote, status=RemoteStatus.CANCELLED)
        return remote

    def _never_ends(self, remote: RemoteBatch) -> bool:
        """Say whether a batch is being cancelled although its window closed long ago: nothing works on it."""
        limit, created_at = self._dialect.cancel_seconds, remote.created_at
        if limit is None or created_at is None:
            return False
        return time.time() > created_at + self.limits.window_seconds + limit


def _checked_expiry(allowed: tuple[int, int] | None, seconds: int, which: str) -> int | None:
    if allowed is None or seconds == 0:
        return None
    least, most = allowed
    if not least <= seconds <= most:
        raise ConfigurationError(f"{which}_expiry_seconds must be 0 or from {least} to {most}")
    return seconds


def _build(provider: Provider, address: str, api_key: str, options: BackendOptions) -> Backend:
    dialect = DIALECTS[provider.name]
    window = options.completion_window
    headers = {dialect.auth_header: dialect.auth_prefix + api_key} if api_key else {}
    if options.organization:
        headers["OpenAI-Organization"] = options.organization
    if options.project:
        headers["OpenAI-Project"] = options.project
    client = client_for(address, headers, options)
    limits = replace(provider.limits, window_seconds=_seconds_of(window) or provider.limits.window_seconds)
    return OpenAIBackend(dialect, client, options, limits=limits)


def _seconds_of(window: str | None) -> float | None:
    return window_seconds(window) if window is not None else None


def providers() -> tuple[Provider, ...]:
    """Return the rows of the family."""
    return tuple(map(_provider, DIALECTS.values()))


def _provider(dialect: Dialect) -> Provider:
    return Provider(
        name=dialect.name,
        title=dialect.title,
        protocol="openai",
        base_url=dialect.base_url,
        limits=dialect.limits,
        endpoints=dialect.endpoints,
        build=_build,
        decode=decode_row,
        example_url=dialect.example_url,
        key_required=dialect.key_required,
        marks_batches=dialect.metadata,
        keeps_partial=dialect.keeps_partial,
        wire_tested=dialect.wire_tested,
        notes=dialect.notes,
        options=dialect.options(),
    )
