"""OpenAI's objects: what a create call may say, and how files and batches are shown."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.looks import Look, show_absent
from airflow_batch_llm.server.scenario import Scenario
from airflow_batch_llm.server.upstreams import ENDPOINTS

#: The times of a batch.
TIMES = (
    "created_at",
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
#: The files that the results of a batch are in.
RESULTS = ("output_file_id", "error_file_id")
#: Seconds that a file can be kept.
LIFE = (3_600, 2_592_000)

MetaKey = Annotated[str, StringConstraints(max_length=64)]
MetaValue = Annotated[str, StringConstraints(max_length=512, strict=True)]


class BadCall(Exception):
    """A call with 400 (or another 4xx) and OpenAI's error envelope."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class _OutputExpiry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LIFE[0], le=LIFE[1])]


class CreateBatch(BaseModel):
    """The body of ``POST /v1/batches``."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: Annotated[str, StringConstraints(strict=True)]
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetaKey, MetaValue], Field(max_length=16)] | None = None
    output_expires_after: _OutputExpiry | None = None


def parse_create(body: bytes, endpoints: Collection[str] = frozenset(ENDPOINTS)) -> CreateBatch:
    """:raises BadCall: not JSON, or a field is missing, unknown or wrong."""
    try:
        order = CreateBatch.model_validate_json(body)
    except ValidationError as e:
        error = e.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(map(str, error["loc"])) or None
        code = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}.get(
            error["type"]
        )
        raise BadCall(f"{param or 'body'}: {error['msg']}.", code=code or "invalid_value", param=param) from e
    if order.endpoint not in endpoints:
        raise BadCall("This endpoint cannot be used in a batch here.", code="invalid_value", param="endpoint")
    return order


def parse_life(fields: dict[str, str], default: int | None, bounds: tuple[int, int] = LIFE) -> int | None:
    """Return the seconds that an upload is kept. :raises BadCall: ``expires_after`` is wrong."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return default
    if anchor != "created_at":
        raise BadCall("anchor must be created_at.", code="invalid_value", param="expires_after[anchor]")
    if seconds is None or not seconds.isascii() or not seconds.isdigit():
        raise BadCall("seconds must be a number.", code="invalid_value", param="expires_after[seconds]")
    check_life(int(seconds), bounds, "expires_after[seconds]")
    return int(seconds)


def check_life(seconds: int, bounds: tuple[int, int], param: str) -> None:
    """:raises BadCall: a file cannot be kept for so long, or so short a time."""
    if not bounds[0] <= seconds <= bounds[1]:
        raise BadCall(f"seconds must be from {bounds[0]} to {bounds[1]}.", code="invalid_value", param=param)


def file_object(stored: StoredFile, *, status: str = "processed") -> dict[str, Any]:
    """Show a file."""
    return {
        "id": stored.id,
        "object": "file",
        "bytes": stored.bytes,
        "created_at": stored.created_at,
        "expires_at": stored.expires_at,
        "filename": stored.filename,
        "purpose": stored.purpose,
        "status": status,
        "status_details": None,
    }


def batch_object(batch: StoredBatch, scenario: Scenario, look: Look) -> dict[str, Any]:
    """Show a batch, or what the scenario wants it to look like."""
    shown: dict[str, Any] = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": json.loads(batch.errors) if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        **{name: getattr(batch, name) for name in TIMES},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        "metadata": json.loads(batch.metadata) if batch.metadata else None,
    }
    if look.status is not None:
        shown["status"] = look.status
        shown |= dict.fromkeys(("finalizing_at", "completed_at", "failed_at", "expired_at", "cancelled_at"))
        shown["errors"] = None
    if not look.files:
        shown |= dict.fromkeys(RESULTS)
    show_absent(shown, RESULTS, scenario.absent_file_id)
    return shown


def list_object(data: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Show one page."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }
