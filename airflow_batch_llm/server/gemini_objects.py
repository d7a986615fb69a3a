"""Gemini's objects: files, batches as operations, and how a call is refused."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.gemini_lines import EMBEDDINGS
from airflow_batch_llm.server.looks import Look
from airflow_batch_llm.server.scenario import Scenario
from airflow_batch_llm.server.simulated import CONTEXT_TOKENS

#: Uploads live two days.
FILE_LIFE = 2 * 86_400
#: The results of a batch begin with this; the rest is the batch's id.
GENERATED = "batch-"
_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main."
_STATES = {
    "validating": "BATCH_STATE_PENDING",
    "in_progress": "BATCH_STATE_RUNNING",
    "finalizing": "BATCH_STATE_RUNNING",
    "cancelling": "BATCH_STATE_RUNNING",  # not visible there
    "completed": "BATCH_STATE_SUCCEEDED",
    "failed": "BATCH_STATE_FAILED",
    "cancelled": "BATCH_STATE_CANCELLED",
    "expired": "BATCH_STATE_EXPIRED",
}
#: An ended batch without results has an ``error``, a cancelled one too: code, message.
_ERRORS = {
    "cancelled": (13, "The batch was cancelled."),
    "expired": (4, "The batch expired."),
    "failed": (13, "The batch failed."),
}


class GeminiRefusal(Exception):
    """A call that is refused.

    :param status: HTTP status. :param word: such as ``INVALID_ARGUMENT``.
    """

    def __init__(self, status: int, word: str, message: str, details: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.word = word
        self.details = details

    def body(self) -> dict[str, Any]:
        """Return the reply's JSON value."""
        error: dict[str, Any] = {"code": self.status, "message": str(self), "status": self.word}
        if self.details:
            error["details"] = list(self.details)
        return {"error": error}


def invalid(message: str, place: str | None = None) -> GeminiRefusal:
    """Return the refusal of a request that cannot be read. :param place: the member at fault."""
    violation = {"field": place, "description": message}
    kind = "type.googleapis.com/google.rpc.BadRequest"
    details = [{"@type": kind, "fieldViolations": [violation]}] if place else []
    return GeminiRefusal(400, "INVALID_ARGUMENT", message, details)


def no_file(file_id: str) -> GeminiRefusal:
    """Return what is said of a file that is not there, or not any more: 403."""
    message = f"You do not have permission to access the File {file_id} or it may not exist."
    return GeminiRefusal(403, "PERMISSION_DENIED", message)


def no_batch() -> GeminiRefusal:
    """Return what is said of a batch that is not there."""
    return GeminiRefusal(404, "NOT_FOUND", "Requested entity was not found.")


def retry_info(seconds: float) -> dict[str, Any]:
    """Return the detail that says when to try again."""
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds:g}s"}


def file_object(stored: StoredFile, *, address: str, ready: bool) -> dict[str, Any]:
    """Show an upload. :param address: of the files, without the name."""
    kept = stored.kept
    shown: dict[str, Any] = {"name": f"files/{stored.id}"}
    if stored.filename:
        shown["displayName"] = stored.filename
    made = shown_time(stored.created_at, stored.id)
    return {
        **shown,
        "mimeType": kept.get("mime_type", "application/octet-stream"),
        "sizeBytes": str(stored.bytes),
        "createTime": made,
        "updateTime": made,
        "expirationTime": shown_time(stored.expires_at or stored.created_at + FILE_LIFE, stored.id),
        "sha256Hash": kept.get("sha256", ""),
        "uri": f"{address}/{stored.id}",
        "state": "ACTIVE" if ready else "PROCESSING",
        "source": "UPLOADED",
    }


def generated_object(batch: StoredBatch, stored: StoredFile, *, address: str) -> dict[str, Any]:
    """Show the result file of a batch."""
    name = GENERATED + batch.id
    made = shown_time(stored.created_at, batch.id)
    return {
        "name": f"files/{name}",
        "mimeType": "application/jsonl",
        "sizeBytes": str(stored.bytes),
        "createTime": made,
        "updateTime": made,
        "uri": f"{address}/{name}",
        "downloadUri": f"{address}/{name}:download?alt=media",
        "state": "ACTIVE",
        "source": "GENERATED",
    }


def model_object(name: str) -> dict[str, Any]:
    """Show a model."""
    return {
        "name": f"models/{name}",
        "displayName": name,
        "inputTokenLimit": CONTEXT_TOKENS,
        "supportedGenerationMethods": ["batchGenerateContent", "asyncBatchEmbedContent"],
    }


def operation(
    batch: StoredBatch, scenario: Scenario, look: Look, rows: Sequence[bytes] = (), *, listed: bool = False
) -> dict[str, Any]:
    """Show a batch, or what the scenario wants it to look like.

    :param rows: the result rows of an inline batch.
    :param listed: a list shows no output, and the counts of the beginning (as was seen of the API).
    """
    state = look.status or _STATES[batch.status]
    if scenario.gemini.job_states:
        state = state.replace("BATCH_STATE_", "JOB_STATE_")
    kind = _TYPE + ("EmbedContentBatch" if batch.endpoint == EMBEDDINGS else "GenerateContentBatch")
    name = f"batches/{batch.id}"
    ended = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    ended = None if look.status is not None else ended
    kept = batch.kept
    metadata: dict[str, Any] = {"@type": kind, "model": batch.model}
    if kept["display_name"]:
        metadata["displayName"] = kept["display_name"]
    if kept["file"]:
        metadata["inputConfig"] = {"fileName": f"files/{kept['file']}"}
    output = _output(batch, rows) if look.files and not listed else {}
    if output:
        metadata["output"] = output
    latest = ended or batch.finalizing_at or batch.in_progress_at or batch.created_at
    metadata |= {
        "createTime": shown_time(batch.created_at, batch.id),
        "updateTime": shown_time(latest, batch.id),
        **({"endTime": shown_time(ended, batch.id)} if ended else {}),
        "batchStats": _stats(batch, kept["total"], begun=not listed),
        "state": state,
        "name": name,
    }
    shown: dict[str, Any] = {"name": name, "metadata": metadata}
    if ended is not None:
        shown["done"] = True
        if batch.status in _ERRORS:
            code, message = _ERRORS[batch.status]
            shown["error"] = {"code": code, "message": message}
        elif output:
            shown["response"] = {"@type": kind, **output}
    return shown


def _output(batch: StoredBatch, rows: Sequence[bytes]) -> dict[str, Any]:
    if batch.output_file_id is None:
        return {}
    if batch.kept["inline"]:
        return {"inlinedResponses": {"inlinedResponses": [msgspec.Raw(row) for row in rows]}}
    return {"responsesFile": f"files/{GENERATED}{batch.id}"}


def _stats(batch: StoredBatch, total: int, *, begun: bool) -> dict[str, str]:
    """Return the counts: strings, and no zeros."""
    done, failed = (batch.completed, batch.failed) if begun else (0, 0)
    counts = {
        "requestCount": total,
        "successfulRequestCount": done,
        "failedRequestCount": failed,
        "pendingRequestCount": total - done - failed,
    }
    return {name: str(count) for name, count in counts.items() if count}


def shown_time(seconds: int, salt: str) -> str:
    """Return RFC 3339 with nanoseconds, the same ones for all times of an object."""
    nanos = int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=4).digest(), "big") % 10**9
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanos:09d}Z"
