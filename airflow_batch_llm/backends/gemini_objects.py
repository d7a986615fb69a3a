"""The Gemini API's operation, list and file objects, read with patience.

Met: states with either prefix (``BATCH_STATE_``, ``JOB_STATE_``), ``done`` that is missing where it is false,
counts as strings whose zeros are missing, the handle of the results in either of two places, and an error
(code 13) on a batch that was cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from airflow_batch_llm.backends.errors import MESSAGE_LIMIT
from airflow_batch_llm.backends.fields import Text, Time, Whole
from airflow_batch_llm.backends.gemini_rows import rpc_facts
from airflow_batch_llm.core.ids import META_JOB, META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import BatchError, RemoteBatch, RemoteStatus, ResultFile

_PREFIX = re.compile(r"(?:BATCH|JOB)_STATE_")
_STATUSES = {
    "QUEUED": RemoteStatus.PENDING,
    "PENDING": RemoteStatus.PENDING,
    "RUNNING": RemoteStatus.RUNNING,
    "UPDATING": RemoteStatus.RUNNING,
    "PAUSED": RemoteStatus.RUNNING,
    "CANCELLING": RemoteStatus.CANCELLING,
    "SUCCEEDED": RemoteStatus.DONE,
    "PARTIALLY_SUCCEEDED": RemoteStatus.DONE,
    "FAILED": RemoteStatus.FAILED,
    "CANCELLED": RemoteStatus.CANCELLED,
    "EXPIRED": RemoteStatus.EXPIRED,
}
#: In every other state answers without a handle cannot be read any more.
_SHOWS_ALL = frozenset(RemoteStatus) - {RemoteStatus.FAILED, RemoteStatus.CANCELLED, RemoteStatus.EXPIRED}
#: google.rpc's code of an operation that was cancelled.
_CANCELLED = 1
#: What a queue or a quota that is full is called in this package.
_QUEUE_FULL = "queue_full"

_NAME = re.compile(r"batch-llm ([a-z0-9]+) ([a-z0-9]+) ([a-z0-9]+)")
_META = (META_TOKEN, META_JOB, META_ORIGIN)


def display_name(metadata: Mapping[str, str]) -> str:
    """Return the name of a batch, which is all that it can carry: token, job and origin."""
    return " ".join(["batch-llm", *(metadata.get(key) or "0" for key in _META)])


def metadata_of(name: str) -> dict[str, str]:
    """Return what :func:`display_name` put into a name; nothing where it is another's."""
    found = _NAME.fullmatch(name)
    return dict(zip(_META, found.groups(), strict=True)) if found else {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


Members = Annotated[dict[str, Any], BeforeValidator(_mapping)]


class FileObject(BaseModel):
    """An uploaded file."""

    name: str = Field(min_length=1)
    size: Annotated[Whole, Field(alias="sizeBytes")] = None
    state: Text = None


class Uploaded(BaseModel):
    """The reply that ends an upload."""

    file: FileObject


class Operation(BaseModel):
    """A batch as the provider shows it."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(pattern=r"^batches/[^/]+$")
    metadata: Members = {}
    done: bool | None = None
    response: Members = {}
    error: Members = {}

    def responses_file(self) -> str | None:
        """Return the name of the file with the results, None where they are in the object, or nowhere."""
        for place in self._outputs():
            name = place.get("responsesFile")
            if isinstance(name, str) and name.strip():
                return name
        return None

    def inlined(self) -> list[Any] | None:
        """Return the results that are in the object itself, None where there are none."""
        for place in self._outputs():
            for member in ("inlinedResponses", "inlinedEmbedContentResponses"):
                held = place.get(member)
                held = held.get("inlinedResponses") if isinstance(held, dict) else held
                if isinstance(held, list):
                    return held
        return None

    def normalised(self) -> RemoteBatch:
        """Return it as the engine's noun. Its results hang on it: they go by its own name."""
        raw = str(self.metadata.get("state") or "")
        status, counts = self._status(raw), self._counts()
        has_results = self.responses_file() is not None or self.inlined() is not None
        source = _mapping(self.metadata.get("inputConfig"))
        input_file = source.get("fileName")
        return RemoteBatch(
            id=self.name,
            status=status,
            raw_status=raw if re.fullmatch(r"[A-Z_]{1,64}", raw) else "unreadable",
            files=(ResultFile("output", self.name),) if has_results else (),
            errors=self._errors(input_file),
            metadata=metadata_of(str(self.metadata.get("displayName") or "")),
            created_at=_Times.model_validate(self.metadata).created_at,
            input_file_id=input_file if isinstance(input_file, str) and input_file else None,
            # Of what was answered before the end nothing will ever be shown: it is not waited for.
            counts=counts if has_results or status in _SHOWS_ALL else {**counts, "completed": 0},
        )

    def _counts(self) -> dict[str, int]:
        stats = _Stats.model_validate(_mapping(self.metadata.get("batchStats")))
        return {"total": stats.total or 0, "completed": stats.good or 0, "failed": stats.bad or 0}

    def _outputs(self) -> list[dict[str, Any]]:
        return [self.response, _mapping(self.metadata.get("output"))]

    def _status(self, raw: str) -> RemoteStatus:
        known = _STATUSES.get(_PREFIX.sub("", raw))
        if known is not None:
            return known
        if not self.done:
            return RemoteStatus.PENDING if raw in ("", "BATCH_STATE_UNSPECIFIED") else RemoteStatus.UNKNOWN
        if self.error:
            cancelled = self.error.get("code") == _CANCELLED
            return RemoteStatus.CANCELLED if cancelled else RemoteStatus.FAILED
        return RemoteStatus.DONE

    def _errors(self, input_file: Any) -> tuple[BatchError, ...]:
        if not self.error:
            return ()
        facts = rpc_facts(self.error)
        code, param = facts.code or "error", None
        if code == "RESOURCE_EXHAUSTED":
            code = _QUEUE_FULL
        if code in ("NOT_FOUND", "PERMISSION_DENIED") and input_file and str(input_file) in facts.message:
            param = "input_file_id"
        return (BatchError(code, line_in(facts.message), param, facts.message[:MESSAGE_LIMIT]),)


class _Times(BaseModel):
    created_at: Annotated[Time, Field(alias="createTime")] = None


class _Stats(BaseModel):
    total: Annotated[Whole, Field(alias="requestCount")] = None
    good: Annotated[Whole, Field(alias="successfulRequestCount")] = None
    bad: Annotated[Whole, Field(alias="failedRequestCount")] = None


def _operations(value: Any) -> list[Any]:
    """Other kinds of operations, should they ever stand in the list, are no batches. One that may be a batch
    and has another kind of name is not passed over: it makes the page unreadable."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("no list")
    return [one for one in value if "batches/" in str(_mapping(one).get("name", ""))]


class OperationPage(BaseModel):
    """A page of the list of batches. An empty list may be missing."""

    operations: Annotated[list[Operation], BeforeValidator(_operations)] = []
    next_page: Annotated[Text, Field(alias="nextPageToken")] = None

    @model_validator(mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        """``{}`` is an empty list; an error, or what holds other things only, is none."""
        if isinstance(value, dict) and value and not value.keys() & {"operations", "nextPageToken"}:
            raise ValueError("no list")
        return value


#: A place in the requests of a create call, from 0; the last number of such a path is not always one.
_INDEX = re.compile(r"requests\[(\d{1,7})\]")
#: A line of a file, from 1; not the line of a parser inside one ("line 1 column 7").
_LINE = re.compile(r"\bline(?: number)?[ :#]{1,3}(\d{1,9})\b(?!\s*[,:]?\s*(?:col|char|pos))", re.IGNORECASE)


def line_in(message: str) -> int | None:
    """Return the line that a message names, from 1; None where it names none."""
    found = _INDEX.search(message)
    if found:
        return int(found[1]) + 1
    found = _LINE.search(message)
    return int(found[1]) or None if found else None
