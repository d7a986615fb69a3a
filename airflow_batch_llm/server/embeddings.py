"""Embeddings: unit vectors made of a text's words, so that texts that share words lie near each other.

Each word has a direction of its own, which its hash decides; a text's vector is their sum. Texts without
a word in common are nearly at right angles, and the order of the words makes no difference. That is all
there is to it: "cat" is no nearer to "kitten" than to "invoice".
"""

from __future__ import annotations

import base64
import hashlib
import math
import sys
from array import array
from functools import lru_cache
from typing import Any, Literal

import msgspec

from airflow_batch_llm.server.inputs import texts_of
from airflow_batch_llm.server.replies import (
    BadBody,
    answered,
    check_context,
    failed_in_200,
    read_body,
    size_of,
)
from airflow_batch_llm.server.scenario import RowRule
from airflow_batch_llm.server.simulated import tokens_of
from airflow_batch_llm.server.wire import Reply, Request
from airflow_batch_llm.server.word_match import stems

DIMENSIONS = 256
_MOST_DIMENSIONS = 4_096
_CONTEXT_TOKENS = 8_192
_LANE = 4  # bytes in which one dimension is summed up: room for 16 million words
_MIDDLE = 127.5

_encoder = msgspec.json.Encoder()
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _Body(msgspec.Struct):
    model: str
    input: Any
    dimensions: int = DIMENSIONS
    encoding_format: Literal["float", "base64"] = "float"


_body = msgspec.json.Decoder(_Body)


class Embeddings:
    """The endpoint ``/v1/embeddings``."""

    piece = 32  # a vector of 1,536 floats is 32 KB of JSON
    spoils = frozenset({"error_in_200", "empty"})

    def prompt(self, body: bytes) -> str:
        try:
            return "\n".join(texts_of(_body.decode(body).input, "input"))
        except (msgspec.MsgspecError, BadBody):
            return ""

    def simulate(self, request: Request, created: int) -> Reply:
        """Answer one request with vectors of the simulated model."""

        def answer(raw: bytes) -> tuple[Any, int, int]:
            body = read_body(_body, raw)
            if not 1 <= body.dimensions <= _MOST_DIMENSIONS:
                raise BadBody(
                    f"dimensions must be from 1 to {_MOST_DIMENSIONS}.",
                    code="invalid_value",
                    param="dimensions",
                )
            texts = texts_of(body.input, "input")
            if not all(texts):
                raise BadBody("input holds an empty text.", code="invalid_value", param="input")
            for text in texts:
                check_context(size_of(text), "input", tokens=_CONTEXT_TOKENS)
            data = [_entry(place, text, body) for place, text in enumerate(texts)]
            tokens = sum(tokens_of(size_of(text)) for text in texts)
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return {"object": "list", "data": data, "model": body.model, "usage": usage}, tokens, 0

        return answered(request, "input", answer)

    def spoil(self, reply: Reply, rule: RowRule) -> Reply:
        if rule.fault == "error_in_200":
            return failed_in_200(rule)
        return Reply(200, _encoder.encode({**_any.decode(reply.body), "data": []}), reply.input_tokens)


def _entry(place: int, text: str, body: _Body) -> dict[str, Any]:
    numbers = vector(text, body.dimensions)
    value = numbers.tolist() if body.encoding_format == "float" else _packed(numbers)
    return {"object": "embedding", "index": place, "embedding": value}


def vector(text: str, dimensions: int) -> array[float]:
    """Return the unit vector of a text, in 32-bit floats."""
    words = stems(text) or {text}
    total = sum(_direction(word, dimensions) for word in words)
    summed = array("I", total.to_bytes(_LANE * dimensions, sys.byteorder))
    middle = _MIDDLE * len(words)
    numbers = [number - middle for number in summed]
    length = math.hypot(*numbers)
    return array("f", [number / length for number in numbers])


@lru_cache(maxsize=2_048)
def _direction(word: str, dimensions: int) -> int:
    """Return a word's direction, packed into one number: adding two of them adds each dimension."""
    drawn = hashlib.shake_128(word.encode("utf-8", "surrogatepass")).digest(dimensions)
    return int.from_bytes(array("I", list(drawn)).tobytes(), sys.byteorder)


def _packed(numbers: array[float]) -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")
