"""Result lines of any protocol whose types surprise: read into rows without ever raising."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_batch_llm.backends.openai_answers import shaped
from airflow_batch_llm.backends.tolerant_json import loads_tolerant
from airflow_batch_llm.core.model import Row


def decode_loosely(
    line: bytes, read: Callable[[str, dict[str, Any]], Row], *, id_member: str = "custom_id"
) -> Row:
    """Return the row of a line; one that cannot be read is ``unknown``.

    :param read: makes the row of an object, given its id; it may raise.
    :param id_member: which member names the request. One that is no text names none.
    """
    try:
        value = loads_tolerant(line)
    except (ValueError, RecursionError):
        return shaped("", "not_json")
    if not isinstance(value, dict):
        return shaped("", "not_an_object")
    named = value.get(id_member)
    wire_id = named if isinstance(named, str) else ""
    try:
        return read(wire_id, value)
    except Exception:  # one odd row must never stop the others, whatever it holds
        return shaped(wire_id, "undecodable")
