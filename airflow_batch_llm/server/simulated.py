"""The simulated model: no model at all, but the same answer to the same question, always.

It estimates a token for every four bytes, keeps to ``max_tokens``, and fills JSON schemas (enum
values by the words of the last user message). What it says means nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_batch_llm.server.schema_instances import make_instance

MODEL = "simulated"
CONTEXT_TOKENS = 128_000
REFUSAL = "I'm sorry, I can't help with that."
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked: the whole prompt's size in bytes, the last user message, and the form of the answer.

    :param schema: JSON schema of the answer; None with ``as_json`` false: plain text.
    :param stop: texts before the first of which the answer ends.
    """

    prompt_bytes: int
    last_user: str
    schema: Any = None
    as_json: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """The answer.

    :param whole: false where ``max_tokens`` cut it.
    :param stopped_by: the stop text that ended it.
    """

    text: str
    whole: bool
    input_tokens: int
    output_tokens: int
    stopped_by: str | None = None


def say(ask: Ask) -> Said:
    """Answer. :raises SchemaError: the schema cannot be followed."""
    text, stopped_by = _before_stop(_text(ask), ask.stop)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    tokens = tokens_of(size)
    whole = ask.max_tokens is None or tokens <= ask.max_tokens
    if not whole:
        assert ask.max_tokens is not None
        text, tokens = cut(text, ask.max_tokens), ask.max_tokens
    return Said(text, whole, tokens_of(ask.prompt_bytes), tokens, stopped_by if whole else None)


def think(last_user: str) -> str:
    """Return what is thought before an answer, where that is asked for."""
    return f"Simulated thinking about {len(last_user)} characters."


def _before_stop(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """Return a text up to the first of these, and which it was."""
    found = [(text.find(one), one) for one in stop if one in text]
    if not found:
        return text, None
    place, one = min(found)
    return text[:place], one


def tokens_of(size: int) -> int:
    """Estimate tokens from bytes: one for every four, at least one."""
    return max(1, -(-size // 4))


def cut(text: str, tokens: int) -> str:
    """Return as much of the text as so many tokens hold."""
    return text.encode("utf-8", "replace")[: tokens * 4].decode("utf-8", "ignore")


def beginning(text: str) -> str:
    """Return what is left of an answer that a scenario cuts off."""
    return cut(text, max(1, len(text.encode()) // 8))


def _text(ask: Ask) -> str:
    if ask.schema is not None:
        return _encoder.encode(make_instance(ask.schema, ask.last_user)).decode("utf-8")
    digest = hashlib.blake2b(ask.last_user.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    said = f"Simulated answer {digest}: {' '.join(ask.last_user[:160].split()[:12])}"
    return _encoder.encode({"answer": said}).decode("utf-8") if ask.as_json else said
