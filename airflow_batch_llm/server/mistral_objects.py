"""Mistral's objects: what a create call may say, and how files and jobs are shown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.looks import Look, show_absent
from airflow_batch_llm.server.mistral_bodies import MEMBERS
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.scenario import Scenario

#: Hours that a job may take.
_HOURS = (1, 168)
#: Requests that may go along with a create call.
MOST_INLINE = 10_000
_STATUSES = {
    "validating": "QUEUED",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelling": "CANCELLATION_REQUESTED",
    "cancelled": "CANCELLED",
}
_RESULTS = ("output_file", "error_file")

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class CreateJob(msgspec.Struct):
    """The body of ``POST /v1/batch/jobs``."""

    endpoint: str
    input_files: list[str] | None = None
    requests: list[msgspec.Raw] | None = None
    model: str | None = None
    agent_id: str | None = None
    metadata: dict[str, str] | None = None
    timeout_hours: int = 24


_create = msgspec.json.Decoder(CreateJob)


def parse_create(body: memoryview) -> CreateJob:
    """Read a create call; its requests are parts of the body.

    :raises BadCall: 422, not JSON, or a member is missing or of another type.
    """
    try:
        return _create.decode(body)
    except msgspec.ValidationError as e:
        # Types and the place, never a value.
        text = str(e)
        named = re.search(r"field `([^`]*)`", text) or re.search(r"\$\.(\w+)", text)
        raise _wrong("Input is missing or has the wrong type.", named[1] if named else "body") from e
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise _wrong("Invalid JSON.", "body", "json_invalid") from e


def check_create(order: CreateJob, unknown_models: Collection[str]) -> None:
    """:raises BadCall: 422, a member has a value that it cannot have."""
    if order.endpoint not in MEMBERS:
        raise _wrong("This endpoint is not simulated or cannot be used in a batch.", "endpoint", "enum")
    if not _HOURS[0] <= order.timeout_hours <= _HOURS[1]:
        raise _wrong(f"Input should be from {_HOURS[0]} to {_HOURS[1]}.", "timeout_hours", "greater_than")
    if order.agent_id is not None:
        raise _wrong("Agents are not simulated.", "agent_id")
    if not order.model or order.model in unknown_models:
        raise _wrong("The model does not exist.", "model", "invalid_model")
    if bool(order.input_files) == bool(order.requests):
        raise _wrong("Either input_files or requests is required.", "input_files", "missing")
    if order.requests and len(order.requests) > MOST_INLINE:
        raise _wrong(f"At most {MOST_INLINE} requests can go along.", "requests", "too_long")


def _wrong(message: str, param: str, code: str | None = None) -> BadCall:
    return BadCall(message, status=422, code=code, param=param)


def whole_number(given: str | None, *, default: int = 0) -> int:
    """Read a number of a query. :raises BadCall: 422, it is none."""
    if given is None:
        return default
    if not given.isascii() or not given.isdigit():
        raise BadCall("Input should be a valid integer.", status=422, code="int_parsing", param="query")
    return int(given)


# -- files -----------------------------------------------------------------------------------------
def file_object(stored: StoredFile) -> dict[str, Any]:
    """Show a file."""
    made_here = stored.purpose == "batch_output"
    kind = "batch_request" if not made_here else _kind_of_result(stored)
    return {
        "id": stored.id,
        "object": "file",
        "bytes": stored.bytes,
        "created_at": stored.created_at,
        "filename": stored.filename,
        "purpose": "batch" if made_here else stored.purpose,
        "sample_type": kind,
        "num_lines": None if made_here else stored.lines,
        "mimetype": "application/jsonl",
        "source": "mistral" if made_here else "upload",
        "signature": None,
        "expires_at": None if made_here else stored.expires_at,
        "visibility": "workspace",
    }


def _kind_of_result(stored: StoredFile) -> str:
    return "batch_error" if stored.filename.endswith("_error.jsonl") else "batch_result"


# -- jobs ------------------------------------------------------------------------------------------
def job_object(batch: StoredBatch, scenario: Scenario, look: Look, error_path: Path | None) -> dict[str, Any]:
    """Show a job, or what the scenario wants it to look like.

    :param error_path: where the rows that failed are; None where there is no such file.
    """
    kept = batch.kept
    inline = not kept["input_files"]
    errors = _batch_errors(batch) if batch.errors else error_counts(error_path) if error_path else ()
    shown: dict[str, Any] = {
        "id": batch.id,
        "object": "batch",
        "input_files": kept["input_files"],
        "endpoint": batch.endpoint,
        "model": batch.model,
        "agent_id": None,
        "metadata": _any.decode(batch.metadata) if batch.metadata else None,
        "status": _STATUSES[batch.status] if look.status is None else look.status,
        "created_at": batch.created_at,
        "started_at": batch.in_progress_at,
        "completed_at": _ended_at(batch) if look.status is None else None,
        "total_requests": batch.total or kept["requests"],
        "completed_requests": batch.completed + batch.failed,
        "succeeded_requests": batch.completed,
        "failed_requests": batch.failed,
        "errors": list(errors) if look.status is None else [],
        "outputs": None,
        "output_file": batch.output_file_id if look.files and not inline else None,
        "error_file": batch.error_file_id if look.files and not inline else None,
    }
    show_absent(shown, _RESULTS, scenario.absent_file_id)
    return shown


def status_of(batch: StoredBatch) -> str:
    """Return a job's status in Mistral's words."""
    return _STATUSES[batch.status]


def rows_of(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield the rows of result files. What is no row, as a scenario may want it, is left out."""
    for path in paths:
        if not path.exists():
            continue
        with path.open("rb") as file:
            for line in file:
                try:
                    row = _any.decode(line.removeprefix(b"\xef\xbb\xbf"))
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue
                yield row


@lru_cache(maxsize=256)
def error_counts(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the messages of failed rows, each with how often it was met. Result files never change."""
    found: dict[str, int] = {}
    for row in rows_of([path]):
        message = _message_of(row)
        found[message] = found.get(message, 0) + 1
    return tuple({"message": message, "count": count} for message, count in found.items())


def _message_of(row: dict[str, Any]) -> str:
    response, error = row.get("response"), row.get("error")
    if response is not None:
        return str(_any.decode(response["body"]).get("message"))
    return str((error or {}).get("message"))


def _batch_errors(batch: StoredBatch) -> list[dict[str, Any]]:
    assert batch.errors is not None
    return [{"message": error["message"], "count": 1} for error in _any.decode(batch.errors)["data"]]


def _ended_at(batch: StoredBatch) -> int | None:
    return batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
