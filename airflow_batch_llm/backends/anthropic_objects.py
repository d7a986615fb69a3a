"""Anthropic's batch and list objects, read with patience."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from airflow_batch_llm.backends.errors import token
from airflow_batch_llm.backends.fields import Counts, Text, Time
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, ResultFile

_RUNNING = {
    "in_progress": RemoteStatus.RUNNING,
    "canceling": RemoteStatus.CANCELLING,
    "cancelling": RemoteStatus.CANCELLING,
}
_FAILED = ("errored", "canceled", "expired")


class MessageBatch(BaseModel):
    """A batch as the provider shows it."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    processing_status: Text = None
    request_counts: Counts = {}
    created_at: Time = None
    expires_at: Time = None
    cancel_initiated_at: Time = None
    archived_at: Time = None

    def normalised(self) -> RemoteBatch:
        """Return it as the engine's noun.

        ``ended`` is the only way to end: counts say how. The results hang on the batch itself; whether they
        are still there, fetching them tells.
        """
        raw = (self.processing_status or "").strip().lower()
        status = self._ended() if raw == "ended" else _RUNNING.get(raw, RemoteStatus.UNKNOWN)
        counts = self.request_counts
        return RemoteBatch(
            id=self.id,
            status=status,
            raw_status=token(raw) or "unreadable",
            files=(ResultFile("output", self.id),) if status.terminal else (),
            created_at=self.created_at,
            expires_at=self.expires_at,
            counts={
                "total": sum(counts.values()),
                "completed": counts.get("succeeded", 0),
                "failed": sum(counts.get(name, 0) for name in _FAILED),
            },
        )

    def _ended(self) -> RemoteStatus:
        if self.cancel_initiated_at is not None and self.request_counts.get("canceled"):
            return RemoteStatus.CANCELLED
        return RemoteStatus.EXPIRED if self.request_counts.get("expired") else RemoteStatus.DONE


class BatchPage(BaseModel):
    """A page of the list of batches."""

    data: list[MessageBatch]
    has_more: bool | None = None
    last_id: Text = None
