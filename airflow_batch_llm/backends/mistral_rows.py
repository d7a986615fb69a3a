"""Mistral's result lines, decoded into rows: those of the OpenAI family, but for a few habits of its own.

Its tool calls may lack a type and hold their arguments as an object, and what its moderations say holds no
``flagged``.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from airflow_batch_llm.backends.loose_rows import decode_loosely
from airflow_batch_llm.backends.openai_answers import answer_row, shaped
from airflow_batch_llm.backends.openai_rows import decode_row as decode_family_row
from airflow_batch_llm.backends.tolerant_json import loads_tolerant
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.model import Row
from airflow_batch_llm.core.verdicts import Verdict

_OTHER_BODY = "no_choices"
_CONTEXT_FULL = "model_length"


def decode_row(line: bytes) -> Row:
    """Decode one result line. Never raises: a line that cannot be read is ``unknown``."""
    row = decode_family_row(line)
    if row.code == _OTHER_BODY:
        return decode_loosely(line, _moderation_row)
    if row.finish_reason == _CONTEXT_FULL:
        return structs.replace(row, finish_reason="length")
    if row.verdict is Verdict.OK and _are_calls(row.output):
        return decode_loosely(line, lambda wire_id, value: _with_calls(row))
    return row


def _moderation_row(wire_id: str, value: dict[str, Any]) -> Row:
    body = value["response"].get("body")
    if isinstance(body, str):
        body = loads_tolerant(body.encode())
    results = body.get("results") if isinstance(body, dict) else None
    if not isinstance(results, list) or not all(isinstance(one.get("categories"), dict) for one in results):
        return shaped(wire_id, _OTHER_BODY)
    # OpenAI's meaning of the word: any of the categories applies.
    whole = [{"flagged": any(one["categories"].values()), **one} for one in results]
    return answer_row(wire_id, {**body, "results": whole})


def _are_calls(output: Any) -> bool:
    return isinstance(output, list) and bool(output) and all(isinstance(call, dict) for call in output)


def _with_calls(row: Row) -> Row:
    """Return the row with its calls in OpenAI's form, where an empty text is none."""
    return structs.replace(row, output=[_call(call) for call in row.output], text=row.text or None)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = jsonl.dumps(arguments if arguments is not None else {}).decode()
    called = {"name": function.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": called}
