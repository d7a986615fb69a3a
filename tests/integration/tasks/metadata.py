"""Everything that Airflow keeps about its runs, as text to search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def rows_holding(needle: str) -> list[str]:
    """Return ``table.column`` of every value in the metadata database that holds the text."""
    from airflow.utils.session import create_session
    from sqlalchemy import MetaData, select

    found: set[str] = set()
    with create_session() as session:
        metadata = MetaData()
        metadata.reflect(session.get_bind())
        for table in metadata.sorted_tables:
            for row in session.execute(select(table)).mappings():
                found |= {f"{table.name}.{column}" for column, value in row.items() if needle in _text(value)}
    found |= {"trigger.encrypted_kwargs" for kwargs in trigger_kwargs() if needle in json.dumps(kwargs)}
    return sorted(found)


def trigger_kwargs() -> Iterator[dict[str, Any]]:
    """Yield the arguments of every trigger in the database, decrypted."""
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        yield from [dict(trigger.kwargs) for trigger in session.scalars(select(Trigger))]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
