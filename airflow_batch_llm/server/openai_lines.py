"""The OpenAI dialect: ``{"custom_id", "method", "url", "body"}`` in, output and error rows out.

Codes are those that OpenAI was seen to use (``invalid_json_line``, ``duplicate_custom_id``, ...).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.inputs import number_of_inputs
from airflow_batch_llm.server.wire import LineChecker, LineError, Reply, Request

_EMBEDDINGS = "/v1/embeddings"
#: Most texts that the requests of an embeddings batch may hold together.
_MOST_INPUTS = 50_000

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class _ModelOf(msgspec.Struct):
    model: str = ""


class _Line(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


_line = msgspec.json.Decoder(_Line)
_model_of = msgspec.json.Decoder(_ModelOf)

_MESSAGES = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed because the batch was cancelled.",
    "request_timeout": "The request timed out before an answer was there.",
}


class OpenAIDialect:
    """Lines as OpenAI's Batch API reads and writes them."""

    name = "openai"
    one_file = False

    def checker(self, endpoint: str, unknown_models: Sequence[str]) -> LineChecker:
        return OpenAIChecker(endpoint, frozenset(unknown_models))

    def read(self, batch: StoredBatch, number: int, line: bytes) -> Request:
        decoded = _line.decode(line)
        body = bytes(decoded.body)
        return Request(number, decoded.custom_id, _model_of.decode(body).model, body)

    def row(self, batch: StoredBatch, row_id: str, request: Request, reply: Reply) -> bytes:
        if not reply.status:
            return self.unexecuted(batch, row_id, request.custom_id, "request_timeout")
        return _encoder.encode(
            {
                "id": row_id,
                "custom_id": request.custom_id,
                "response": {
                    "status_code": reply.status,
                    "request_id": "req_" + row_id[-24:],
                    "body": msgspec.Raw(reply.body),
                },
                "error": None,
            }
        )

    def unexecuted(self, batch: StoredBatch, row_id: str, custom_id: str | None, code: str) -> bytes:
        error = {"code": code, "message": _MESSAGES[code]}
        return _encoder.encode({"id": row_id, "custom_id": custom_id, "response": None, "error": error})

    def with_custom_id(self, line: bytes, custom_id: str | None) -> bytes:
        return _encoder.encode({**_any.decode(line), "custom_id": custom_id})


class OpenAIChecker:
    """One model and one URL for the whole file, ids unique, every line strict JSON.

    :param urls: spellings of the endpoint that lines may have; None: as it is.
    """

    def __init__(
        self, endpoint: str, unknown_models: frozenset[str], urls: frozenset[str] | None = None
    ) -> None:
        self.model: str | None = None
        self._endpoint = endpoint
        self._urls = urls or {endpoint}
        self._unknown = unknown_models
        self._seen: set[bytes] = set()
        self._inputs = 0

    def check(self, number: int, line: bytes) -> LineError | None:
        try:
            value = _any.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return LineError("invalid_json_line", "This line is not valid JSON.", line=number)
        if not isinstance(value, dict):
            return LineError("invalid_json_line", "This line is not a JSON object.", line=number)
        fault = self._check_id(value.get("custom_id")) or self._check_rest(value)
        return LineError(*fault, line=number) if fault else None

    def _check_id(self, custom_id: object) -> tuple[str, str, str] | None:
        if not isinstance(custom_id, str) or not custom_id:
            return "missing_required_parameter", "custom_id is missing or not a string.", "custom_id"
        digest = hashlib.blake2b(custom_id.encode("utf-8"), digest_size=16).digest()
        if digest in self._seen:
            return "duplicate_custom_id", "This custom_id was used on an earlier line.", "custom_id"
        self._seen.add(digest)
        return None

    def _check_rest(self, value: dict[str, Any]) -> tuple[str, str, str] | None:
        body = value.get("body")
        if value.get("method") != "POST":
            return "invalid_method", "method must be POST.", "method"
        if value.get("url") not in self._urls:
            return "invalid_url", "url is not the endpoint of the batch.", "url"
        if not isinstance(body, dict):
            return "missing_required_parameter", "body is missing or not an object.", "body"
        model = body.get("model")
        if not isinstance(model, str) or not model:
            return "invalid_request", "body.model is missing or not a string.", "body.model"
        if model in self._unknown:
            return "model_not_found", "The model does not exist.", "body.model"
        if self.model is not None and model != self.model:
            return "mismatched_model", "All lines of a file must name one model.", "body.model"
        self.model = model
        if body.get("stream"):
            return "streaming_unsupported", "stream is not supported in a batch.", "body.stream"
        if self._endpoint == _EMBEDDINGS:
            self._inputs += number_of_inputs(body.get("input"))
            if self._inputs > _MOST_INPUTS:
                return "invalid_request", f"The file holds more than {_MOST_INPUTS} inputs.", "body.input"
        return None
