"""Anthropic's Message Batches: requests go along with the create call, results hang on the batch.

Reference: platform.claude.com, guide "Batch processing" and API reference "Message Batches".
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from airflow_batch_llm.backends.anthropic_faults import refuse_create
from airflow_batch_llm.backends.anthropic_lines import line_encoder
from airflow_batch_llm.backends.anthropic_objects import BatchPage, MessageBatch
from airflow_batch_llm.backends.anthropic_params import NEWEST
from airflow_batch_llm.backends.anthropic_rows import decode_row
from airflow_batch_llm.backends.base import ApiClient, Call, client_for
from airflow_batch_llm.backends.cancelling import ask_cancel
from airflow_batch_llm.backends.content import fetch_content
from airflow_batch_llm.backends.counted import count_rows, fetch_counted
from airflow_batch_llm.backends.listed import ListedBackend
from airflow_batch_llm.backends.listing import Page
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.provider import Form, Provider
from airflow_batch_llm.backends.replies import parse, quoted, read_apart
from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.core.model import RemoteBatch, RequestTemplate, ResultFile, Row
from airflow_batch_llm.core.ports import Backend, CreateOrder, Limits, LineEncoder, carrying_seconds
from airflow_batch_llm.exceptions import NotFound, Refused

log = logging.getLogger(__name__)

_BATCHES = "/messages/batches"
_PAGE_SIZE = 100
_HEAD, _TAIL = b'{"requests":[', b"]}"
_CHUNK = 1 << 20
_LIMITS = Limits(
    max_requests=100_000,
    max_bytes=256_000_000 - len(_HEAD) - len(_TAIL),
    max_line_bytes=32_000_000,
    window_seconds=86_400.0,
    one_model_per_batch=False,
)


class AnthropicBackend(ListedBackend):
    """A :class:`~airflow_batch_llm.core.ports.Backend` for Anthropic's Message Batches.

    :param client: its HTTP API.
    :param options: the connection's options.
    :param limits: what the connection makes of the provider's limits.
    """

    _kind_member = "type"

    def __init__(
        self, provider: str, client: ApiClient, options: BackendOptions, *, limits: Limits = _LIMITS
    ) -> None:
        super().__init__(
            provider, client, options, limits, batches=_BATCHES, inline=True, marks_batches=False
        )
        self._version = options.api_version or NEWEST

    # -- lines -------------------------------------------------------------------------------------

    @property
    def files_expire(self) -> bool:
        """Results are gone 29 days after their batch was created."""
        return True

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        """Return the encoder for a batch.

        :raises Refused: the template asks what the protocol lacks.
        :raises OutputSchemaError: its output schema cannot be expressed.
        """
        return line_encoder(template, version=self._version)

    def decode(self, line: bytes) -> Row:
        """Decode one result line. Never raises: a line that cannot be read is ``unknown``."""
        return decode_row(line)

    # -- files -------------------------------------------------------------------------------------

    async def upload(self, local: Path, name: str) -> str:
        """:raises Refused: nothing is uploaded here: the requests go along with the create call."""
        raise Refused("Anthropic's batches take no uploads", reason="upload")

    async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
        """Fetch a batch's results whole to ``local``, which appears only then.

        :raises TransferError: fewer rows arrived than the batch has, and each read brought something else.
        :raises NotFound: the provider has them no more.
        """
        path = _path_of(file.file_id)
        rows = batch.counts.get("total", 0)
        fetch = functools.partial(
            fetch_content,
            self._client,
            f"{path}/results",
            expected=None,
            timeout=self._client.timeout(self._options.transfer_timeout_seconds),
        )
        what = f"results of batch {file.file_id}"
        await fetch_counted(fetch, local, rows=rows, what=what, pause=self._client.pause)
        if count_rows(local) < rows and await self._is_archived(path):
            local.unlink(missing_ok=True)
            raise NotFound(f"batch {file.file_id}: its results were archived; the provider has them no more")

    async def _is_archived(self, path: str) -> bool:
        reply = await self._client.call("GET", path)
        return parse(MessageBatch, reply, self._client.named("GET", path)).archived_at is not None

    async def delete_file(self, file_id: str) -> None:
        """Delete a batch with its results; one that is gone already is fine.

        :param file_id: the batch's id: results have none of their own.
        :raises Refused: the batch still runs.
        """
        try:
            await self._client.call("DELETE", _path_of(file_id))
        except NotFound:
            log.debug("Batch %s was gone already", file_id)

    # -- batches -----------------------------------------------------------------------------------

    async def create(self, order: CreateOrder) -> RemoteBatch:
        """Create the batch: exactly one request on the wire, streamed from the file of lines.

        :raises InDoubt: time-out, reset, 5xx, or a success that cannot be read.
        :raises LinesRefused: requests are wrong, or there are too many bytes; nothing was created.
        :raises Unreachable: no connection came about; nothing was sent.
        """
        if order.lines is None:
            raise Refused(
                "Anthropic's batches are made of requests, not of an upload", reason="input_file_id"
            )
        size = order.lines.stat().st_size
        call = self._client.named("POST", _BATCHES)
        seconds = self.create_timeout + carrying_seconds(order.lines)
        reply = await self._client.call_once(
            "POST",
            call.path,
            seconds=seconds,
            refused=refuse_create,
            headers={"content-type": "application/json", "content-length": str(_body_size(size))},
            content=_body(order.lines, size),
            # The server reads and checks all of it before it says a word.
            timeout=self._client.timeout(seconds),
        )
        return self._created(reply, call, order)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """Return the batch as it is now. :raises NotFound: the provider denies it."""
        return await self._look(_path_of(batch_id))

    async def cancel(self, batch_id: str) -> RemoteBatch:
        """Ask for cancellation and return the batch; one that has already ended is returned as it is.

        :raises Refused: the provider will not cancel a batch that still runs.
        """
        return await ask_cancel(
            self._client,
            f"{_path_of(batch_id)}/cancel",
            read=self._batch,
            retrieve=lambda: self.retrieve(batch_id),
        )

    async def probe(self) -> str:
        """List one batch: the cheapest call that needs the key and the right to use batches."""
        try:
            reply = await self._client.call("GET", _BATCHES, params={"limit": "1"})
        except Refused as error:
            if error.status_code != 400:
                raise
            what = f"{error.args[0]}; check api_version and betas of the connection"
            raise Refused(what, status_code=400, reason=error.reason) from error
        parse(BatchPage, reply, self._client.named("GET", _BATCHES))
        return f"{self._client.host} accepts the key and lists batches."

    # -- replies -----------------------------------------------------------------------------------

    async def _read_page(self, cursor: str | None) -> Page:
        params = {"limit": str(_PAGE_SIZE)} | ({"after_id": cursor} if cursor else {})
        reply = await self._client.call("GET", _BATCHES, params=params)

        def read() -> Page:
            page = parse(BatchPage, reply, self._client.named("GET", _BATCHES))
            batches = [self._strange.tell(batch.normalised()) for batch in page.data]
            last = page.last_id or (batches[-1].id if batches else None)
            return Page(batches, None if page.has_more is False else last, page.has_more)

        return await read_apart(reply, read)

    def _batch(self, reply: httpx.Response, call: Call) -> RemoteBatch:
        return self._strange.tell(parse(MessageBatch, reply, call).normalised())


def _path_of(batch_id: str) -> str:
    return f"{_BATCHES}/{quoted(batch_id)}"


# -- the body of a create call ---------------------------------------------------------------------
def _body_size(size: int) -> int:
    """Return the bytes of the body around a file of lines: all but the last line's end become a comma."""
    return len(_HEAD) + max(size - 1, 0) + len(_TAIL)


async def _body(lines: Path, size: int) -> AsyncIterator[bytes]:
    """Yield the body piece by piece: it is never held whole. A line's only 0x0A is its end."""
    yield _HEAD
    left = max(size - 1, 0)
    with lines.open("rb") as file:
        while left and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk.replace(b"\n", b",")
    yield _TAIL


# -- the table's row -------------------------------------------------------------------------------
def _build(provider: Provider, address: str, api_key: str, options: BackendOptions) -> Backend:
    headers = {"anthropic-version": options.api_version or NEWEST}
    if api_key:
        bearer = options.auth == "bearer"
        headers |= {"authorization": f"Bearer {api_key}"} if bearer else {"x-api-key": api_key}
    if options.betas:
        headers["anthropic-beta"] = ",".join(options.betas)
    client = client_for(_with_version(address), headers, options)
    return AnthropicBackend(provider.name, client, options, limits=provider.limits)


def _with_version(address: str) -> str:
    """Return the address with the ``/v1`` that all paths stand below, which people may give or not."""
    address = address.strip().rstrip("/")
    return address if address.endswith("/v1") else f"{address}/v1"


def providers() -> tuple[Provider, ...]:
    """Return the row of the table."""
    return (
        Provider(
            name="anthropic",
            title="Anthropic",
            protocol="anthropic",
            base_url="https://api.anthropic.com",
            limits=_LIMITS,
            endpoints=frozenset({CHAT}),
            build=_build,
            decode=decode_row,
            marks_batches=False,
            options={
                "api_version": Form(r"\d{4}-\d{2}-\d{2}", "a date, such as 2023-06-01"),
                "auth": None,
                "betas": None,
            },
            wire_tested=("LLMock", "OGX"),
            notes=(
                "Requests go along with the create call; nothing is uploaded.",
                "`max_tokens` must be given.",
                f"API version {NEWEST} refuses temperature, top_p and top_k; option `api_version` "
                "`2023-06-01` takes them.",
                "A batch bears no mark: one whose create call had no reply is known by time, count and its "
                "rows' ids.",
                "Results are gone 29 days after the batch was created.",
            ),
        ),
    )
