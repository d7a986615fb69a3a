"""What requests of each endpoint of the OpenAI family may hold: one table, read by the line encoder.

A member that an endpoint lacks is refused by its name before anything is sent, with what to do instead.
What no endpoint is known to lack goes through: servers have parameters of their own, and say themselves
what they do not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES

#: The caller's name of the output limit, whatever an endpoint calls it.
MAX_TOKENS = "max_tokens"


class SchemaPlace(StrEnum):
    """Which member of a body carries the output schema."""

    RESPONSE_FORMAT = "response_format"
    TEXT_FORMAT = "text"


@dataclass(frozen=True, slots=True)
class EndpointForm:
    """What the bodies of one endpoint hold.

    :param main: members of which a caller-level body holds at least one; empty where that is not looked at.
    :param max_tokens: name of the output limit; "" for the dialect's own, None where there is no limit.
    :param schema: where an output schema goes, None where answers have no schema.
    :param lacks: member -> what to do instead.
    """

    main: tuple[str, ...] = ()
    max_tokens: str | None = MAX_TOKENS
    schema: SchemaPlace | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)


_NO_WORDS = "its answer is not made of words"
_CHAT_ONLY = "use the endpoint 'chat' or 'responses'"
_LACK_TOOLS = dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "functions"), _CHAT_ONLY)
_SAMPLING = dict.fromkeys(
    (
        "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "n", "best_of", "stop", "seed",
        "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "tools", "tool_choice",
        "response_format", "reasoning_effort", "reasoning", "text", "verbosity",
    ),
    _NO_WORDS,
)  # fmt: skip

FORMS: dict[str, EndpointForm] = {
    CHAT: EndpointForm(max_tokens="", schema=SchemaPlace.RESPONSE_FORMAT),
    COMPLETIONS: EndpointForm(
        main=("prompt",),
        lacks={
            **_LACK_TOOLS,
            "messages": _CHAT_ONLY,
            "input": "give 'prompt'",
            "max_completion_tokens": f"give {MAX_TOKENS!r}",
            "reasoning_effort": _CHAT_ONLY,
        },
    ),
    RESPONSES: EndpointForm(
        main=("messages", "input", "prompt"),  # here "prompt" is one stored at the provider
        max_tokens="max_output_tokens",
        schema=SchemaPlace.TEXT_FORMAT,
        lacks={
            "max_completion_tokens": f"give {MAX_TOKENS!r}",
            "response_format": "give an output schema, or text={'format': …}",
            "reasoning_effort": "give reasoning={'effort': …}",
            "verbosity": "give text={'verbosity': …}",
            "functions": "give 'tools'",
            "background": "the answer would not be in the batch's results",
        },
    ),
    EMBEDDINGS: EndpointForm(
        main=("input",),
        max_tokens=None,
        lacks={**_SAMPLING, "messages": "give 'input'", "prompt": "give 'input'"},
    ),
    MODERATIONS: EndpointForm(
        main=("input",),
        max_tokens=None,
        lacks={
            **_SAMPLING,
            "messages": "give 'input'",
            "prompt": "give 'input'",
            "dimensions": "it makes no vectors",
            "encoding_format": "it makes no vectors",
        },
    ),
}
