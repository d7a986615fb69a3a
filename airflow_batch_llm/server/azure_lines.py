"""Azure's dialect: OpenAI's lines, with another spelling of the endpoint, other codes and fuller bodies.

Output lines have no ``id``. A byte order mark is taken for a deployment that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.openai_lines import OpenAIChecker, OpenAIDialect
from airflow_batch_llm.server.wire import LineChecker, LineError, Reply, Request

#: The endpoints of a batch and of its lines, and what answers them.
ENDPOINTS = {
    "/chat/completions": "/v1/chat/completions",
    "/v1/chat/completions": "/v1/chat/completions",
    "/v1/responses": "/v1/responses",
}
_BOM = b"\xef\xbb\xbf"
_CODES = {
    "mismatched_model": "model_mismatch",
    "invalid_url": "url_mismatch",
    "invalid_method": "invalid_request",
    "missing_required_parameter": "invalid_request",
    "streaming_unsupported": "invalid_request",
}
_SAFE = {
    category: {"filtered": False, "severity": "safe"}
    for category in ("hate", "self_harm", "sexual", "violence")
}
_PROMPT_FILTER = [{"prompt_index": 0, "content_filter_results": _SAFE}]

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class AzureDialect(OpenAIDialect):
    """Lines as Azure OpenAI reads and writes them."""

    name = "azure"

    def checker(self, endpoint: str, unknown_models: Sequence[str]) -> LineChecker:
        urls = frozenset(url for url, meant in ENDPOINTS.items() if meant == endpoint)
        return _Checker(OpenAIChecker(endpoint, frozenset(unknown_models), urls))

    def row(self, batch: StoredBatch, row_id: str, request: Request, reply: Reply) -> bytes:
        line = super().row(batch, row_id, request, reply)
        row = _any.decode(line)
        row.pop("id", None)  # a row that was not executed has lost it already
        if reply.status:
            _fill(row["response"]["body"], reply.status)
        return _encoder.encode(row)

    def unexecuted(self, batch: StoredBatch, row_id: str, custom_id: str | None, code: str) -> bytes:
        row = _any.decode(super().unexecuted(batch, row_id, custom_id, code))
        row.pop("id")
        return _encoder.encode(row)


class _Checker:
    """OpenAI's rules under Azure's codes."""

    def __init__(self, checker: OpenAIChecker) -> None:
        self._checker = checker

    @property
    def model(self) -> str | None:
        return self._checker.model

    def check(self, number: int, line: bytes) -> LineError | None:
        if number == 1 and line.startswith(_BOM):
            message = "The provided deployment name is empty or does not exist."
            return LineError("model_not_found", message, "body.model", number)
        fault = self._checker.check(number, line)
        return None if fault is None else replace(fault, code=_CODES.get(fault.code, fault.code))


def _fill(body: Any, status: int) -> None:
    """Add what Azure adds: the results of its content filter, and a fraction to a response's time."""
    if not isinstance(body, dict):
        return
    error = body.get("error")
    if isinstance(error, dict) and error.get("code") == "content_filter":
        filtered = _SAFE | {"violence": {"filtered": True, "severity": "medium"}}
        inner = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": filtered}
        error |= {"status": status, "innererror": inner}
    if isinstance(body.get("choices"), list):
        body["prompt_filter_results"] = _PROMPT_FILTER
        for choice in body["choices"]:
            choice["content_filter_results"] = _choice_filter(choice)
    if body.get("object") == "response" and body.get("created_at") is not None:
        body["created_at"] = float(body["created_at"])


def _choice_filter(choice: dict[str, Any]) -> dict[str, Any]:
    if choice.get("finish_reason") != "content_filter":
        return _SAFE
    return _SAFE | {"hate": {"filtered": True, "severity": "medium"}}
