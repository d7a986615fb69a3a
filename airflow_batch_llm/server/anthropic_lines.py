"""Anthropic's rows: ``{"custom_id", "params"}`` as stored at creation, ``{"custom_id", "result"}`` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_batch_llm.server.anthropic_cache import Cached
from airflow_batch_llm.server.anthropic_messages import message_of, row_error
from airflow_batch_llm.server.anthropic_requests import NEWER, to_chat
from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.translation import BadRequest, Failure, read_chat
from airflow_batch_llm.server.wire import LineChecker, LineError, Reply, Request

_UNEXECUTED = {"batch_expired": "expired", "batch_cancelled": "canceled"}

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class StoredLine(msgspec.Struct, omit_defaults=True):
    """One request as it lies in the batch's file.

    :param cache: what its caching is simulated as; absent where nothing in it is marked.
    :param unknown: whether its model was one of the scenario's ``unknown_models``.
    """

    custom_id: str
    params: msgspec.Raw
    cache: Cached | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a row needs of its request."""

    cached: Cached | None
    shows_thinking: bool


_line = msgspec.json.Decoder(StoredLine)


class AnthropicDialect:
    """Requests and results of Message Batches. Parameters are looked at only now, when a row runs."""

    name = "anthropic"
    one_file = True

    def checker(self, endpoint: str, unknown_models: Sequence[str]) -> LineChecker:
        return _Checked()

    def read(self, batch: StoredBatch, number: int, line: bytes) -> Request:
        stored = _line.decode(line)
        try:
            params = params_of(stored)
            body = to_chat(params, batch.kept.get("version", NEWER))
        except BadRequest as e:
            raw = bytes(stored.params)
            return Request(number, stored.custom_id, _model_of(stored), raw, refused=e.reply())
        kept = _Kept(stored.cache, _shows_thinking(params))
        return Request(number, stored.custom_id, params["model"], body, kept=kept)

    def row(self, batch: StoredBatch, row_id: str, request: Request, reply: Reply) -> bytes:
        found = read_chat(reply)
        if isinstance(found, Failure):
            ran = request.refused is None
            error = row_error(found, f"workerreq_{row_id[-24:]}" if ran else None)
            return _row(request.custom_id, {"type": "errored", "error": error})
        kept: _Kept = request.kept
        message = message_of(found, request.model, kept.cached, shows_thinking=kept.shows_thinking)
        return _row(request.custom_id, {"type": "succeeded", "message": message})

    def unexecuted(self, batch: StoredBatch, row_id: str, custom_id: str | None, code: str) -> bytes:
        return _row(custom_id, {"type": _UNEXECUTED[code]})

    def with_custom_id(self, line: bytes, custom_id: str | None) -> bytes:
        return _encoder.encode({**_any.decode(line), "custom_id": custom_id})


class _Checked:
    """Lines were checked when the batch was created; each names its own model."""

    model: str | None = None

    def check(self, number: int, line: bytes) -> LineError | None:
        return None


def _row(custom_id: str | None, result: dict[str, Any]) -> bytes:
    return _encoder.encode({"custom_id": custom_id, "result": result})


def params_of(stored: StoredLine) -> dict[str, Any]:
    """Return what a request asks. :raises BadRequest: it is no JSON, or its model is unknown."""
    try:
        params: dict[str, Any] = _any.decode(stored.params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise BadRequest("params: not valid JSON", param="params") from e
    if stored.unknown:
        raise BadRequest(f"model: {params['model']}", param="model")
    return params


def _model_of(stored: StoredLine) -> str:
    """Return the model of a request that is refused, where it names one."""
    try:
        model = _any.decode(stored.params).get("model")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return model if isinstance(model, str) else ""


def _shows_thinking(params: dict[str, Any]) -> bool:
    thinking = params.get("thinking")
    return isinstance(thinking, dict) and thinking.get("display") != "omitted"
