"""What a create call that the Gemini API refuses means: lines, the model, the upload, a quota, the account.

Everything is checked at create, and one faulty line refuses the whole call (400 INVALID_ARGUMENT).
"""

from __future__ import annotations

import re

import httpx

from airflow_batch_llm.backends.base import Call, error_of
from airflow_batch_llm.backends.errors import MESSAGE_LIMIT, ErrorFacts, parse_error_body
from airflow_batch_llm.backends.gemini_objects import line_in
from airflow_batch_llm.backends.gemini_rows import is_spent
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    LinesRefused,
    NotFound,
    RateLimited,
    Refused,
    RefusedLine,
)

#: Parts of the call that are not the requests: what is wrong there is wrong for all of them.
_OF_THE_CALL = re.compile(
    r"batch\.(?:display_?name|priority|webhook_?config|input_?config\.file_?name)", re.I
)
#: Quotas of the batches that wait, among those that a 429 names.
_WAITING = re.compile(rb"enqueued|batch", re.I)
#: A quota that the account's plan does not have at all: no wait helps.
_NO_QUOTA = re.compile(rb'"quotaValue"\s*:\s*"0"|\blimit: 0\b')
#: Seconds until an upload that is still being looked through is tried again.
_READY_AGAIN = 5.0
_PLACES = re.compile(r"requests\[\d{1,7}\]")


def refusal_of(reply: httpx.Response, call: Call, order: CreateOrder) -> None:
    """Raise what a create call's refusal means; return where it means what it would for any call.

    :raises LinesRefused: the requests, or some of them.
    :raises NotFound: the upload is gone.
    :raises RateLimited: a quota is used up, or the upload is not ready.
    :raises AccountError: the account may not do this.
    :raises Refused: the model is unknown, or what concerns all requests is wrong.
    """
    status, facts = reply.status_code, parse_error_body(reply.content)
    codes = {facts.code.upper(), facts.type.upper()}
    what = f"{call}: HTTP {status}" + (f", code {facts.code}" if facts.code else "")
    # Its messages name a file with and without what stands before its id.
    file_id = order.input_file_id.removeprefix("files/")
    names_file = bool(file_id) and file_id in facts.message
    if status in (403, 404) and names_file:
        raise NotFound(f"{what}: the upload is gone")
    if status == 404:
        what = f"{what}: there is no model {order.template.model!r} with batches"
        raise Refused(what, status_code=404, reason="model_not_found")
    if status == 429:
        _raise_quota(reply, call, facts, what)
    if status == 400 and "FAILED_PRECONDITION" in codes:
        if names_file:
            raise RateLimited(
                f"{what}: the upload is not ready", retry_after=_READY_AGAIN, reason="file_not_ready"
            )
        raise AccountError(f"{what}: the account may not use batches; check its plan, billing and country")
    if status == 413 or (status == 400 and "INVALID_ARGUMENT" in codes):
        if isinstance(error_of(reply, call), AuthError):
            return  # a wrong key is an INVALID_ARGUMENT too
        if _OF_THE_CALL.search(facts.message):
            raise Refused(f"{what}: refused", status_code=status, reason=facts.code)
        lines = _lines_in(facts, order)
        raise LinesRefused(
            f"{what}: requests are refused", lines=lines, status_code=status, reason=facts.code
        )


def _raise_quota(reply: httpx.Response, call: Call, facts: ErrorFacts, what: str) -> None:
    if is_spent(facts.message):
        raise AccountError(f"{what}: the account's credit or its spending cap is used up; check its billing")
    if _NO_QUOTA.search(reply.content):
        raise AccountError(f"{what}: the account's plan has no batches with this model")
    error = error_of(reply, call)
    if isinstance(error, RateLimited) and _WAITING.search(reply.content):
        raise RateLimited(f"{what}: the queue is full", retry_after=error.retry_after, reason="queue_full")


def _lines_in(facts: ErrorFacts, order: CreateOrder) -> tuple[RefusedLine, ...]:
    """Return the lines that a message names; none where it names none that the batch has."""
    places = _PLACES.findall(facts.message) or [facts.message]
    lines = {line_in(place) for place in places}
    code, message = facts.code or "INVALID_ARGUMENT", facts.message[:MESSAGE_LIMIT]
    named = sorted(line for line in lines if line is not None and 1 <= line <= order.requests)
    return tuple(RefusedLine(line, code, message) for line in named)
