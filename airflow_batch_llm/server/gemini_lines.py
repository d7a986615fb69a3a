"""The Gemini API's dialect: ``{"key", "request"}`` in, ``{"key", "response" | "error"}`` out.

Requests of the create call itself are kept as lines too, ``{"metadata", "request"}``; their rows give the
metadata back. Keys may be missing and may repeat, as the API takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.gemini_members import EMBED, GENERATE, Malformed
from airflow_batch_llm.server.gemini_replies import embedding_of, error_of, response_of
from airflow_batch_llm.server.gemini_requests import chat_of, embeddings_of, wants_thoughts
from airflow_batch_llm.server.translation import CHAT, BadRequest, Failure, read_chat
from airflow_batch_llm.server.wire import LineChecker, LineError, Reply, Request

EMBEDDINGS = "/v1/embeddings"

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a row needs of its request: the metadata of an inline one, and whether thoughts are shown."""

    metadata: dict[str, Any] | None
    thoughts: bool


class GeminiDialect:
    """Lines as the Gemini API's batch mode reads and writes them."""

    name = "gemini"
    one_file = True

    def checker(self, endpoint: str, unknown_models: Sequence[str]) -> LineChecker:
        return _Checker(endpoint)

    def read(self, batch: StoredBatch, number: int, line: bytes) -> Request:
        value = _any.decode(line)
        request = _request(batch.endpoint, value)
        metadata = value.get("metadata")
        key = (metadata or {}).get("key") if batch.kept["inline"] else value.get("key")
        kept = _Kept(metadata, wants_thoughts(request))
        model = (batch.model or "").removeprefix("models/")
        body, refused = b"{}", None
        try:
            body = (chat_of if batch.endpoint == CHAT else embeddings_of)(model, request)
        except BadRequest as e:
            refused = e.reply()
        return Request(number, key if isinstance(key, str) else "", model, body, refused, kept)

    def row(self, batch: StoredBatch, row_id: str, request: Request, reply: Reply) -> bytes:
        kept: _Kept = request.kept
        row: dict[str, Any] = {}
        if batch.kept["inline"]:
            row = {} if kept.metadata is None else {"metadata": kept.metadata}
        elif request.custom_id:
            row = {"key": request.custom_id}
        told = read_chat(reply) if batch.endpoint == CHAT else embedding_of(reply)
        if isinstance(told, Failure):
            row[batch.kept["error_member"]] = error_of(told)
        else:
            row["response"] = told if isinstance(told, dict) else response_of(told, thoughts=kept.thoughts)
        return _encoder.encode(row)

    def unexecuted(self, batch: StoredBatch, row_id: str, custom_id: str | None, code: str) -> bytes:
        """Return no line: a row that was not executed stands nowhere."""
        return b""

    def with_custom_id(self, line: bytes, custom_id: str | None) -> bytes:
        row = _any.decode(line)
        row.pop("key", None)
        inline = row.pop("metadata", None) is not None
        named: dict[str, Any] = {} if custom_id is None else {"key": custom_id}
        if inline and named:
            named = {"metadata": named}
        return _encoder.encode({**named, **row})


class _Checker:
    """Every line a request that can be read; what it asks for is judged when it is executed."""

    def __init__(self, endpoint: str) -> None:
        self.model: str | None = None
        self._endpoint = endpoint

    def check(self, number: int, line: bytes) -> LineError | None:
        try:
            value = _any.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return LineError("invalid_json", "This is not valid JSON.", "line", number)
        try:
            if not isinstance(value, dict):
                raise Malformed("line", "This must be an object.")
            for name, kind in (("key", str), ("metadata", dict)):
                if not isinstance(value.get(name), kind | None):
                    raise Malformed(name, "This has the wrong type.")
            _request(self._endpoint, value)
        except (Malformed, RecursionError) as e:
            return LineError("invalid_request", str(e), getattr(e, "place", "request"), number)
        return None


def _request(endpoint: str, line: dict[str, Any]) -> dict[str, Any]:
    """Return the line's request with its members checked. :raises Malformed: it cannot be read."""
    if endpoint == CHAT:
        request = GENERATE(line.get("request"), "request")
        if not request.get("contents"):
            raise Malformed("request.contents", "This is missing.")
        return request
    request = EMBED(line.get("request"), "request")
    if "content" not in request:
        raise Malformed("request.content", "This is missing.")
    return request
