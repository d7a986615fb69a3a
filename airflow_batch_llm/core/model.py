"""The nouns of the package as plain values: jobs, plans, batches, rows, dead letters.

All times are seconds since the epoch (float, UTC) by the ledger's clock. All sizes are bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from airflow_batch_llm.core.verdicts import Disposition, Verdict


@dataclass(frozen=True, slots=True)
class JobKey:
    """What makes two runs of a task the same job. Never a try number, never wall time.

    :param namespace: generated once per ledger.
    :param dag_id: DAG of the submitting task.
    :param run_id: DAG run of the submitting task.
    :param task_id: the submitting task's id, or the explicit ``job_key``.
    :param map_index: -1 for an unmapped task.
    """

    namespace: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def job_id(self) -> str:
        """The key's digest, 32 hexadecimal digits: primary key in the ledger, token on the wire."""
        return hashlib.sha256(b"job\x01" + msgspec.json.encode(self.parts)).hexdigest()[:32]

    @property
    def origin(self) -> str:
        """The digest without the namespace: finds batches of a job whose ledger was lost."""
        return hashlib.sha256(b"origin\x01" + msgspec.json.encode(self.parts[1:])).hexdigest()[:32]

    @property
    def parts(self) -> tuple[str, str, str, str, int]:
        """The fields in their fixed order."""
        return (self.namespace, self.dag_id, self.run_id, self.task_id, self.map_index)


#: The actor of what nobody asked for.
MACHINE = "machine"


class JobState(StrEnum):
    """``staging`` until a plan is pinned, then ``running``, ``halted`` (a person) or ``settled``."""

    STAGING = "staging"
    RUNNING = "running"
    HALTED = "halted"
    SETTLED = "settled"


class BatchState(StrEnum):
    """The states of one batch of ours (DESIGN section 4, the engine).

    ``superseded``: planned by an earlier revision and never sent. ``lost``: the provider denies it.
    """

    PLANNED = "planned"
    UPLOADED = "uploaded"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    ENDED = "ended"
    RECONCILED = "reconciled"
    SUPERSEDED = "superseded"
    LOST = "lost"


#: States in which the provider may hold work of ours that has not been read.
IN_FLIGHT = frozenset({BatchState.SUBMITTING, BatchState.SUBMITTED, BatchState.ENDED})
#: States in which nothing was sent yet.
NOT_SENT = frozenset({BatchState.PLANNED, BatchState.UPLOADED})


class BatchKind(StrEnum):
    """``duplicate``: accepted by the provider beside the batch that counts; cancelled, but read."""

    PRIMARY = "primary"
    DUPLICATE = "duplicate"


class RemoteStatus(StrEnum):
    """The provider's states, normalised. ``unknown`` counts as still running."""

    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN = "unknown"

    @property
    def terminal(self) -> bool:
        """Whether the provider will do no more work on the batch."""
        return self in (RemoteStatus.DONE, RemoteStatus.FAILED, RemoteStatus.CANCELLED, RemoteStatus.EXPIRED)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one answer or a sum of them.

    ``cached`` and ``cache_write`` are parts of ``input``; ``reasoning`` is a part of ``output``.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )

    def named(self) -> dict[str, int]:
        """Return the tokens as they stand beside an answer."""
        return msgspec.structs.asdict(self)


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One time a request was sent and what came of it; kept with the row until it lands or dies."""

    round: int
    batch: str  # provider's batch id
    verdict: Verdict
    code: str
    time: float
    charged: bool = True
    revision: int = 1
    input: int = 0
    output: int = 0


class Request(msgspec.Struct, omit_defaults=True):
    """One line of ``requests.jsonl``.

    ``body`` is caller-level JSON before translation (for a chat job ``{"messages": [...]}``; for a
    native body the provider's own body). ``key`` holds the source's key columns for the sink, ``carry``
    the columns that are carried into the results.
    """

    custom_id: str
    wire_id: str
    body: msgspec.Raw
    key: dict[str, Any] = {}
    history: tuple[Attempt, ...] = ()
    carry: dict[str, Any] = {}
    hash: str = ""  # of the canonical request, as first asked; "" in jobs without reuse
    twin: str = ""  # what makes rows of the job share this request; "" where that is the hash
    changed: bool = False  # sent again with another model or limit than first


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What an answer is checked against beside its form: whose answer it has to be."""

    custom_id: str
    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}

    def row(self) -> dict[str, Any]:
        """Return key and carried columns as one mapping."""
        return {**self.carry, **self.key}


class Outcome(msgspec.Struct, omit_defaults=True):
    """One line of ``outcomes-….jsonl``: what became of one request of a batch. In request order."""

    custom_id: str
    wire_id: str
    verdict: Verdict
    disposition: Disposition
    code: str = ""
    usage: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)  # input, output, cached, cache_write, reasoning
    message: str = ""  # provider's error text; goes to the dead-letter table only
    exhausted: bool = False  # dead only because the attempts allowed are used up
    text: str = ""  # what a filtered or refused row says (its first 2,000 characters)


class Row(msgspec.Struct, frozen=True, gc=False):
    """One decoded result line. ``verdict`` is the protocol's; the judge may still reject an ``ok`` answer.

    :param wire_id: as sent; "" where the line names none (it then joins to nothing and is kept raw).
    :param text: the answer's text (chat content, completion text), None where there is none.
    :param output: a non-text answer (tool calls, embedding, moderation result), None where there is none.
    :param code: the provider's error code or our own word; a short token, never free text.
    :param message: the provider's error text. Goes to the dead-letter table only, never to a log.
    """

    wire_id: str
    verdict: Verdict
    code: str = ""
    message: str = ""
    text: str | None = None
    output: Any = None
    finish_reason: str = ""
    model: str = ""
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file the provider wrote for a batch. ``kind`` is ``output`` or ``error``."""

    kind: str
    file_id: str


@dataclass(frozen=True, slots=True)
class BatchError:
    """An error of the batch as a whole. ``line`` counts from 1; None where the provider names none."""

    code: str
    line: int | None = None
    param: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A provider's batch object, normalised."""

    id: str
    status: RemoteStatus
    raw_status: str
    files: tuple[ResultFile, ...] = ()
    errors: tuple[BatchError, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_at: float | None = None
    expires_at: float | None = None
    input_file_id: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """What all requests of a batch share. Caller-level, before translation.

    :param endpoint: ``/v1/chat/completions`` and so on.
    :param model: the model to ask.
    :param params: caller-level parameters beside the body: ``max_tokens`` (int), ``temperature``…
    :param output_schema: JSON schema of the answer, None for free text.
    :param schema_name: name the protocol shows the model for the schema.
    :param native: bodies are the provider's own, complete with model; nothing is added or translated.
    :param cache_prefix: mark what all requests begin with for the provider's prompt cache, where it wants
        that marked. No part of the request's identity: the answers are the same.
    :param shared_messages: how many messages at the beginning of every body are the same for all rows.
    """

    endpoint: str
    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    schema_name: str = "answer"
    native: bool = False
    cache_prefix: bool = False
    shared_messages: int = 0


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A planned batch, before the ledger knows it.

    :param seq: from 0 within its round.
    :param path: workspace path of its ``requests.jsonl``, relative to the job's folder.
    :param upload_bytes: size of the encoded upload.
    :param est_input_tokens: estimate (bytes / 4), for quotas.
    :param max_output_tokens: sum of the requests' output limits; 0 where no limit was given.
    :param overrides: changes to the template's params for this batch (``retry_changed``).
    """

    seq: int
    path: str
    requests: int
    bytes: int
    sha256: str
    upload_bytes: int
    model: str
    est_input_tokens: int
    max_output_tokens: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``pin_plan`` and ``pin_round`` make true in one transaction."""

    plan_id: str
    digest: str
    batches: tuple[BatchPlan, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    conn_id: str = ""  # the connection the batches are sent with; "" for the job's
    provider: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A row of ``batch_llm_job``. ``version`` rises with every write and guards the next one."""

    job_id: str
    key: JobKey
    conn_id: str
    provider: str
    endpoint: str
    model: str
    state: JobState
    revision: int
    floor_revision: int
    round: int
    version: int
    plan_id: str | None
    plan_digest: str | None
    counts: Mapping[str, int]
    seen: Mapping[str, Any]
    deadline_at: float | None
    halt_code: str | None
    settled_at: float | None
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch is sent.

    :param address: the server: host, port and path, no credentials.
    :param account: short name for the account there, no secret; "" where nothing tells accounts apart.
    """

    address: str
    account: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of ``batch_llm_batch``.

    :param provisional: ``provider_batch_id`` was adopted by time and count, as the provider shows no marks:
        it may be somebody else's. The machine neither cancels nor lands it before its rows say whose it is.
    :param not_ours: batches at the provider that were proved not to be this one.
    :param place: where it was uploaded, sent or last found; None while it is planned, and where an
        older version sent it.
    """

    batch_id: str
    job_id: str
    kind: BatchKind
    revision: int
    round: int
    seq: int
    state: BatchState
    conn_id: str
    provider: str
    model: str
    overrides: Mapping[str, Any]
    plan_id: str
    path: str
    requests: int
    bytes: int
    sha256: str
    upload_bytes: int
    est_input_tokens: int
    max_output_tokens: int
    attempt: int
    lease_until: float | None
    not_before: float | None
    first_look_at: float | None
    input_file_id: str | None
    provider_batch_id: str | None
    provider_status: str | None
    submitted_at: float | None
    ended_at: float | None
    cancel_asked_by: str | None
    cancel_asked_at: float | None
    error_code: str | None
    files: tuple[Mapping[str, Any], ...]  # raw files: kind, file_id, path, bytes, sha256
    outcomes_sha256: str | None
    judge: str | None
    counts: Mapping[str, int]  # verdict -> rows
    usage: Usage
    created_at: float
    updated_at: float
    provisional: bool = False
    not_ours: tuple[str, ...] = ()
    place: Place | None = None


class LetterState(StrEnum):
    """The states of a dead letter."""

    OPEN = "open"
    REDRIVING = "redriving"
    RESOLVED = "resolved"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row of ``batch_llm_dead_letter``. Primary key: (job_id, wire_id)."""

    job_id: str
    wire_id: str
    custom_id: str
    key: JobKey
    revision: int
    provider: str
    model: str
    verdict: Verdict
    code: str
    message: str
    exhausted: bool
    request_path: str
    attempts: tuple[Attempt, ...]
    usage: Usage
    state: LetterState = LetterState.OPEN
    actor: str = "machine"
    reason: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0


class HoldOrigin(StrEnum):
    """What held a connection: a refused ``call``, the ``rows`` of a batch, or a ``person``."""

    CALL = "call"
    ROWS = "rows"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Hold:
    """A row of ``batch_llm_hold``: nothing is sent with this connection.

    :param code: ``BLLM-020`` or ``BLLM-021``; what a person wrote, or "", where a person holds it.
    :param job_id: job that met the fault and answers for it; "" where a person holds the connection.
    :param probe_at: when one job may try again; None: only a person ends it.
    :param probes: trials so far, since a person last asked for one.
    :param probe_batch_id: batch of ours that tries, or tried last.
    :param version: rises with every write and guards the next one. Where it begins is random, so that a
        hold is never taken for an earlier one of the same connection.
    """

    conn_id: str
    code: str
    origin: HoldOrigin
    job_id: str
    batch_id: str | None
    actor: str
    reason: str
    held_at: float
    probe_at: float | None
    probes: int
    probe_batch_id: str | None
    version: int


@dataclass(frozen=True, slots=True)
class BoughtAnswer:
    """A row of ``batch_llm_answer``: where the answer to a request is that was paid for.

    :param request_hash: digest of the canonical request.
    :param task: digest of the task that bought it.
    :param connection: digest of the connection it was bought with; "" where the row was sent again with
        another model or limit, so that only the same task may take the answer.
    :param answered_at: when its batch ended.
    """

    request_hash: str
    task: str
    connection: str
    job_id: str
    batch_id: str
    wire_id: str
    answered_at: float


@dataclass(frozen=True, slots=True)
class Event:
    """A row of ``batch_llm_event`` (append-only)."""

    time: float
    job_id: str
    batch_id: str | None
    actor: str
    action: str
    reason: str
