"""Mistral's dialect: ``{"custom_id", "body"}`` in, with the model at the batch; output and error rows out.

An error row holds its body as a text of JSON. Rows that were not executed stand nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.mistral_bodies import mistral_body, openai_body
from airflow_batch_llm.server.mistral_validation import check_line
from airflow_batch_llm.server.translation import BadRequest
from airflow_batch_llm.server.wire import LineChecker, LineError, Reply, Request

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class _Line(msgspec.Struct):
    body: msgspec.Raw
    custom_id: str | None = None


_line = msgspec.json.Decoder(_Line)


class MistralDialect:
    """Lines as Mistral's batch jobs read and write them."""

    name = "mistral"
    one_file = False

    def checker(self, endpoint: str, unknown_models: Sequence[str]) -> LineChecker:
        return _Checker()

    def read(self, batch: StoredBatch, number: int, line: bytes) -> Request:
        decoded = _line.decode(line)
        model = batch.model or ""
        refused = None
        try:
            body = openai_body(batch.endpoint, model, bytes(decoded.body))
        except BadRequest as e:
            body, refused = bytes(decoded.body), e.reply(422)
        return Request(number, decoded.custom_id or "", model, body, refused, kept=decoded.custom_id)

    def row(self, batch: StoredBatch, row_id: str, request: Request, reply: Reply) -> bytes:
        response = error = None
        if not reply.status:
            error = {"code": "request_timeout", "message": "The request timed out."}
        else:
            body: Any = mistral_body(batch.endpoint, reply)
            if reply.status != 200:
                body = _encoder.encode(body).decode("utf-8")
            response = {"status_code": reply.status, "body": body}
        shown = {
            "id": f"batch-{row_id[-32:]}",
            "custom_id": request.kept,
            "response": response,
            "error": error,
        }
        return _encoder.encode(shown)

    def unexecuted(self, batch: StoredBatch, row_id: str, custom_id: str | None, code: str) -> bytes:
        return b""

    def with_custom_id(self, line: bytes, custom_id: str | None) -> bytes:
        return _encoder.encode({**_any.decode(line), "custom_id": custom_id})


class _Checker:
    """What the upload was checked for, once more: the file may have been another protocol's."""

    model: str | None = None

    def check(self, number: int, line: bytes) -> LineError | None:
        fault = check_line(line)
        return None if fault is None else LineError("invalid_request", fault, line=number)
