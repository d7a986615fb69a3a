"""Ids that must never change: wire ids and attempt tokens. A golden test pins the digests."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import JobKey, RequestTemplate

#: First character of every wire id. A new way of deriving them takes the next letter.
WIRE_VERSION = "a"
TOKEN_VERSION = "a"

#: Metadata keys on the wire.
META_TOKEN = "batch_llm_token"
META_JOB = "batch_llm_job"
META_ORIGIN = "batch_llm_origin"


class WireIds:
    """Derives wire ids for one job and one request template.

    A wire id is the version letter and the SHA-256 (base64url, 43 characters) over job key, template,
    ``custom_id`` and body, each with its length before it: a stale or foreign answer cannot join to
    changed input.
    """

    def __init__(self, key: JobKey, template: RequestTemplate) -> None:
        self._base = hashlib.sha256()
        _feed(self._base, b"wire-id/" + WIRE_VERSION.encode())
        _feed(self._base, dumps_canonical(list(key.parts)))
        _feed(self._base, template_digest(template))

    def derive(self, custom_id: str, canonical_body: bytes) -> str:
        """Return the wire id: 44 characters of ``[A-Za-z0-9_-]``.

        :param canonical_body: the caller-level body as :func:`dumps_canonical` writes it.
        """
        digest = self._base.copy()
        _feed(digest, custom_id.encode("utf-8"))
        _feed(digest, canonical_body)
        return WIRE_VERSION + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii")


def template_digest(template: RequestTemplate) -> bytes:
    """Digest what all requests of a job share, as the caller gave it."""
    shared: dict[str, Any] = {"endpoint": template.endpoint, "native": template.native}
    if not template.native:
        shared |= {
            "model": template.model,
            "params": dict(template.params),
            "schema": dict(template.output_schema) if template.output_schema is not None else None,
        }
    return hashlib.sha256(dumps_canonical(shared)).digest()


def attempt_token(key: JobKey, revision: int, round_: int, seq: int, attempt: int) -> str:
    """Return the token sent as metadata with one create call: 41 characters of ``[a-z0-9]``."""
    parts = ["token/" + TOKEN_VERSION, *key.parts, revision, round_, seq, attempt]
    return TOKEN_VERSION + hashlib.sha256(dumps_canonical(parts)).hexdigest()[:40]


def batch_id(job_id: str, revision: int, round_: int, seq: int) -> str:
    """Return the ledger's id of a batch: readable, unique, fits 64 characters."""
    return f"{job_id}-{revision}-{round_}-{seq}"


def _feed(digest: Any, value: bytes) -> None:
    digest.update(len(value).to_bytes(8, "big"))
    digest.update(value)
