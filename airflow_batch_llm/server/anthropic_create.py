"""The body of a create call: checked, and split into one line for each request.

The body was written to disk as it arrived and is read through a memory map, once: memory holds where each
request begins and its id, never the requests.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from airflow_batch_llm.server.anthropic_cache import PrefixLedger
from airflow_batch_llm.server.anthropic_lines import StoredLine, params_of
from airflow_batch_llm.server.anthropic_requests import to_chat
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.settings import ServerLimits
from airflow_batch_llm.server.translation import BadRequest

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MARK = b"cache_control"


class _Create(msgspec.Struct, forbid_unknown_fields=True):
    requests: list[msgspec.Raw]


_create = msgspec.json.Decoder(_Create)
_stored = msgspec.json.Decoder(StoredLine)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def split_requests(source: Path, target: Path, limits: ServerLimits, unknown_models: Collection[str]) -> int:
    """Write the requests of a body to ``target``, one a line, and return how many there are.

    :raises BadCall: 400, the body or a ``custom_id`` is wrong (told with the index of the request); 413, too
        many requests, or one is too long.
    """
    if not source.stat().st_size:
        raise BadCall("The request body is empty.")
    with source.open("rb") as file, target.open("wb") as lines:
        # Never closed by hand: it goes with the last request that refers to it, also one in a traceback.
        body = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _write_lines(_requests(body), lines, limits, frozenset(unknown_models))


def check_params(lines: Path, version: str, *, named: bool) -> None:
    """Refuse what the rows would be refused for.

    :param lines: as :func:`split_requests` wrote them.
    :param named: tell the index of the request.
    :raises BadCall: 400, for the first request at fault.
    """
    with lines.open("rb") as file:
        for index, line in enumerate(file):
            try:
                to_chat(params_of(_stored.decode(line)), version)
            except BadRequest as e:
                place = f"requests.{index}.params." if named else ""
                raise BadCall(f"{place}{e}") from e


def _requests(body: mmap.mmap) -> list[msgspec.Raw]:
    try:
        return _create.decode(body).requests
    except msgspec.ValidationError as e:
        raise BadCall("requests: Field required, a list of requests, and nothing beside it") from e
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        place = re.search(r"\(byte \d+\)", str(e))
        raise BadCall(f"The request body is not valid JSON{f' {place[0]}' if place else ''}.") from e


def _write_lines(
    requests: Sequence[msgspec.Raw], lines: BinaryIO, limits: ServerLimits, unknown: frozenset[str]
) -> int:
    if not requests:
        raise BadCall("requests: at least one request is required")
    if len(requests) > limits.max_requests:
        raise BadCall(f"requests: at most {limits.max_requests} are allowed", status=413)
    seen: set[str] = set()
    prefixes = PrefixLedger()
    for index, request in enumerate(requests):
        line = _line(f"requests.{index}", request, seen, prefixes, unknown)
        if len(line) > limits.max_line_bytes:
            raise BadCall(f"requests.{index}: above {limits.max_line_bytes} bytes", status=413)
        lines.write(line)
        lines.write(b"\n")
    return len(requests)


def _line(
    place: str, request: msgspec.Raw, seen: set[str], prefixes: PrefixLedger, unknown: frozenset[str]
) -> bytes:
    try:
        members = _members.decode(request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise BadCall(f"{place}: Input should be an object") from e
    custom_id = _custom_id(f"{place}.custom_id", members.pop("custom_id", None))
    if custom_id in seen:
        raise BadCall(f"{place}.custom_id: '{custom_id}' is used by an earlier request; ids must be unique")
    seen.add(custom_id)
    params = members.pop("params", None)
    if params is None or not bytes(memoryview(params)[:1]) == b"{":
        raise BadCall(f"{place}.params: Field required, an object")
    if members:
        raise BadCall(f"{place}.{min(members)}: Extra inputs are not permitted")
    raw = bytes(params)
    stored = StoredLine(custom_id, msgspec.Raw(raw.replace(b"\n", b" ").replace(b"\r", b" ")))
    if unknown or _MARK in raw:
        _look_inside(stored, prefixes, unknown)
    return _encoder.encode(stored)


def _custom_id(place: str, raw: msgspec.Raw | None) -> str:
    custom_id = None if raw is None else _any.decode(raw)
    if custom_id is None:
        raise BadCall(f"{place}: Field required")
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        raise BadCall(f"{place}: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    return custom_id


def _look_inside(stored: StoredLine, prefixes: PrefixLedger, unknown: frozenset[str]) -> None:
    """Note what cannot be told any more when the row runs alone: its place in the batch, the scenario."""
    try:
        params = _any.decode(stored.params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # the row will say so
    model = params.get("model")
    stored.unknown = isinstance(model, str) and model in unknown
    if not stored.unknown and _MARK in bytes(stored.params):
        stored.cache = prefixes.account(params)
