"""What the engine's steps share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import msgspec

from airflow_batch_llm.core.files import plan_job_path
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, BatchState, Job, JobState, RequestTemplate, Row
from airflow_batch_llm.core.ports import Backend, RowIndex, Workspace
from airflow_batch_llm.core.spec import JobSpec, Settings
from airflow_batch_llm.exceptions import ConfigurationError

log = logging.getLogger("airflow_batch_llm.engine")

T = TypeVar("T")
CHUNK = 5000
#: A provider holds them, or may.
_AT_PROVIDER = frozenset({BatchState.SUBMITTING, BatchState.SUBMITTED, BatchState.ENDED, BatchState.LOST})


def _no_fault(point: str) -> None:
    """Nothing happens at fault points outside of tests."""


@dataclass(frozen=True)
class Tools:
    """The outside world, for one job.

    :param backend: speaks for the task's connection.
    :param other_backend: opens the backend of another connection: a batch is looked after with the one it
        was sent with, whatever the task names today.
    :param other_decoder: returns what reads the result lines of a provider, by its name: a connection may
        have been given another provider since. None: its backend's own.
    :param new_index: makes an empty row index.
    :param fault: called with the name of each fault point; tests kill or raise there.
    """

    ledger: Ledger
    workspace: Workspace
    backend: Backend
    spec: JobSpec
    new_index: Callable[[], RowIndex]
    settings: Settings = Settings()
    fault: Callable[[str], None] = field(default=_no_fault)
    other_backend: Callable[[str], Backend] | None = None
    other_decoder: Callable[[str], Callable[[bytes], Row]] | None = None

    @property
    def root(self) -> str:
        """The job's folder in the workspace."""
        return self.workspace.job_root(self.spec.key)

    def backend_of(self, batch: Batch) -> Backend:
        """Return the backend of the connection that a batch is sent, or was sent, with.

        :raises ConfigurationError: the connection names another provider than the one that has the batch.
            Nothing that this one says of it, "not there" least of all, would mean anything.
        """
        backend = self._backend_of(batch)
        if batch.state in _AT_PROVIDER and backend.provider != batch.provider:
            raise ConfigurationError(
                f"connection {batch.conn_id!r} names provider {backend.provider!r}, but batch "
                f"{batch.batch_id} was sent to {batch.provider!r}: give it back what it named until the job "
                "is over, and use another connection for the other provider"
            )
        return backend

    def decoder_of(self, batch: Batch) -> Callable[[bytes], Row]:
        """Return what reads the stored result lines of a batch, whatever its connection names today."""
        backend = self._backend_of(batch)
        if backend.provider == batch.provider or self.other_decoder is None:
            return backend.decode
        return self.other_decoder(batch.provider)

    def _backend_of(self, batch: Batch) -> Backend:
        if batch.conn_id == self.spec.conn_id or self.other_backend is None:
            return self.backend
        return self.other_backend(batch.conn_id)

    def reload(self, job: Job) -> Job:
        """Read the job again."""
        found = self.ledger.get_job(job.job_id)
        if found is None:
            raise LookupError(f"job {job.job_id} is gone from the ledger")
        return found

    def halt(self, job: Job, code: str, reason: str) -> None:
        """Stop the job for a person, whatever else changes the job at this moment."""
        while (current := self.reload(job)).state in (JobState.STAGING, JobState.RUNNING):
            if current.revision != job.revision or self.ledger.halt_job(current, code, reason) is not None:
                return

    def template(self, job: Job) -> RequestTemplate:
        """Read what was asked, as pinned with the job's plan."""
        if job.plan_id is None:
            raise LookupError(f"job {job.job_id} has no pinned plan")
        return RequestTemplate(**read_description(self.workspace, self.root, job.plan_id)["template"])


def read_description(workspace: Workspace, root: str, plan_id: str) -> dict[str, Any]:
    """Read a plan's ``job.json``: what was asked, and by which task."""
    with workspace.open(plan_job_path(root, plan_id)) as file:
        described: dict[str, Any] = msgspec.json.decode(file.read())
    return described


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield lists of at most ``size`` items."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
