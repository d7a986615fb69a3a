"""What the simulated endpoints share: reading a body, refusing it, OpenAI's error envelope."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from airflow_batch_llm.server.scenario import RowRule
from airflow_batch_llm.server.schema_instances import SchemaError
from airflow_batch_llm.server.simulated import CONTEXT_TOKENS, tokens_of
from airflow_batch_llm.server.wire import Reply, Request

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


class BadBody(Exception):
    """The endpoint refuses the body: ``code``, ``param``."""

    def __init__(self, message: str, *, code: str | None, param: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def answered(request: Request, schema_param: str, answer: Callable[[bytes], tuple[Any, int, int]]) -> Reply:
    """Return what ``answer`` makes of a body (with its tokens in and out), or why it was refused."""
    try:
        body, input_tokens, output_tokens = answer(request.body)
    except BadBody as e:
        return error_reply(400, str(e), code=e.code, param=e.param)
    except SchemaError as e:
        return error_reply(400, str(e), code="invalid_json_schema", param=schema_param)
    return Reply(200, _encoder.encode(body), input_tokens, output_tokens)


def read_body(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode a body. :raises BadBody: a member is missing or has the wrong type."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as e:
        # Types and the place, never a value: "Expected `int`, got `str` - at `$.max_tokens`".
        text = str(e)
        missing = "missing required field" in text
        param = text.split("`")[1] if missing else text.rpartition("$.")[2].rstrip("`") or None
        raise BadBody(
            "A required parameter is missing." if missing else "A parameter has the wrong type.",
            code="missing_required_parameter" if missing else "invalid_type",
            param=param,
        ) from e


def check_numbers(temperature: float | None, **limits: int | None) -> None:
    """:raises BadBody: an output limit is below 1, or the temperature is not from 0 to 2."""
    for name, value in limits.items():
        if value is not None and value < 1:
            raise BadBody(f"{name} must be at least 1.", code="integer_below_min_value", param=name)
    if temperature is not None and not 0 <= temperature <= 2:
        raise BadBody("temperature must be from 0 to 2.", code="invalid_value", param="temperature")


def check_context(size: int, param: str, *, tokens: int = CONTEXT_TOKENS) -> None:
    """:raises BadBody: so many bytes are more than the model's context holds."""
    if tokens_of(size) > tokens:
        raise BadBody(
            f"The {param} is longer than the context of {tokens} tokens.",
            code="context_length_exceeded",
            param=param,
        )


def size_of(text: str) -> int:
    """Return the bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def digest_of(request: bytes) -> str:
    """Return the part of an answer's id that depends on the question alone."""
    return hashlib.blake2b(request, digest_size=12).hexdigest()


def failed_in_200(rule: RowRule) -> Reply:
    """Return an error that comes with status 200."""
    body = error_body("The model failed.", kind="server_error", code=rule.code or "internal_error")
    return Reply(200, _encoder.encode(body))


def error_body(message: str, *, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """Return OpenAI's error envelope."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_reply(
    status: int,
    message: str,
    *,
    code: str | None,
    param: str | None = None,
    kind: str = "invalid_request_error",
) -> Reply:
    """Return a failed row's reply."""
    return Reply(status, _encoder.encode(error_body(message, kind=kind, code=code, param=param)))
