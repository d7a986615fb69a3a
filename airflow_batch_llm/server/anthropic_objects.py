"""Anthropic's objects: how a message batch, a page of them and a model are shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.looks import Look

#: Seconds after its creation at which a batch's results are gone.
RESULTS_LIFE = 29 * 86_400
_WINDOW = timedelta(hours=24)
_RUNNING = ("validating", "in_progress", "finalizing")


def batch_object(
    batch: StoredBatch, look: Look, results_url: str, *, archived: bool = False, live_counts: bool = False
) -> dict[str, Any]:
    """Show a batch, or what the scenario wants it to look like.

    :param results_url: where its results are, once it has ended.
    :param archived: whether they are gone.
    :param live_counts: whether its counts move before its end.
    """
    status = look.status or processing_status(batch)
    ended, cancelled = status == "ended", batch.cancelling_at is not None
    created = datetime.fromtimestamp(batch.kept.get("created", batch.created_at), UTC)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": _counts(batch, ended, live_counts),
        "created_at": _rfc3339(created),
        "expires_at": _rfc3339(created + _WINDOW),
        "ended_at": _rfc3339(max(created, _ended(batch))) if ended else None,
        "cancel_initiated_at": _rfc3339(max(created, _time(batch.cancelling_at))) if cancelled else None,
        "archived_at": _rfc3339(created + timedelta(seconds=RESULTS_LIFE)) if archived else None,
        "results_url": results_url if ended and look.files else None,
    }


def processing_status(batch: StoredBatch) -> str:
    """Return the status of a batch in Anthropic's words. There is no failed, cancelled or expired one."""
    if batch.status in _RUNNING:
        return "in_progress"
    return "canceling" if batch.status == "cancelling" else "ended"


def page_object(data: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Show one page."""
    return {
        "data": data,
        "has_more": more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def model_object(model: dict[str, Any]) -> dict[str, Any]:
    """Show a model that ``/v1/models`` lists."""
    created = datetime.fromtimestamp(model.get("created") or 0, UTC)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": _rfc3339(created),
    }


def _counts(batch: StoredBatch, ended: bool, live: bool) -> dict[str, int]:
    """Count the requests: until the batch has ended, all of them are processing."""
    left = batch.total - batch.completed - batch.failed
    shown = ended or live
    return {
        "processing": 0 if ended else left if live else batch.total,
        "succeeded": batch.completed if shown else 0,
        "errored": batch.failed if shown else 0,
        "canceled": left if ended and batch.ending == "cancelled" else 0,
        "expired": left if ended and batch.ending == "expired" else 0,
    }


def _ended(batch: StoredBatch) -> datetime:
    return _time(batch.completed_at or batch.expired_at or batch.cancelled_at or batch.failed_at)


def _time(seconds: int | None) -> datetime:
    """Read a time of the server's own, which is in whole seconds: it may lie before the creation."""
    return datetime.fromtimestamp(seconds or 0, UTC)


def _rfc3339(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
