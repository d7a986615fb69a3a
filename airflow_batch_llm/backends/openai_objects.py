"""The OpenAI family's batch, list and file objects, read with patience.

Met in the wild, beside what :mod:`~airflow_batch_llm.backends.fields` reads: capitalised states; lists
without ``has_more`` or without an envelope. Unknown fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from airflow_batch_llm.backends.errors import MESSAGE_LIMIT, token
from airflow_batch_llm.backends.fields import Counts, Strings, Text, Time, Whole
from airflow_batch_llm.core.model import BatchError, RemoteBatch, RemoteStatus, ResultFile

_STATUSES: dict[str, RemoteStatus] = {
    "validating": RemoteStatus.PENDING,
    "queued": RemoteStatus.PENDING,
    "pending": RemoteStatus.PENDING,
    "created": RemoteStatus.PENDING,
    "in_progress": RemoteStatus.RUNNING,
    "running": RemoteStatus.RUNNING,
    "finalizing": RemoteStatus.RUNNING,
    "cancelling": RemoteStatus.CANCELLING,
    "canceling": RemoteStatus.CANCELLING,
    "completed": RemoteStatus.DONE,
    "failed": RemoteStatus.FAILED,
    "cancelled": RemoteStatus.CANCELLED,
    "canceled": RemoteStatus.CANCELLED,
    "expired": RemoteStatus.EXPIRED,
}
#: Codes (AIBrix, LLMock) of a batch whose uploaded file was not found when it was to run; OpenAI and OGX
#: say it with the parameter.
_INPUT_GONE = frozenset({"invalid_input_file", "missing_file"})
_LINE_IN_TEXT = re.compile(r"Line (\d{1,9}): ")  # AIBrix


def _error_list(value: Any) -> list[Any]:
    data = value.get("data") if isinstance(value, Mapping) and "data" in value else value
    if isinstance(data, Mapping):
        data = [data]
    return [item for item in data if isinstance(item, Mapping) and item] if isinstance(data, list) else []


class BatchErrorObject(BaseModel):
    """One entry of ``errors.data``."""

    code: Text = None
    line: Whole = None
    param: Text = None
    message: Text = None

    def normalised(self) -> BatchError:
        """Return it as the engine's noun."""
        code, param, message = token(self.code) or "error", token(self.param) or None, self.message or ""
        line = self.line if self.line and self.line > 0 else None
        if line is None and (found := _LINE_IN_TEXT.match(message)):
            line = int(found[1]) or None
        if line is None and param is None and code in _INPUT_GONE:
            param = "input_file_id"
        return BatchError(code, line, param, message[:MESSAGE_LIMIT])


class BatchObject(BaseModel):
    """A batch as the provider shows it."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    status: Text = None
    input_file_id: Text = None
    output_file_id: Text = None
    error_file_id: Text = None
    errors: Annotated[list[BatchErrorObject], BeforeValidator(_error_list)] = []
    created_at: Time = None
    expires_at: Time = None
    request_counts: Counts = {}
    metadata: Strings = {}

    def normalised(self, extra_statuses: Mapping[str, str]) -> RemoteBatch:
        """Return it as the engine's noun. Files count in every state, ``failed`` included.

        :param extra_statuses: a dialect's own statuses -> statuses of the family.
        """
        raw = (self.status or "").strip().lower()
        named = (("output", self.output_file_id), ("error", self.error_file_id))
        return RemoteBatch(
            id=self.id,
            status=_STATUSES.get(extra_statuses.get(raw, raw), RemoteStatus.UNKNOWN),
            raw_status=token(raw) or "unreadable",
            files=tuple(ResultFile(kind, file_id) for kind, file_id in named if file_id),
            errors=tuple(error.normalised() for error in self.errors),
            metadata=self.metadata,
            created_at=self.created_at,
            expires_at=self.expires_at,
            input_file_id=self.input_file_id,
            counts=self.request_counts,
        )


class BatchPage(BaseModel):
    """A page of the list of batches; also the bare array some servers send."""

    data: list[BatchObject]
    has_more: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_array(cls, value: Any) -> Any:
        return {"data": value} if isinstance(value, list) else value
