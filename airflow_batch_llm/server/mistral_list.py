"""Which of Mistral's jobs a list call asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import msgspec
from starlette.datastructures import QueryParams

from airflow_batch_llm.server.batches import BatchStore, StoredBatch
from airflow_batch_llm.server.mistral_lines import MistralDialect
from airflow_batch_llm.server.mistral_objects import status_of, whole_number
from airflow_batch_llm.server.openai_objects import BadCall

_KNOWN = frozenset(
    {
        "page", "page_size", "model", "agent_id", "metadata", "created_after", "created_by_me", "status",
        "order_by",
    }
)  # fmt: skip
_MOST = 100

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A list call's query.

    :param created_after: unix seconds.
    """

    page: int
    size: int
    model: str | None
    agent_id: str | None
    metadata: Mapping[str, str]
    created_after: float | None
    statuses: Sequence[str]
    newest_first: bool

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """Read a query. :raises BadCall: 422, a member of it is wrong."""
        order = query.get("order_by", "-created")
        if order not in ("created", "-created"):
            raise _wrong("order_by")
        return cls(
            page=whole_number(query.get("page")),
            size=min(whole_number(query.get("page_size"), default=100), _MOST),
            model=query.get("model"),
            agent_id=query.get("agent_id"),
            metadata=_metadata(query),
            created_after=_seconds(query.get("created_after")),
            statuses=query.getlist("status"),
            newest_first=order == "-created",
        )

    def all_of(self, batches: BatchStore) -> list[StoredBatch]:
        """Return every job that is asked for, whatever the page."""
        found: list[StoredBatch] = []
        after, more = None, True
        while more:
            some, more = batches.page(after=after, limit=500, dialect=MistralDialect.name)
            found += [batch for batch in some if self._fits(batch)]
            after = some[-1].id if some else None
        return found if self.newest_first else found[::-1]

    def page_of(self, found: Sequence[StoredBatch]) -> Sequence[StoredBatch]:
        """Return the page's part."""
        return found[self.page * self.size : (self.page + 1) * self.size]

    def _fits(self, batch: StoredBatch) -> bool:
        if self.agent_id is not None or self.model not in (None, batch.model):
            return False
        if self.statuses and status_of(batch) not in self.statuses:
            return False
        if self.created_after is not None and batch.created_at < int(self.created_after):
            return False
        held = _any.decode(batch.metadata) if batch.metadata else {}
        return all(held.get(name) == value for name, value in self.metadata.items())


def _metadata(query: QueryParams) -> dict[str, str]:
    """Read the metadata in any of its forms: one JSON value, ``metadata[key]``, or its keys alone."""
    wanted: dict[str, str] = {}
    for name, value in query.multi_items():
        if name == "metadata":
            wanted |= _json_object(value)
        elif name.startswith("metadata[") and name.endswith("]"):
            wanted[name[len("metadata[") : -1]] = value
        elif name not in _KNOWN:
            wanted[name] = value
    return wanted


def _json_object(text: str) -> dict[str, str]:
    try:
        value = _any.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeError) as e:
        raise _wrong("metadata") from e
    if not isinstance(value, dict):
        raise _wrong("metadata")
    return {name: str(one) for name, one in value.items()}


def _seconds(given: str | None) -> float | None:
    if given is None:
        return None
    try:
        return (
            float(given) if given.replace(".", "", 1).isdigit() else datetime.fromisoformat(given).timestamp()
        )
    except ValueError as e:
        raise _wrong("created_after") from e


def _wrong(param: str) -> BadCall:
    return BadCall("Input is not valid.", status=422, code="value_error", param=param)
