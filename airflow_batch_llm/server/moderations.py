"""Moderations: flags by a small list of words. Always the same, and no judgement of anything.

The categories are those of OpenAI's omni-moderation models. Pictures are not looked at.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from airflow_batch_llm.server.inputs import texts_of
from airflow_batch_llm.server.replies import BadBody, answered, digest_of, failed_in_200, read_body
from airflow_batch_llm.server.scenario import RowRule
from airflow_batch_llm.server.wire import Reply, Request
from airflow_batch_llm.server.word_match import stems

_encoder = msgspec.json.Encoder()
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

#: Category: the words that flag it. One that is part of another (``a/b``) flags that one too.
_WORDS = """
harassment: idiot moron loser stupid
harassment/threatening: threaten threat
hate: hate vermin subhuman
hate/threatening: exterminate
illicit: shoplift counterfeit launder smuggle
illicit/violent: bomb explosive
self-harm: anorexia
self-harm/intent: suicide suicidal
self-harm/instructions: overdose
sexual: nude porn erotic
sexual/minors:
violence: kill attack stab shoot murder beat
violence/graphic: gore dismember
"""
_FLAGGING = {
    category: stems(words) for category, words in (line.split(":") for line in _WORDS.strip().splitlines())
}
_OF_PICTURES = ("self-harm", "sexual", "violence")
_NOT_OF_PICTURES = ("sexual/minors",)


class _Body(msgspec.Struct):
    model: str
    input: Any


_body = msgspec.json.Decoder(_Body)


class Moderations:
    """The endpoint ``/v1/moderations``. It is free: no tokens are counted."""

    piece = 1_000
    spoils = frozenset({"error_in_200", "empty"})

    def prompt(self, body: bytes) -> str:
        try:
            return "\n".join(text for text, _ in _asked(_body.decode(body).input))
        except (msgspec.MsgspecError, BadBody):
            return ""

    def simulate(self, request: Request, created: int) -> Reply:
        """Answer one request with what the list of words says."""

        def answer(raw: bytes) -> tuple[Any, int, int]:
            body = read_body(_body, raw)
            results = [_result(text, pictures) for text, pictures in _asked(body.input)]
            return {"id": f"modr-{digest_of(raw)}", "model": body.model, "results": results}, 0, 0

        return answered(request, "input", answer)

    def spoil(self, reply: Reply, rule: RowRule) -> Reply:
        if rule.fault == "error_in_200":
            return failed_in_200(rule)
        return Reply(200, _encoder.encode({**_any.decode(reply.body), "results": []}))


def _asked(value: Any) -> list[tuple[str, bool]]:
    """Return each input's text and whether a picture is with it. Parts are one input together."""
    if not isinstance(value, list) or not value or not all(isinstance(part, dict) for part in value):
        return [(text, False) for text in texts_of(value, "input")]
    texts, pictures = [], False
    for part in value:
        if part.get("type") == "image_url":
            pictures = True
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise BadBody("A part of the input has the wrong type.", code="invalid_type", param="input")
    return [("\n".join(texts), pictures)]


def _result(text: str, pictures: bool) -> dict[str, Any]:
    words = stems(text)
    named = {category for category, flagging in _FLAGGING.items() if flagging & words}
    found = {category: category in named or _has_part(category, named) for category in _FLAGGING}
    return {
        "flagged": any(found.values()),
        "categories": found,
        "category_scores": {category: _score(text, category, hit) for category, hit in found.items()},
        "category_applied_input_types": {
            category: ["text", "image"] if pictures and _is_of_pictures(category) else ["text"]
            for category in found
        },
    }


def _has_part(category: str, named: set[str]) -> bool:
    return any(part.startswith(f"{category}/") for part in named)


def _is_of_pictures(category: str) -> bool:
    return category.partition("/")[0] in _OF_PICTURES and category not in _NOT_OF_PICTURES


def _score(text: str, category: str, hit: bool) -> float:
    """Return a score that depends on text and category alone: above one half where it is flagged."""
    seed = f"{category}\0{text}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.blake2b(seed, digest_size=4).digest(), "big") / (1 << 32)
    return round(0.6 + 0.39 * drawn if hit else 0.01 * drawn, 6)
