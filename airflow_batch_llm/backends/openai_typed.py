"""Result lines of the common kinds, read into typed structures that build nothing they do not need.

One structure fits all endpoints: which it was, its filled member says. A line whose types surprise it is
left to the general path of ``openai_rows``, as is every line that is no plain answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_batch_llm.backends.openai_answers import MODEL_LIMIT, moderation_output
from airflow_batch_llm.backends.openai_usage import MAX_TOKENS, NO_USAGE
from airflow_batch_llm.backends.openai_vectors import vector_of
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict

_OK = Verdict.OK


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = 0


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None
    prompt_token_details: _InputDetails | None = None  # Mistral, like the next
    num_cached_tokens: int | None = 0


class _Message(msgspec.Struct, gc=False):
    content: str
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str = ""


class _Item(msgspec.Struct, gc=False):
    type: str
    content: list[_Part] | None = None


class _Vector(msgspec.Struct, gc=False):
    embedding: list[float] | str


class _Body(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    model: str = ""
    usage: _Usage | None = None
    error: None = None
    data: list[_Vector] = []
    results: list[dict[str, Any]] = []
    output: list[_Item] = []
    status: str = ""


class _Response(msgspec.Struct, gc=False):
    body: _Body
    status_code: int


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    response: _Response
    error: None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def plain_answer(line: bytes) -> Row | None:
    """Return the row of a plain answer, None for any other line, readable or not."""
    try:
        parsed = _decode_line(line)
        response = parsed.response
        body = response.body
        if response.status_code != 200:
            return None
        text, finish = None, ""
        output: Any = None
        if body.choices:
            text, finish = _chosen(body.choices[0]), "stop"
            if text is None:
                return None
        elif body.data:
            output = vector_of(body.data[0].embedding) if len(body.data) == 1 else None
            if not output:
                return None
        elif body.output:
            text, finish = _said(body), "completed"
            if text is None:
                return None
        else:
            output = moderation_output(body.results) if len(body.results) == 1 else None
            if output is None:
                return None
        return Row(
            parsed.custom_id, _OK, "", "", text, output, finish, body.model[:MODEL_LIMIT],
            _typed_usage(body.usage),
        )  # fmt: skip
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def _chosen(choice: _Choice) -> str | None:
    """Return the text of a chat answer or a completion that stopped by itself."""
    if choice.finish_reason != "stop":
        return None
    message = choice.message
    if message is None:
        text = choice.text
    elif message.refusal or message.tool_calls:
        return None
    else:
        text = message.content
    return text if text and not text.isspace() else None


def _said(body: _Body) -> str | None:
    """Return the text of a response that is complete and made of one message."""
    if body.status != "completed":
        return None
    text = None
    for item in body.output:
        if item.type == "message" and text is None and item.content:
            if any(part.type != "output_text" for part in item.content):
                return None
            text = item.content[0].text if len(item.content) == 1 else "".join(p.text for p in item.content)
        elif item.type != "reasoning":
            return None
    return text if text and not text.isspace() else None


def _typed_usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return NO_USAGE
    prompt = usage.prompt_tokens_details or usage.input_tokens_details or usage.prompt_token_details
    completion = usage.completion_tokens_details or usage.output_tokens_details
    counts = (
        usage.prompt_tokens or usage.input_tokens,
        usage.completion_tokens or usage.output_tokens,
        (prompt.cached_tokens if prompt is not None else 0) or usage.num_cached_tokens or 0,
        (prompt.cache_write_tokens or 0) if prompt is not None else 0,
        (completion.reasoning_tokens or 0) if completion is not None else 0,
    )
    if min(counts) < 0 or max(counts) > MAX_TOKENS:
        raise ValueError("token counts out of range")
    return Usage(*counts)
