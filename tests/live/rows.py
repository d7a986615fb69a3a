"""The twenty rows: what a provider's answers differ in, with as few tokens as that takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.core.model import RequestTemplate

#: Most tokens of an answer.
MAX_TOKENS = 64
#: Stands in the row that a provider is to refuse.
REFUSED = "(this one is refused)"

_SYSTEM = {"role": "system", "content": "You are terse. Answer with one word wherever one word is enough."}
_COLOURS = ("red", "green", "blue", "white", "black", "brown", "grey", "pink")
_WORDS = ("run", "green", "house", "slowly", "under", "she", "and", "oh")
_SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["noun", "verb", "adjective", "adverb", "other"]},
        "letters": {"type": "integer"},
    },
    "required": ["kind", "letters"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up_weather",
        "description": "Tells the weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}},
            "required": ["town"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Part:
    """One job of a trial."""

    name: str
    rows: int
    output_schema: dict[str, Any] | None
    bodies: tuple[tuple[str, dict[str, Any]], ...]

    def template(self, model: str) -> RequestTemplate:
        """Return what its requests share."""
        return RequestTemplate(
            CHAT,
            model,
            {"max_tokens": MAX_TOKENS},
            output_schema=self.output_schema,
            cache_prefix=self.output_schema is not None,
            shared_messages=1,
        )

    def drafts(self) -> Iterable[Draft]:
        """Return its rows."""
        return [
            Draft(line=line, custom_id=custom_id, body=body, row={"id": custom_id}, key={"id": custom_id})
            for line, (custom_id, body) in enumerate(self.bodies, start=1)
        ]


def _asked(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [_SYSTEM, {"role": "user", "content": text}], **more}


def _part(name: str, schema: dict[str, Any] | None, bodies: dict[str, dict[str, Any]]) -> Part:
    return Part(name, len(bodies), schema, tuple(bodies.items()))


PLAIN = _part(
    "plain",
    None,
    {
        **{f"colour-{colour}": _asked(f"Answer with the word {colour}.") for colour in _COLOURS},
        "tool": _asked("What is the weather in Paris?", tools=[_TOOL], tool_choice="required"),
        "grüße/你好 \u2028 😀": _asked("Answer with the word für. \u2028 你好 😀"),
        "cut": _asked("Count from one to a hundred in words.", max_tokens=1),
        "refused": _asked(f"Answer with the word no. {REFUSED}", temperature=9),
    },
)
STRUCTURED = _part(
    "structured",
    _SCHEMA,
    {f"word-{word}": _asked(f"Which kind of word is {word!r}? How many letters has it?") for word in _WORDS},
)
PARTS = (PLAIN, STRUCTURED)
