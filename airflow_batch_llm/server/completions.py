"""Completions: a text goes in and a text comes back, without roles, tools or schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from airflow_batch_llm.server.inputs import texts_of
from airflow_batch_llm.server.replies import (
    BadBody,
    answered,
    check_context,
    check_numbers,
    digest_of,
    failed_in_200,
    read_body,
    size_of,
)
from airflow_batch_llm.server.scenario import RowRule
from airflow_batch_llm.server.simulated import Ask, beginning, say, tokens_of
from airflow_batch_llm.server.wire import Reply, Request

_encoder = msgspec.json.Encoder()
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _Body(msgspec.Struct):
    model: str
    prompt: Any
    max_tokens: int | None = None
    temperature: float | None = None


_body = msgspec.json.Decoder(_Body)


class Completions:
    """The endpoint ``/v1/completions``. Each text of the prompt gets a choice of its own."""

    piece = 1_000
    spoils = frozenset({"error_in_200", "truncated", "content_filter", "empty", "invalid_json"})

    def prompt(self, body: bytes) -> str:
        try:
            return "\n".join(texts_of(_body.decode(body).prompt, "prompt"))
        except (msgspec.MsgspecError, BadBody):
            return ""

    def simulate(self, request: Request, created: int) -> Reply:
        """Answer one request with the simulated model."""

        def answer(raw: bytes) -> tuple[Any, int, int]:
            body = read_body(_body, raw)
            check_numbers(body.temperature, max_tokens=body.max_tokens)
            texts = texts_of(body.prompt, "prompt")
            check_context(sum(map(size_of, texts)), "prompt")
            said = [say(Ask(size_of(text), text, max_tokens=body.max_tokens)) for text in texts]
            taken, given = sum(one.input_tokens for one in said), sum(one.output_tokens for one in said)
            choices = [
                _choice(place, one.text, "stop" if one.whole else "length") for place, one in enumerate(said)
            ]
            return _answer(raw, body.model, choices, taken, given, created), taken, given

        return answered(request, "prompt", answer)

    def spoil(self, reply: Reply, rule: RowRule) -> Reply:
        if rule.fault == "error_in_200":
            return failed_in_200(rule)
        body = _any.decode(reply.body)
        choice = body["choices"][0]
        choice |= _SPOILED[rule.fault](choice.get("text") or "")
        tokens = tokens_of(size_of(choice["text"])) if choice["text"] else 0
        usage = body.get("usage") or {}
        usage |= {"completion_tokens": tokens, "total_tokens": usage.get("prompt_tokens", 0) + tokens}
        return Reply(200, _encoder.encode({**body, "usage": usage}), reply.input_tokens, tokens)


_SPOILED: dict[str, Callable[[str], dict[str, Any]]] = {
    "truncated": lambda text: {"text": beginning(text), "finish_reason": "length"},
    "content_filter": lambda text: {"text": "", "finish_reason": "content_filter"},
    "empty": lambda text: {"text": ""},
    "invalid_json": lambda text: {"text": '{"simulated": '},
}


def _choice(place: int, text: str, finish: str) -> dict[str, Any]:
    return {"index": place, "text": text, "logprobs": None, "finish_reason": finish}


def _answer(
    raw: bytes, model: str, choices: list[dict[str, Any]], taken: int, given: int, created: int
) -> dict[str, Any]:
    return {
        "id": f"cmpl-{digest_of(raw)}",
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": {"prompt_tokens": taken, "completion_tokens": given, "total_tokens": taken + given},
    }
