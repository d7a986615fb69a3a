"""Mistral's batch jobs, lists of them and refusals of lines, read with patience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from airflow_batch_llm.backends.errors import MESSAGE_LIMIT, token
from airflow_batch_llm.backends.fields import Strings, Text, Time, Whole
from airflow_batch_llm.core.model import BatchError, RemoteBatch, RemoteStatus, ResultFile
from airflow_batch_llm.exceptions import RefusedLine

#: Begins the id of what hangs on a job and is in no file. Files and jobs are both named by a UUID alone.
INLINE = "job:"

_STATUSES: dict[str, RemoteStatus] = {
    "queued": RemoteStatus.PENDING,
    "running": RemoteStatus.RUNNING,
    "success": RemoteStatus.DONE,
    "failed": RemoteStatus.FAILED,
    "timeout_exceeded": RemoteStatus.EXPIRED,
    "cancellation_requested": RemoteStatus.CANCELLING,
    "cancelled": RemoteStatus.CANCELLED,
}


def _file_id(value: Any) -> str | None:
    """The id of a file, given as such or as its object (LLMock)."""
    value = value.get("id") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) and value.strip() else None


def _file_ids(value: Any) -> list[str]:
    return [found for one in value if (found := _file_id(one))] if isinstance(value, list) else []


def _objects(value: Any) -> list[Any]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _objects_or_none(value: Any) -> list[Any] | None:
    return _objects(value) if isinstance(value, list) else None


FileId = Annotated[str | None, BeforeValidator(_file_id)]


class JobError(BaseModel):
    """One entry of ``errors``: a message, and how many requests met it."""

    message: Text = None
    count: Whole = None


class BatchJob(BaseModel):
    """A batch job as Mistral shows it."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    status: Text = None
    input_files: Annotated[list[str], BeforeValidator(_file_ids)] = []
    output_file: FileId = None
    error_file: FileId = None
    #: None: not shown, as they are asked for apart, or are not there.
    outputs: Annotated[list[dict[str, Any]] | None, BeforeValidator(_objects_or_none)] = None
    errors: Annotated[list[JobError], BeforeValidator(_objects)] = []
    metadata: Strings = {}
    created_at: Time = None
    total_requests: Whole = None
    completed_requests: Whole = None
    succeeded_requests: Whole = None
    failed_requests: Whole = None

    def normalised(self) -> RemoteBatch:
        """Return it as the engine's noun. Files count in every state."""
        raw = (self.status or "").strip()
        status = _STATUSES.get(raw.lower(), RemoteStatus.UNKNOWN)
        return RemoteBatch(
            id=self.id,
            status=status,
            raw_status=token(raw) or "unreadable",
            files=tuple(self._files(status)),
            errors=tuple(
                BatchError("batch_error", message=(error.message or "")[:MESSAGE_LIMIT])
                for error in self.errors
            ),
            metadata=self.metadata,
            created_at=self.created_at,
            input_file_id=self.input_files[0] if len(self.input_files) == 1 else None,
            counts=self._counts(),
        )

    def _counts(self) -> dict[str, int]:
        failed, processed = max(self.failed_requests or 0, 0), max(self.completed_requests or 0, 0)
        # ``completed_requests`` counts what was processed, good or bad.
        good = processed - failed if self.succeeded_requests is None else self.succeeded_requests
        return {"total": max(self.total_requests or 0, 0), "completed": max(good, 0), "failed": failed}

    def _files(self, status: RemoteStatus) -> list[ResultFile]:
        named = (("output", self.output_file), ("error", self.error_file))
        files = [ResultFile(kind, file_id) for kind, file_id in named if file_id]
        if status.terminal and not self.input_files and self.output_file is None:
            counts = self._counts()
            if self.outputs or counts["completed"] or (counts["failed"] and not files):
                files.insert(0, ResultFile("output", INLINE + self.id))
        return files


class JobPage(BaseModel):
    """A page of the list of jobs."""

    data: list[BatchJob] = []
    total: Whole = None

    @model_validator(mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        """An empty list may lack its ``data``; an error, or anything else, is no empty list."""
        if isinstance(value, Mapping) and "data" not in value and value.get("object") != "list":
            raise ValueError("no list")
        return value


def refused_lines(body: Any) -> list[RefusedLine]:
    """Return the faults that a refusal names, in its own counting of lines."""
    errors = body.get("errors") if isinstance(body, Mapping) else None
    return [
        RefusedLine(_line_number(error.get("line_number")), "invalid_request", _said(error))
        for error in _objects(errors)
    ]


def refused_places(body: Any) -> list[RefusedLine]:
    """Return the requests of a create call that a refusal points at by their place in the body
    (``["body", "requests", 3, …]``, from 0)."""
    details = body.get("detail") if isinstance(body, Mapping) else None
    found = []
    for detail in _objects(details):
        place = detail.get("loc")
        if not isinstance(place, list) or "requests" not in place:
            continue
        number = next((part for part in place[place.index("requests") :] if isinstance(part, int)), None)
        line = number + 1 if number is not None else None
        found.append(RefusedLine(line, token(detail.get("type")) or "invalid_request", _said(detail)))
    return found


def refused_field(body: Any) -> tuple[str, str] | None:
    """Return what a refusal calls its first fault, and its place in the body (``body.model``), each "" where
    it is no short token; None where it names neither."""
    details = body.get("detail") if isinstance(body, Mapping) else None
    for detail in _objects(details):
        place = detail.get("loc")
        parts = (
            [str(part) for part in place if isinstance(part, str | int)] if isinstance(place, list) else []
        )
        found = token(detail.get("type")), token(".".join(parts))
        if any(found):
            return found
    return None


def _line_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _said(error: Mapping[str, Any]) -> str:
    text = error.get("message") or error.get("msg")
    return text[:MESSAGE_LIMIT] if isinstance(text, str) else ""
