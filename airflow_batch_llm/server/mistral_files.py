"""Mistral's files over HTTP. An upload for batches is checked line by line before it is kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
import uuid
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from airflow_batch_llm.server.call_faults import Handler
from airflow_batch_llm.server.downloads import Download
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.mistral_lines import MistralDialect
from airflow_batch_llm.server.mistral_objects import file_object, whole_number
from airflow_batch_llm.server.mistral_paths import as_uuid
from airflow_batch_llm.server.mistral_validation import LineFault, check_upload
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.scenario import BatchRule
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.uploads import Upload, UploadRefused, receive_upload

_PURPOSES = ("batch", "fine-tune", "ocr", "audio")
_HOUR = 3_600
#: Characters of a signature.
_SIGNATURE = 32


class MistralFiles:
    """The handlers of ``/mistral/v1/files``, and of the addresses that are signed."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = services.limits.of(MistralDialect.name)
        self._secret = secrets.token_bytes(32)

    def table(self) -> list[tuple[str, str, str | None, Handler]]:
        """Return method, path, kind of call and handler of each route."""
        return [
            ("POST", "/v1/files", "upload", self._upload),
            ("GET", "/v1/files", None, self._list),
            ("GET", "/v1/files/{file_id}", "file", self._get),
            ("DELETE", "/v1/files/{file_id}", "delete", self._delete),
            ("GET", "/v1/files/{file_id}/content", "download", self._content),
            ("GET", "/v1/files/{file_id}/url", None, self._url),
            ("GET", "/signed/{file_id}", "download", self._signed),
        ]

    def get(self, file_id: str) -> StoredFile:
        """Return a file that clients may see. :raises BadCall: 404; 422, the id is no UUID."""
        named = as_uuid(file_id)
        if named is None:
            raise BadCall("Input should be a valid UUID.", status=422, code="uuid_parsing", param="file_id")
        stored = self._services.files.get(named)
        if stored is None or stored.dialect != MistralDialect.name or stored.kept.get("joined"):
            raise BadCall("No file matches the given query.", status=404)
        return stored

    async def _upload(self, request: HttpRequest) -> Response:
        files = self._services.files
        temporary = files.new_temporary()
        try:
            upload = await receive_upload(request, temporary, max_bytes=self._limits.max_bytes)
            life = _check(upload)
            if upload.fields["purpose"] == "batch":
                faults = await run_sync(lambda: self._faults() or check_upload(temporary, self._limits))
                if faults:
                    return refused(faults)
            stored = await run_sync(
                lambda: files.add(
                    temporary,
                    filename=upload.filename or "",
                    purpose=upload.fields["purpose"],
                    lines=upload.lines,
                    life=life,
                    file_id=str(uuid.uuid4()),
                    dialect=MistralDialect.name,
                )
            )
        except UploadRefused as e:
            status = 422 if e.status == 400 else e.status
            raise BadCall(str(e), status=status, param=e.param) from e
        finally:
            temporary.unlink(missing_ok=True)
        return JSONResponse(file_object(stored))

    def _faults(self) -> list[LineFault]:
        rule = self._services.scenarios.draw_refusal(names_a_line)
        return [] if rule is None else [scenario_fault(rule)]

    async def _list(self, request: HttpRequest) -> Response:
        query = request.query_params
        page, size = whole_number(query.get("page")), whole_number(query.get("page_size"), default=100)
        found = await run_sync(self._all)
        for name in ("purpose", "sample_type", "source"):
            wanted = query.getlist(name)
            found = [shown for shown in found if not wanted or shown[name] in wanted]
        data = found[page * size : (page + 1) * size]
        return JSONResponse({"object": "list", "data": data, "total": len(found)})

    def _all(self) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        after, more = None, True
        while more:
            some, more = self._services.files.page(
                purpose=None, after=after, limit=500, newest_first=True, dialect=MistralDialect.name
            )
            shown += [file_object(stored) for stored in some if not stored.kept.get("joined")]
            after = some[-1].id if some else None
        return shown

    async def _get(self, request: HttpRequest) -> Response:
        stored = await self._file(request)
        return JSONResponse({**file_object(stored), "deleted": False})

    async def _delete(self, request: HttpRequest) -> Response:
        stored = await self._file(request)
        await run_sync(self._services.files.delete, stored.id)
        return JSONResponse({"id": stored.id, "object": "file", "deleted": True})

    async def _content(self, request: HttpRequest) -> Response:
        return self._sent(request, await self._file(request))

    async def _url(self, request: HttpRequest) -> Response:
        stored = await self._file(request)
        until = int(time.time()) + whole_number(request.query_params.get("expiry"), default=24) * _HOUR
        address = f"{request.base_url}mistral/signed/{stored.id}"
        return JSONResponse({"url": f"{address}?until={until}&signature={self._sign(stored.id, until)}"})

    async def _signed(self, request: HttpRequest) -> Response:
        stored = await self._file(request)
        until = whole_number(request.query_params.get("until"))
        given = request.query_params.get("signature", "")
        if until < time.time() or not hmac.compare_digest(
            given.encode(), self._sign(stored.id, until).encode()
        ):
            raise BadCall("The address has expired or is not signed.", status=403)
        return self._sent(request, stored)

    def _sign(self, file_id: str, until: int) -> str:
        return hmac.new(self._secret, f"{file_id}/{until}".encode(), hashlib.sha256).hexdigest()[:_SIGNATURE]

    def _sent(self, request: HttpRequest, stored: StoredFile) -> Response:
        path = self._services.files.path(stored.id)
        return Download(path, stored.bytes, getattr(request.state, "rule", None))

    async def _file(self, request: HttpRequest) -> StoredFile:
        return await run_sync(self.get, request.path_params["file_id"])


def names_a_line(rule: BatchRule) -> bool:
    """Say whether a rule refuses a file, or requests, for one of their lines."""
    return rule.fault == "fail_validation" and rule.line is not None


def scenario_fault(rule: BatchRule) -> LineFault:
    """Return what such a rule finds."""
    return LineFault(rule.line or 1, f"{rule.param or 'body'}: {rule.code}")


def refused(faults: list[LineFault]) -> Response:
    """Return the refusal of a file, or of requests, with every fault."""
    body = {
        "detail": "Invalid file format.",
        "description": f"Found {len(faults)} error(s) in the file. You can view them in `errors`.",
        "errors": [fault.shown() for fault in faults],
    }
    return JSONResponse(body, status_code=422)


def _check(upload: Upload) -> int | None:
    """Return the seconds that an upload is kept, None for ever. :raises BadCall: its fields are wrong."""
    purpose = upload.fields.setdefault("purpose", "fine-tune")
    if purpose not in _PURPOSES:
        raise BadCall(f"Input should be one of {', '.join(_PURPOSES)}.", status=422, param="purpose")
    if purpose == "batch" and not (upload.filename or "").endswith(".jsonl"):
        raise BadCall("Only .jsonl files are accepted.", status=422, param="file")
    hours = upload.fields.get("expiry")
    return None if hours is None else whole_number(hours) * _HOUR
