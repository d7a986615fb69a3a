"""submit: planned -> uploaded -> submitting -> submitted, without ever paying twice."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from airflow_batch_llm.core.doubts import resolve_doubt, settle_on, token
from airflow_batch_llm.core.files import iter_requests
from airflow_batch_llm.core.holds import calls_work, pass_gate
from airflow_batch_llm.core.ids import META_JOB, META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import Batch, BatchState, Job, RequestTemplate
from airflow_batch_llm.core.places import moved, place_of
from airflow_batch_llm.core.ports import CreateOrder, carrying_seconds
from airflow_batch_llm.core.shards import batch_template
from airflow_batch_llm.core.spec import Later
from airflow_batch_llm.core.tools import Tools, log
from airflow_batch_llm.core.unmade import close_refused
from airflow_batch_llm.exceptions import InDoubt, LinesRefused, NotFound, RateLimited, Refused

#: Event: the provider has looked through an upload for longer than this, in seconds.
UPLOAD_NOT_READY, _READY_WITHIN = "upload_not_ready", 900.0
#: Event: the provider does not take the file.
UPLOAD_REFUSED = "upload_refused"
#: Why a batch is uploaded anew.
_UPLOAD_GONE = "upload_gone"


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
            later = await _upload(tools, job, current, template)
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


async def _upload(tools: Tools, job: Job, batch: Batch, template: RequestTemplate) -> Later | None:
    provider, place = tools.backend_of(batch).provider, place_of(tools, batch)
    if tools.backend_of(batch).inline:
        tools.ledger.mark_uploaded(batch, "", provider=provider, place=place)
        return None
    async with _encoded(tools, batch, template) as local:
        tools.fault("submit.before_upload")
        try:
            file_id = await tools.backend_of(batch).upload(local, f"{batch.batch_id}.jsonl")
        except RateLimited as error:
            return _later(tools, error)
        except LinesRefused as error:
            if await close_refused(tools, job, batch, template, error):
                return None
            raise
        except Refused as error:
            tools.ledger.add_event(job.job_id, UPLOAD_REFUSED, batch_id=batch.batch_id, reason=error.reason)
            raise
    tools.fault("submit.after_upload")
    if tools.ledger.mark_uploaded(batch, file_id, provider=provider, place=place) is None:
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
    if not _can_be_created(tools, batch):
        tools.ledger.put_back(batch, reason="other_connection", not_before=None)
        return None
    if not batch.input_file_id:
        # Before the intent: its lease must not run while they are written.
        async with _encoded(tools, batch, template) as lines:
            return await _create_with(tools, job, batch, template, lines)
    later, gone_on = await _until_ready(tools, job, batch, template)
    return later if gone_on else await _create_with(tools, job, batch, template, None)


def _can_be_created(tools: Tools, batch: Batch) -> bool:
    """Say whether what was uploaded, or was not, is what the connection takes: it may have been changed."""
    backend = tools.backend_of(batch)
    if backend.provider != batch.provider or moved(tools, batch):
        return False
    return bool(batch.input_file_id or backend.inline)


async def _until_ready(
    tools: Tools, job: Job, batch: Batch, template: RequestTemplate
) -> tuple[Later | None, bool]:
    """Ask whether the upload can be used; returns when to ask again, and whether the batch has moved on
    (refused for its lines, or put back as the upload is gone) or has to wait.

    :raises NotFound: uploads of the batch vanish again and again.
    :raises Refused: the provider cannot use the upload; the next try uploads it anew.
    """
    waited = max(tools.ledger.now() - batch.updated_at, 0.0)  # nothing changed it since it was uploaded
    try:
        seconds = await tools.backend_of(batch).ready(batch.input_file_id or "", waited=waited)
    except RateLimited as error:
        return _later(tools, error), True
    except NotFound:
        lost = _uploads_lost(tools, batch)
        tools.ledger.put_back(batch, reason=_UPLOAD_GONE, not_before=None)
        if lost >= tools.settings.max_uploads:
            raise
        return None, True
    except LinesRefused as error:
        if await close_refused(tools, job, batch, template, error):
            return None, True
        raise
    except Refused as error:
        tools.ledger.put_back(batch, reason=error.reason, not_before=None)
        raise
    if seconds is None:
        return None, False
    if waited > _READY_WITHIN:
        _tell_unready(tools, batch)
    return Later(tools.ledger.now() + seconds, UPLOAD_NOT_READY), True


def _tell_unready(tools: Tools, batch: Batch) -> None:
    """Note, once for each upload, that a provider takes long to look through it; no money is spent."""
    told = {event.reason for event in tools.ledger.events(batch.job_id) if event.action == UPLOAD_NOT_READY}
    if batch.input_file_id not in told:
        log.warning("batch %s: its upload %s is still not ready", batch.batch_id, batch.input_file_id)
        tools.ledger.add_event(
            batch.job_id, UPLOAD_NOT_READY, batch_id=batch.batch_id, reason=batch.input_file_id or ""
        )


def _uploads_lost(tools: Tools, batch: Batch) -> int:
    put_back = [e for e in tools.ledger.events(batch.job_id) if e.action == "put_back"]
    return sum(e.batch_id == batch.batch_id and e.reason.startswith(_UPLOAD_GONE) for e in put_back)


async def _create_with(
    tools: Tools, job: Job, batch: Batch, template: RequestTemplate, lines: Path | None
) -> Later | None:
    """Make the one create call, on the upload or with the encoded ``lines``."""
    create_timeout = max(tools.settings.create_timeout, tools.backend_of(batch).create_timeout)
    create_timeout += carrying_seconds(lines)
    lease = create_timeout + tools.settings.lease_margin
    tools.fault("submit.before_intent")
    intent = tools.ledger.enter_submitting(
        batch, revision=job.revision, lease_seconds=lease, place=place_of(tools, batch)
    )
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
        lines=lines,
        requests=batch.requests,
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
        tools.ledger.put_back(intent, reason=_UPLOAD_GONE, not_before=None)
        if intent.attempt >= tools.settings.max_uploads:
            raise
        return None
    except LinesRefused as error:
        if await close_refused(tools, job, intent, template, error):
            return None
        tools.ledger.leave_submitting(intent, reason=error.reason)
        raise
    except Refused as error:
        tools.ledger.leave_submitting(intent, reason=error.reason)
        raise
    except Exception as error:
        if getattr(error, "code", "") in _NOTHING_CREATED:
            tools.ledger.leave_submitting(intent, reason=type(error).__name__)
        raise
    tools.fault("submit.after_create")
    await settle_on(tools, job, intent, remote)
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


def _later(tools: Tools, error: RateLimited) -> Later:
    wait = error.retry_after if error.retry_after is not None else tools.settings.queue_wait
    return Later(tools.ledger.now() + wait, error.reason)
