"""Which lines Mistral refuses: it checks a whole file at the upload, and names the lines that it found."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from airflow_batch_llm.backends.base import Call
from airflow_batch_llm.backends.errors import parse_error_body
from airflow_batch_llm.backends.mistral_objects import refused_field, refused_lines, refused_places
from airflow_batch_llm.exceptions import LinesRefused, NotFound, RateLimited, Refused, RefusedLine

_NOT_FOUND, _UNPROCESSABLE = 404, 422
_LIMIT_WORDS = ("limit", "exceed", "maximum", "too many")


def upload_refused(reply: httpx.Response, call: Call) -> None:
    """:raises LinesRefused: an upload was refused for what it holds; lines are in Mistral's own counting."""
    if reply.status_code == _UNPROCESSABLE:
        raise _refused(reply, call, refused_lines(_body(reply)))


def create_refused(reply: httpx.Response, call: Call) -> None:
    """Tell apart why a create call was refused.

    :raises LinesRefused: requests that went along with it are at fault, and are named.
    :raises NotFound: the upload is gone; the address is right, for the upload took it.
    :raises RateLimited: too many requests are pending. With which status that is said is not known.
    :raises Refused: a field of the call is at fault, and is named.
    """
    if reply.status_code == _NOT_FOUND:
        raise NotFound(f"{call}: HTTP 404: the provider knows no such upload")
    if reply.status_code == _UNPROCESSABLE:
        body = _body(reply)
        if places := refused_places(body):
            raise _refused(reply, call, places)
        if lines := refused_lines(body):
            raise PlacesUnsure(_refused(reply, call, lines))
    message = parse_error_body(reply.content).message.lower()
    if reply.status_code < 500 and "pending" in message and any(word in message for word in _LIMIT_WORDS):
        what = f"{call}: HTTP {reply.status_code}: too many requests are pending"
        raise RateLimited(what, reason="queue_full")
    if reply.status_code == _UNPROCESSABLE and (fault := refused_field(_body(reply))):
        kind, place = fault
        what = f"{call}: HTTP 422, code {kind or 'not named'}" + (f", at {place}" if place else "")
        raise Refused(f"{what}: refused", status_code=_UNPROCESSABLE, reason=kind or "http_422")


class PlacesUnsure(Exception):
    """Lines were refused, counted from 0 or from 1."""

    def __init__(self, refused: LinesRefused) -> None:
        super().__init__(str(refused))
        self.refused = refused


async def placed(
    refused: LinesRefused, local: Path, is_refused: Callable[[bytes], Awaitable[bool]]
) -> LinesRefused:
    """Return a refusal with lines that count from 1, or without lines where they cannot be told.

    Whether Mistral counts from 0 or from 1 is not documented, and a wrong guess would blame a good row. Of
    the lowest number named only one reading is a bad line: a file with that line alone tells.

    :param local: the file as it was sent.
    :param is_refused: says whether Mistral refuses a file that holds this line alone.
    """
    numbers = [line.line for line in refused.lines if line.line is not None]
    if not numbers:
        return refused
    lowest, highest, count = min(numbers), max(numbers), _count(local)
    for shift in (0, 1):
        possible = lowest + shift >= 1 and highest + shift <= count
        if possible and await is_refused(_line(local, lowest + shift)):
            return _with_lines(refused, [_shifted(fault, shift) for fault in refused.lines])
    return _with_lines(refused, ())


def _shifted(fault: RefusedLine, by: int) -> RefusedLine:
    return replace(fault, line=fault.line + by) if fault.line is not None else fault


def _with_lines(refused: LinesRefused, lines: Sequence[RefusedLine]) -> LinesRefused:
    what = refused.args[0]
    return LinesRefused(what, lines=lines, status_code=refused.status_code, reason=refused.reason)


def _refused(reply: httpx.Response, call: Call, lines: Sequence[RefusedLine]) -> LinesRefused:
    what = f"{call}: HTTP {reply.status_code}: {len(lines) or 'some'} of its lines are refused"
    return LinesRefused(what, lines=lines, status_code=reply.status_code)


def _body(reply: httpx.Response) -> Any:
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError):
        return None


def _line(local: Path, number: int) -> bytes:
    with local.open("rb") as file:
        return next((line for place, line in enumerate(file, 1) if place == number), b"")


def _count(local: Path) -> int:
    with local.open("rb") as file:
        return sum(1 for _ in file)
