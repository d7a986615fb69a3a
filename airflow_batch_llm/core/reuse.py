"""Reuse: an answer that was bought for the same request is not bought again."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.judge import CUSTOM_ID, Judge
from airflow_batch_llm.core.model import Asked, JobKey, RequestTemplate
from airflow_batch_llm.exceptions import ConfigurationError

#: A new way of deriving the digests takes the next letter; answers recorded before are bought again.
_VERSION = "a"


class Scope(StrEnum):
    """Where an answer may come from: ``job`` (this job only), ``task`` (earlier runs of the same task),
    ``connection`` (any task that sends with the same connection)."""

    JOB = "job"
    TASK = "task"
    CONNECTION = "connection"


@dataclass(frozen=True)
class Reuse:
    """Which answers are taken in place of sending a request.

    Identical requests inside a job are sent once, whatever the scope.

    :param scope: ``job``, ``task`` or ``connection``.
    :param max_age: older answers are bought again; None for no bound.
    :param version: part of what makes requests the same: another one buys everything again.
    :raises ConfigurationError: an unknown scope, or an age that is not positive.
    """

    scope: str = Scope.TASK
    max_age: timedelta | None = None
    version: str = ""

    def __post_init__(self) -> None:
        if self.scope not in set(Scope):
            raise ConfigurationError(f"Reuse: scope is {self.scope!r}; it can be {', '.join(Scope)}")
        if self.max_age is not None and (
            not isinstance(self.max_age, timedelta) or self.max_age <= timedelta(0)
        ):
            raise ConfigurationError("Reuse: max_age must be a timedelta above zero")
        if not isinstance(self.version, str):
            raise ConfigurationError(f"Reuse: version must be text, not {type(self.version).__name__}")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as plain JSON types (``max_age`` in seconds)."""
        return {
            "scope": str(self.scope),
            "max_age": self.max_age.total_seconds() if self.max_age is not None else None,
            "version": self.version,
        }


class RequestHashes:
    """Derives the hash of each canonical request of a job: what makes two requests the same, in any job.

    :param address: of the provider's server. A connection may be tried with one server and then be given
        another, which answers to the same model's name.
    :param version: of :class:`Reuse`.
    """

    def __init__(self, provider: str, address: str, template: RequestTemplate, version: str) -> None:
        shared: dict[str, Any] = {
            "provider": provider,
            "address": address,
            "endpoint": template.endpoint,
            "native": template.native,
            "version": version,
        }
        if not template.native:
            schema = template.output_schema
            shared |= {
                "params": dict(template.params),
                "schema": dict(schema) if schema is not None else None,
            }
        self._base = hashlib.sha256(f"request/{_VERSION}".encode() + dumps_canonical(shared))

    def derive(self, canonical_body: bytes, model: str, sample: int) -> str:
        """Return the hash: 43 characters of ``[A-Za-z0-9_-]``.

        :param canonical_body: the caller-level body as :func:`dumps_canonical` writes it.
        :param sample: which of several answers to a row is asked for: these are never the same request.
        """
        digest = self._base.copy()
        digest.update(dumps_canonical([model, sample, len(canonical_body)]))
        digest.update(canonical_body)
        return _text(digest.digest())


def twin_of(hash_: str, judge: Judge, asked: Asked) -> str:
    """Return what two rows of a job must have in common to share one answer; "" where the hash says it all.

    An answer is checked for the row that was sent. Where a check looks at the row, rows that differ in
    what it looks at (the echoed values; for a validator the carried columns) are sent for themselves.
    """
    if not judge.needs_asked:
        return ""
    row = {CUSTOM_ID: asked.custom_id, **asked.row()}
    looked_at = {column: row.get(column) for column in judge.echo.values()}
    carried = asked.carry if judge.validate is not None else {}
    return _text(hashlib.sha256(dumps_canonical([hash_, looked_at, carried])).digest())


def task_digest(key: JobKey) -> str:
    """Digest what all runs of a task have in common: DAG, and task or ``job_key``."""
    return hashlib.sha256(b"task\x01" + dumps_canonical([key.dag_id, key.task_id])).hexdigest()[:32]


def connection_digest(conn_id: str) -> str:
    """Digest the name of a connection."""
    return hashlib.sha256(b"connection\x01" + conn_id.encode("utf-8")).hexdigest()[:32]


def _text(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
