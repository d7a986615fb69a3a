"""submit: planned -> uploaded -> submitting -> submitted, without ever paying twice."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from airflow_batch_llm.core.files import iter_requests
from airflow_batch_llm.core.holds import calls_work, pass_gate
from airflow_batch_llm.core.ids import META_JOB, META_ORIGIN, META_TOKEN, attempt_token
from airflow_batch_llm.core.model import (
    Batch,
    BatchKind,
    BatchState,
    Job,
    RemoteBatch,
    RemoteStatus,
    RequestTemplate,
)
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.core.shards import batch_template
from airflow_batch_llm.core.spec import Later
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.exceptions import InDoubt, NotFound, RateLimited, Refused

#: How long before the intent a batch of ours may seem to have been created (clocks differ), seconds.
_CLOCK_SLACK = 600.0


async def submit_batch(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> Later | None:
    """Take one batch as far towards ``submitted`` as is possible now; a held connection is waited for.

    Safe to call at any time by anybody: each step is guarded by the ledger's compare-and-set.

    :raises AuthError, AccountError, Refused, Unreachable: from the provider; nothing was created.
    """
    current: Batch | None = batch
    may_pass = False
    while current is not None and current.state in (
        BatchState.PLANNED,
        BatchState.UPLOADED,
        BatchState.SUBMITTING,
    ):
        now = tools.ledger.now()
        if current.state is not BatchState.SUBMITTING and current.not_before and current.not_before > now:
            return Later(current.not_before, "not_before")
        if current.state is not BatchState.SUBMITTING and not may_pass:
            if (later := await pass_gate(tools, job, current)) is not None:
                return later
            may_pass = True
        if current.state is BatchState.PLANNED:
            later = await _upload(tools, current, template)
        elif current.state is BatchState.UPLOADED:
            later = await _create(tools, job, current, template)
        else:
            later = await resolve_doubt(tools, job, current)
        if later is not None:
            return later
        current = tools.ledger.get_batch(current.batch_id)
    if current is not None and current.state is BatchState.SUBMITTED:
        calls_work(tools, current.conn_id)
    return None


async def _upload(tools: Tools, batch: Batch, template: RequestTemplate) -> Later | None:
    async with _encoded(tools, batch, template) as local:
        tools.fault("submit.before_upload")
        try:
            file_id = await tools.backend_of(batch).upload(local, f"{batch.batch_id}.jsonl")
        except RateLimited as error:
            return _later(tools, error)
    tools.fault("submit.after_upload")
    if tools.ledger.mark_uploaded(batch, file_id) is None:
        # Another try uploaded first; nothing was paid, the file is litter.
        await tools.backend_of(batch).delete_file(file_id)
    return None


@asynccontextmanager
async def _encoded(tools: Tools, batch: Batch, template: RequestTemplate) -> AsyncIterator[Path]:
    """Write the provider's lines into a temporary file."""
    encode = tools.backend_of(batch).line_encoder(batch_template(template, batch.model, batch.overrides))
    with tempfile.TemporaryDirectory(prefix="batch-llm-upload-") as folder:
        local = Path(folder) / "upload.jsonl"
        with local.open("wb", buffering=1 << 20) as file:
            for request in iter_requests(tools.workspace, tools.root, batch):
                file.write(encode(request.wire_id, bytes(request.body)))
        yield local


async def _create(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> Later | None:
    create_timeout = max(tools.settings.create_timeout, tools.backend_of(batch).create_timeout)
    lease = create_timeout + tools.settings.lease_margin
    tools.fault("submit.before_intent")
    intent = tools.ledger.enter_submitting(batch, revision=job.revision, lease_seconds=lease)
    if intent is None:
        return _unless_taken(tools, batch)
    tools.fault("submit.after_intent")
    order = CreateOrder(
        template=batch_template(template, batch.model, batch.overrides),
        input_file_id=intent.input_file_id or "",
        metadata={
            META_TOKEN: token(job, intent, intent.attempt),
            META_JOB: job.job_id,
            META_ORIGIN: job.key.origin,
        },
        display_name=batch.batch_id,
    )
    # The process may have been suspended since the intent was written: a stale intent is not acted on.
    if intent.lease_until is None or intent.lease_until - tools.ledger.now() < create_timeout:
        return Later(intent.lease_until or tools.ledger.now(), "lease_too_old")
    tools.fault("submit.before_create")
    try:
        remote = await tools.backend_of(batch).create(order)
    except InDoubt:
        log.warning("batch %s: the reply to the create call was lost; looking for it", batch.batch_id)
        tools.ledger.add_event(job.job_id, "create_in_doubt", batch_id=batch.batch_id)
        return await resolve_doubt(tools, job, intent)
    except RateLimited as error:
        later = _later(tools, error)
        tools.ledger.leave_submitting(intent, reason=error.reason, not_before=later.not_before)
        return later
    except NotFound:
        tools.ledger.put_back(intent, reason="upload_gone", not_before=None)
        if intent.attempt >= tools.settings.max_uploads:
            raise
        return None
    except Refused as error:
        tools.ledger.leave_submitting(intent, reason=error.reason)
        raise
    except Exception as error:
        if getattr(error, "code", "") in _NOTHING_CREATED:
            tools.ledger.leave_submitting(intent, reason=type(error).__name__)
        raise
    tools.fault("submit.after_create")
    await _settle_on(tools, job, intent, remote)
    return None


def _unless_taken(tools: Tools, batch: Batch) -> Later | None:
    """Return when to come again where nobody else took the batch: its job was halted or cleared."""
    current = tools.ledger.get_batch(batch.batch_id)
    if current is None or (current.state, current.attempt) != (batch.state, batch.attempt):
        return None
    return Later(tools.ledger.now() + tools.settings.look_apart, "job_changed")


#: AuthError, AccountError: the provider said no before it did anything. Unreachable: no connection came
#: about, so nothing was sent (a connection that broke later is InDoubt).
_NOTHING_CREATED = frozenset({"BLLM-020", "BLLM-021", "BLLM-022"})


async def _settle_on(tools: Tools, job: Job, intent: Batch, remote: RemoteBatch) -> None:
    """Record the batch that counts; cancel and record ours where another one does."""
    if tools.ledger.mark_submitted(intent, remote) is not None:
        tools.fault("submit.after_submitted")
        return
    standing = tools.ledger.get_batch(intent.batch_id)
    if standing is not None and standing.provider_batch_id == remote.id:
        return
    await record_stray(tools, intent, remote, intent.attempt)


async def record_stray(tools: Tools, batch: Batch, remote: RemoteBatch, attempt: int) -> None:
    """Record a batch of ours that the provider holds beside the one that counts, and cancel it."""
    recorded = tools.ledger.record_duplicate(batch, remote, attempt)
    if recorded.kind is BatchKind.PRIMARY:
        return
    log.warning(
        "batch %s: a second batch was accepted (%s); cancelled, its results are read",
        batch.batch_id,
        remote.id,
    )
    tools.fault("submit.after_duplicate")
    if not remote.status.terminal:
        await ask_to_cancel(tools, recorded)


async def ask_to_cancel(tools: Tools, batch: Batch) -> None:
    """Ask the provider to cancel a batch for which the ledger says so already."""
    try:
        await tools.backend_of(batch).cancel(batch.provider_batch_id or "")
    except (Refused, RateLimited) as error:
        # About to end, say: whoever looks at it next asks again.
        log.warning("batch %s: cannot be cancelled now (%s)", batch.batch_id, error.reason)


async def resolve_doubt(tools: Tools, job: Job, batch: Batch) -> Later | None:
    """Find out whether a create call took effect.

    Found: adopted at once. Not found: only two looks ``look_apart`` seconds apart, both after the
    lease ended, are proof; then the batch goes back to ``uploaded``.
    """
    # Before the look: time that passes while it is made proves nothing.
    now = tools.ledger.now()
    found = await _find_any(tools, job, batch)
    if found is not None:
        remote, attempt = found
        log.info("batch %s: found at the provider as %s (attempt %d)", batch.batch_id, remote.id, attempt)
        await _settle_on(tools, job, batch, remote)
        return None
    lease_until = batch.lease_until or now
    if now < lease_until:
        return Later(lease_until, "in_doubt")
    if batch.first_look_at is None:
        noted = tools.ledger.record_look(batch)
        first = noted.first_look_at if noted is not None and noted.first_look_at is not None else now
        return Later(first + tools.settings.look_apart, "in_doubt")
    if now - batch.first_look_at < tools.settings.look_apart:
        return Later(batch.first_look_at + tools.settings.look_apart, "in_doubt")
    tools.ledger.leave_submitting(batch, reason="not_at_provider")
    return None


async def _find_any(tools: Tools, job: Job, batch: Batch) -> tuple[RemoteBatch, int] | None:
    """Look for every attempt of the batch, the newest first.

    One that is recorded as a duplicate was cancelled by us and is not adopted.
    """
    recorded = _recorded(tools, job)
    since = batch.created_at - _CLOCK_SLACK
    for attempt in range(batch.attempt, 0, -1):
        for remote in await tools.backend_of(batch).find(token(job, batch, attempt), created_after=since):
            if remote.id not in recorded and not _came_to_nothing(remote):
                return remote, attempt
    return None


async def seek_strays(tools: Tools, job: Job, batch: Batch) -> bool:
    """Look for batches that attempts of this one left behind (a process that woke up late).

    Returns whether one was found that the ledger did not know.
    """
    recorded = _recorded(tools, job)
    since = batch.created_at - _CLOCK_SLACK
    found = False
    for attempt in range(1, batch.attempt + 1):
        for remote in await tools.backend_of(batch).find(token(job, batch, attempt), created_after=since):
            if remote.id not in recorded and not _came_to_nothing(remote):
                await record_stray(tools, batch, remote, attempt)
                found = True
    return found


def _recorded(tools: Tools, job: Job) -> set[str | None]:
    """Return the provider ids that the ledger knows for the job."""
    return {known.provider_batch_id for known in tools.ledger.batches(job.job_id)}


def token(job: Job, batch: Batch, attempt: int) -> str:
    """Return the token of one attempt."""
    return attempt_token(job.key, batch.revision, batch.round, batch.seq, attempt)


def _came_to_nothing(remote: RemoteBatch) -> bool:
    return remote.status is RemoteStatus.FAILED and not remote.files


def _later(tools: Tools, error: RateLimited) -> Later:
    wait = error.retry_after if error.retry_after is not None else tools.settings.queue_wait
    return Later(tools.ledger.now() + wait, error.reason)
