"""What Anthropic's refusals mean, beyond what their types and codes say.

Nothing is quoted from the texts that are looked at here: they only decide.
"""

from __future__ import annotations

import re

import httpx

from airflow_batch_llm.backends.base import Call
from airflow_batch_llm.backends.errors import ErrorFacts, parse_error_body
from airflow_batch_llm.backends.retrying import retry_after
from airflow_batch_llm.core.endings import QUEUE_CODES
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import AccountError, LinesRefused, RateLimited, RefusedLine

#: A spend limit that the customer has set, and a balance that is used up, are a plain 400
#: ``invalid_request_error``: only the text tells.
_SPENT = re.compile(
    r"credit balance is too low|spend(ing)? limit|reached your specified .{0,40}usage limit|api usage limits"
    r"|organization has been disabled",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"prompt is too long|exceeds? (the )?context (limit|window)|input is too long", re.IGNORECASE
)
_QUEUE = re.compile(r"\bqueued?\b", re.IGNORECASE)
#: How a refusal of the whole call names a request: by its place from 0.
_PLACE = re.compile(r"\brequests(?:\.|\[)(\d{1,7})\b")
#: What the newest version of the API takes no more. Whether requests that hold it are refused one by one, as
#: others are, or all of them with the create call, is not known.
_OF_REQUESTS = re.compile(r"\b(?:params|temperature|top_p|top_k|citations)\b|\bmessages\.\d")
#: Of a message, for a dead letter.
_LETTER_LIMIT = 2000


def verdict_of_message(message: str) -> Verdict | None:
    """Return what the text of an ``invalid_request_error`` means, None where it is what it says."""
    if _TOO_LONG.search(message):
        return Verdict.TOO_LARGE
    return Verdict.ACCOUNT if _SPENT.search(message) else None


def refuse_create(reply: httpx.Response, call: Call) -> None:
    """Raise what a refused create call stands for, where status, type and code alone do not tell.

    :raises LinesRefused: requests are wrong or there are too many bytes; those that it names stand in it,
        counted from 1.
    :raises AccountError: the account cannot pay; a 429 that names no time to come back is one too.
    :raises RateLimited: the queue of the account is full.
    """
    status, facts = reply.status_code, parse_error_body(reply.content)
    what = f"{call}: HTTP {status}" + (f", code {facts.code}" if facts.code else "")
    if status == 413:
        raise LinesRefused(
            f"{what}: more bytes than the provider takes", status_code=413, reason="request_too_large"
        )
    if status == 400 and _SPENT.search(facts.message):
        raise AccountError(
            f"{what}: a spend limit is reached, the balance is used up or the organization is disabled; "
            "check the account"
        )
    if status == 400 and (places := _places(facts)):
        raise LinesRefused(
            f"{what}: {len(places)} of the requests refused",
            lines=places,
            status_code=400,
            reason=facts.code or facts.type or "invalid_request_error",
        )
    if status == 400 and facts.type == "invalid_request_error" and _OF_REQUESTS.search(facts.message):
        reason = facts.code or facts.type
        raise LinesRefused(f"{what}: some of the requests refused", status_code=400, reason=reason)
    if status == 429:
        _refuse_for_now(facts, what, retry_after(reply.headers))


def _refuse_for_now(facts: ErrorFacts, what: str, wait: float | None) -> None:
    if facts.code.lower() in QUEUE_CODES or _QUEUE.search(facts.message):
        raise RateLimited(f"{what}: the queue is full", retry_after=wait, reason="queue_full")
    if wait is None and facts.type:  # a gateway's own 429 says nothing of the account
        raise AccountError(f"{what}: refused without a time to come back; check the account's limits")


def _places(facts: ErrorFacts) -> list[RefusedLine]:
    places = sorted({int(place) for place in _PLACE.findall(facts.message)})
    code = facts.code or facts.type or "invalid_request_error"
    return [RefusedLine(place + 1, code, facts.message[:_LETTER_LIMIT]) for place in places]
