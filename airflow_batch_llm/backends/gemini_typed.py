"""Result lines of the common kinds, read into typed structures that build nothing they do not need.

A line whose types surprise these is left to the general path of ``gemini_rows``, as is every line that is no
plain answer.
"""

from __future__ import annotations

import msgspec

from airflow_batch_llm.backends.gemini_usage import usage_of
from airflow_batch_llm.backends.openai_answers import MODEL_LIMIT
from airflow_batch_llm.backends.openai_usage import MAX_TOKENS, NO_USAGE
from airflow_batch_llm.backends.openai_vectors import vector_of
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict

_OK = Verdict.OK


class _Part(msgspec.Struct, gc=False):
    text: str  # a part that is no text is left to the general path
    thought: bool = False
    functionCall: None = None


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part]


class _Candidate(msgspec.Struct, gc=False):
    content: _Content
    finishReason: str


class _Counts(msgspec.Struct, gc=False):
    promptTokenCount: int = 0
    candidatesTokenCount: int = 0
    cachedContentTokenCount: int = 0
    thoughtsTokenCount: int = 0
    toolUsePromptTokenCount: int = 0


class _Embedding(msgspec.Struct, gc=False):
    values: list[float]


class _Response(msgspec.Struct, gc=False):
    candidates: list[_Candidate] = []
    usageMetadata: _Counts | None = None
    modelVersion: str = ""
    embedding: _Embedding | None = None
    tokenCount: int = 0
    promptFeedback: msgspec.Raw | None = None


class _Line(msgspec.Struct, gc=False):
    key: str
    response: _Response
    error: None = None
    status: str | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def plain_answer(line: bytes) -> Row | None:
    """Return the row of a plain answer, None for any other line, readable or not."""
    try:
        parsed = _decode_line(line)
        response = parsed.response
        if parsed.status or not parsed.key:
            return None
        if response.candidates:
            text = _said(response.candidates[0])
            if text is None:
                return None
            usage, model = _counted(response.usageMetadata), response.modelVersion[:MODEL_LIMIT]
            return Row(parsed.key, _OK, "", "", text, None, "stop", model, usage)
        vector = vector_of(response.embedding.values) if response.embedding is not None else None
        if not vector or not 0 <= response.tokenCount <= MAX_TOKENS:
            return None
        usage = Usage(response.tokenCount) if response.tokenCount else _counted(response.usageMetadata)
        return Row(parsed.key, _OK, output=vector, usage=usage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def _said(candidate: _Candidate) -> str | None:
    """Return the text of an answer that stopped by itself."""
    if candidate.finishReason != "STOP":
        return None
    parts = candidate.content.parts
    if len(parts) == 1 and not parts[0].thought:
        text = parts[0].text
    else:
        text = "".join(part.text for part in parts if not part.thought)
    return text if text and not text.isspace() else None


def _counted(counts: _Counts | None) -> Usage:
    if counts is None:
        return NO_USAGE
    found = (
        counts.promptTokenCount,
        counts.toolUsePromptTokenCount,
        counts.cachedContentTokenCount,
        counts.candidatesTokenCount,
        counts.thoughtsTokenCount,
    )
    if min(found) < 0 or max(found) > MAX_TOKENS:
        raise ValueError("token counts out of range")
    prompt, tools, cached, said, thought = found
    return usage_of(prompt=prompt, tools=tools, cached=cached, said=said, thought=thought)
