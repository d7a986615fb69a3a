"""Mistral's batch jobs: files and jobs over HTTP, or requests that go along with the create call.

Reference: docs.mistral.ai, "Batch Inference" and API reference "Batch", "Files".
"""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from airflow_batch_llm.backends.base import ApiClient, Call, client_for
from airflow_batch_llm.backends.cancelling import ask_cancel
from airflow_batch_llm.backends.counted import fetch_counted, rows_of
from airflow_batch_llm.backends.dialects import window_seconds
from airflow_batch_llm.backends.files import FileStore
from airflow_batch_llm.backends.listed import ListedBackend
from airflow_batch_llm.backends.listing import Page
from airflow_batch_llm.backends.mistral_faults import PlacesUnsure, create_refused, placed, upload_refused
from airflow_batch_llm.backends.mistral_lines import ENDPOINTS, line_encoder
from airflow_batch_llm.backends.mistral_objects import INLINE, BatchJob, JobPage
from airflow_batch_llm.backends.mistral_rows import decode_row
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.backends.replies import parse, quoted, read_apart
from airflow_batch_llm.backends.retrying import Again
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.model import RemoteBatch, RequestTemplate, ResultFile, Row
from airflow_batch_llm.core.ports import Backend, CreateOrder, Limits, LineEncoder, carrying_seconds
from airflow_batch_llm.exceptions import (
    ConfigurationError,
    LinesRefused,
    NotFound,
    ProviderError,
    Refused,
    TransferError,
    Unreachable,
)

log = logging.getLogger(__name__)

_JOBS = "/batch/jobs"
_PAGE_SIZE = 100
_PURPOSE = {"purpose": "batch"}
_HOUR = 3_600.0
#: A job may take up to seven days.
_MOST_HOURS = 168
_JSON = {"content-type": "application/json"}

_LIMITS = Limits(
    max_requests=1_000_000,  # that may be pending in a workspace
    max_bytes=512_000_000,
    max_line_bytes=512_000_000,
    window_seconds=24 * _HOUR,
)
#: Most requests and bytes that go along with a create call. Mistral means it for fewer than 10,000.
_INLINE_REQUESTS, _INLINE_BYTES = 9_999, 20_000_000


class MistralBackend(ListedBackend):
    """A :class:`~airflow_batch_llm.core.ports.Backend` for Mistral.

    :param client: its HTTP API.
    :param options: the connection's options.
    :param limits: what a batch may hold, and how long it may take.
    """

    def __init__(self, client: ApiClient, options: BackendOptions, *, limits: Limits) -> None:
        super().__init__("mistral", client, options, limits, batches=_JOBS, inline=options.inline)
        self._files = FileStore(client, "/files", options.transfer_timeout_seconds)

    # -- lines -------------------------------------------------------------------------------------

    @property
    def files_expire(self) -> bool:
        """Return whether nothing is to be deleted after it was read. Mistral keeps uploads and results for
        ever, but results that hang on a job can go with the job only, and that is what shows, should the
        ledger be lost, that its rows were paid for: they stay until a purge."""
        return self.inline

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        """Return the encoder for a batch. :raises Refused: the template asks what the protocol lacks."""
        return line_encoder(template)

    def decode(self, line: bytes) -> Row:
        """Decode one result line. Never raises: a line that cannot be read is ``unknown``."""
        return decode_row(line)

    # -- files -------------------------------------------------------------------------------------

    async def upload(self, local: Path, name: str) -> str:
        """Send the encoded file as a stream of known length and return its id.

        :raises LinesRefused: Mistral checked the file and refuses some of its lines.
        :raises TransferError: the provider holds fewer bytes than were sent.
        """
        try:
            return await self._files.upload(local, name, _PURPOSE, refused=upload_refused)
        except LinesRefused as e:
            raise await placed(e, local, self._is_refused) from e

    async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
        """Fetch a result file, or the results that hang on a job, whole to ``local``.

        :raises TransferError: it did not arrive whole, after some tries.
        :raises NotFound: the provider has it no more.
        """
        if not file.file_id.startswith(INLINE):
            await self._files.download(file.file_id, local, rows=rows_of(batch, file))
            return
        await self._fetch_outputs(batch, file.file_id.removeprefix(INLINE), local)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file, or the job that results hang on; one that is gone already is fine."""
        if not file_id.startswith(INLINE):
            await self._files.delete(file_id)
            return
        job_id = file_id.removeprefix(INLINE)
        try:
            if (await self._get(job_id)).status.terminal:
                await self._client.call("DELETE", f"{_JOBS}/{quoted(job_id)}")
        except NotFound:
            log.debug("Job %s was gone already", job_id)

    async def _is_refused(self, line: bytes) -> bool:
        """Say whether an upload that holds one line alone is refused; one that is taken is deleted."""
        with tempfile.TemporaryDirectory(prefix="batch-llm-line-") as folder:
            local = Path(folder) / "line.jsonl"
            local.write_bytes(line)
            try:
                file_id = await self._files.upload(local, "line", _PURPOSE, refused=upload_refused)
            except LinesRefused:
                return True
        try:
            await self._files.delete(file_id)
        except ProviderError as e:
            log.warning("File %s, of one line, could not be deleted (%s)", file_id, e.code)
        return False

    async def _fetch_outputs(self, batch: RemoteBatch, job_id: str, local: Path) -> None:
        """Write the results that hang on a job, one a line.

        A reply cut short on a row's end cannot be told from a whole one by its form: see
        :func:`~airflow_batch_llm.backends.counted.fetch_counted`.
        """
        counted = rows_of(batch, ResultFile("output", INLINE + job_id))

        async def fetch(target: Path) -> None:
            rows = await self._client.repeat(functools.partial(self._read_outputs, job_id))
            if rows is None and counted:
                raise NotFound(f"job {job_id}: none of its {counted} results is there")
            part = target.with_name(f".{target.name}.part")
            with part.open("wb") as written:
                written.writelines(jsonl.dumps(row) + b"\n" for row in rows or ())
            part.replace(target)

        what = f"results of job {job_id}"
        await fetch_counted(fetch, local, rows=counted, what=what, pause=self._client.pause)

    async def _read_outputs(self, job_id: str) -> list[dict[str, Any]] | None:
        path = f"{_JOBS}/{quoted(job_id)}"
        reply = await self._client.call("GET", path, params={"inline": "true"})
        call = self._client.named("GET", path)
        try:
            job = await read_apart(reply, lambda: parse(BatchJob, reply, call))
        except Unreachable as e:
            raise Again(TransferError(f"{call}: the results did not arrive whole")) from e
        return job.outputs

    # -- batches -----------------------------------------------------------------------------------

    async def create(self, order: CreateOrder) -> RemoteBatch:
        """Create the job: exactly one request on the wire.

        :raises InDoubt: time-out, reset, 5xx, or a success that cannot be read.
        :raises LinesRefused: requests that went along are at fault; nothing was created.
        :raises NotFound: the upload is gone.
        :raises Unreachable: no connection came about; nothing was sent.
        """
        body: dict[str, Any] = dict(order.extra)
        body.setdefault("timeout_hours", max(round(self.limits.window_seconds / _HOUR), 1))
        body |= {"endpoint": order.template.endpoint, "metadata": dict(order.metadata)}
        if order.template.model:
            body["model"] = order.template.model
        lines = None if order.input_file_id else order.lines
        if lines is None:
            body["input_files"] = [order.input_file_id]
        call = self._client.named("POST", _JOBS)
        try:
            reply = await self._client.call_once(
                "POST",
                _JOBS,
                seconds=self.create_timeout + carrying_seconds(lines),
                refused=create_refused,
                content=jsonl.dumps(body) if lines is None else _with_requests(body, lines),
                headers=_JSON,
            )
        except PlacesUnsure as e:
            raise e.refused if lines is None else await placed(e.refused, lines, self._is_refused) from e
        except NotFound as e:
            if lines is None:
                raise
            what = f"{call}: HTTP 404: no such endpoint; check the dialect and the base URL {call.base}"
            raise Refused(what, status_code=404, reason="not_found") from e
        return self._created(reply, call, order)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """Return the job as it is now.

        Right after it was created a job may not be found by its id: then the list is asked, too.

        :raises NotFound: neither knows it.
        """
        try:
            return await self._get(batch_id)
        except NotFound:
            listed = await self._list.list_recent(stop_at=lambda batch: batch.id == batch_id)
            if listed and listed[-1].id == batch_id:
                return listed[-1]
            raise

    async def cancel(self, batch_id: str) -> RemoteBatch:
        """Ask for cancellation and return the job; one that has already ended is returned as it is.

        :raises Refused: the provider will not cancel a job that still runs.
        """
        return await ask_cancel(
            self._client,
            f"{_JOBS}/{quoted(batch_id)}/cancel",
            read=self._batch,
            retrieve=lambda: self.retrieve(batch_id),
        )

    async def probe(self) -> str:
        """List one job: the cheapest call that needs the key and the right to use batches."""
        reply = await self._client.call("GET", _JOBS, params={"page_size": "1"})
        parse(JobPage, reply, self._client.named("GET", _JOBS))
        return f"{self._client.host} accepts the key and lists batches."

    # -- replies -----------------------------------------------------------------------------------

    async def _get(self, batch_id: str) -> RemoteBatch:
        return await self._look(f"{_JOBS}/{quoted(batch_id)}")

    async def _read_page(self, cursor: str | None) -> Page:
        number = int(cursor or 0)
        params = {"page": str(number), "page_size": str(_PAGE_SIZE), "order_by": "-created"}
        reply = await self._client.call("GET", _JOBS, params=params)
        call = self._client.named("GET", _JOBS)

        def read() -> Page:
            page = parse(JobPage, reply, call)
            batches = [self._strange.tell(job.normalised()) for job in page.data]
            all_at_once = number == 0 and page.total == len(batches) < _PAGE_SIZE
            last = not batches or all_at_once
            return Page(batches, None if last else str(number + 1), total=page.total)

        return await read_apart(reply, read)

    def _batch(self, reply: httpx.Response, call: Call) -> RemoteBatch:
        return self._strange.tell(parse(BatchJob, reply, call).normalised())


def _with_requests(body: Mapping[str, Any], lines: Path) -> bytes:
    """Return a create call's body with the requests of a file, one a line, in it."""
    with lines.open("rb") as file:
        requests = b",".join(line.strip() for line in file if line.strip())
    return jsonl.dumps(body)[:-1] + b',"requests":[' + requests + b"]}"


def _build(provider: Provider, address: str, api_key: str, options: BackendOptions) -> Backend:
    address = address.strip().rstrip("/").removesuffix("/v1")
    client = client_for(f"{address}/v1", {"Authorization": f"Bearer {api_key}"}, options)
    limits = provider.limits
    if options.completion_window is not None:
        limits = replace(limits, window_seconds=_window(options.completion_window))
    if options.inline:
        limits = replace(
            limits,
            max_requests=min(limits.max_requests, _INLINE_REQUESTS),
            max_bytes=min(limits.max_bytes, _INLINE_BYTES),
            max_line_bytes=min(limits.max_line_bytes, _INLINE_BYTES),
        )
    return MistralBackend(client, options, limits=limits)


def _window(written: str) -> float:
    seconds = window_seconds(written)
    if seconds is None or seconds % _HOUR or not _HOUR <= seconds <= _MOST_HOURS * _HOUR:
        raise ConfigurationError(
            f"completion_window must be from 1h to {_MOST_HOURS}h, or 1d to 7d, at Mistral"
        )
    return seconds


def providers() -> tuple[Provider, ...]:
    """Return Mistral's row."""
    return (
        Provider(
            name="mistral",
            title="Mistral",
            protocol="mistral",
            base_url="https://api.mistral.ai",
            limits=_LIMITS,
            endpoints=ENDPOINTS,
            build=_build,
            decode=decode_row,
            example_url="https://api.mistral.ai",
            wire_tested=("LLMock",),
            options={"completion_window": None, "inline": None},
            notes=(
                "A file with one faulty line is refused as a whole at the upload; the line is cut out.",
                "A batch may take 24 hours, or up to seven days with `completion_window`.",
                "Files do not expire: uploads and results are deleted as soon as they were read.",
                "With `inline` up to 9,999 requests go with the create call; their results hang on the job, "
                "and stay until `batch-llm purge` deletes it.",
            ),
        ),
    )
