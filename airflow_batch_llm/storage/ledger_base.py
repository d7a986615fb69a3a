"""What all parts of the ledger share: the engine, the clock, the namespace, the events."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, insert, select
from sqlalchemy.exc import IntegrityError

from airflow_batch_llm.core.model import Event
from airflow_batch_llm.storage.engine import make_engine, reading, with_schema, writing
from airflow_batch_llm.storage.records import clean_text, event_from
from airflow_batch_llm.storage.schema import event, meta
from airflow_batch_llm.storage.types import clock

_NAMESPACE = "namespace"
_NAMESPACE_MADE_AT = "namespace_made_at"
_NAMESPACE_LENGTH = 12


class LedgerBase:
    """An open ledger.

    :param url_or_engine: database URL with its driver named, or an engine of ``make_engine``.
    :param schema: schema that holds the tables; None for the connection's default.
    """

    def __init__(self, url_or_engine: str | URL | Engine, *, schema: str | None = None) -> None:
        self.engine = with_schema(make_engine(url_or_engine), schema)
        self.schema = schema or None
        self._namespace: str | None = None

    def namespace(self) -> str:
        """Return this ledger's namespace (12 of ``[a-z0-9]``), generated on first use."""
        if self._namespace is None:
            self._namespace = self._read_meta(_NAMESPACE) or self._make_namespace()
        return self._namespace

    def namespace_made_at(self) -> float:
        """Return when the namespace was generated, seconds since the epoch."""
        self.namespace()
        return float(self._read_meta(_NAMESPACE_MADE_AT) or self.now())

    def now(self) -> float:
        """Return the database's clock."""
        with reading(self.engine) as connection:
            return read_clock(connection)

    def add_event(
        self,
        job_id: str,
        action: str,
        *,
        batch_id: str | None = None,
        actor: str = "machine",
        reason: str = "",
    ) -> None:
        """Append an event that belongs to no transition."""
        with writing(self.engine) as connection:
            append_event(connection, job_id, action, batch_id=batch_id, actor=actor, reason=reason)

    def events(self, job_id: str) -> list[Event]:
        """Return the job's events in the order in which they were written."""
        with reading(self.engine) as connection:
            found = connection.execute(select(event).where(event.c.job_id == job_id).order_by(event.c.id))
            return [event_from(row) for row in found.mappings()]

    def _read_meta(self, name: str) -> str | None:
        with reading(self.engine) as connection:
            return connection.execute(select(meta.c.value).where(meta.c.name == name)).scalar_one_or_none()

    def _make_namespace(self) -> str:
        letters = string.ascii_lowercase + string.digits
        value = "".join(secrets.choice(letters) for _ in range(_NAMESPACE_LENGTH))
        try:
            with writing(self.engine) as connection:
                made_at = repr(read_clock(connection))
                connection.execute(insert(meta).values(name=_NAMESPACE, value=value))
                connection.execute(insert(meta).values(name=_NAMESPACE_MADE_AT, value=made_at))
        except IntegrityError:  # another process was first: its namespace is the ledger's
            return self._read_meta(_NAMESPACE) or value
        return value


def read_clock(connection: Connection) -> float:
    """Return the database's clock."""
    return connection.execute(select(clock())).scalar_one()


def append_event(
    connection: Connection,
    job_id: str,
    action: str,
    *,
    batch_id: str | None = None,
    actor: str = "machine",
    reason: str = "",
) -> None:
    """Append an event in the caller's transaction."""
    values = event_values(job_id, action, batch_id=batch_id, actor=actor, reason=reason)
    connection.execute(insert(event).values(**values, time=clock()))


def append_events(connection: Connection, values: list[dict[str, Any]]) -> None:
    """Append events made by :func:`event_values` in the caller's transaction."""
    insert_rows(connection, event, values, "time")


def insert_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]], *times: str) -> None:
    """Insert rows in one trip, each with the database's clock in the columns ``times``.

    The clock goes in as a value: MySQL's drivers search a statement for many rows with a pattern that
    takes minutes where a function call stands among its values.
    """
    if rows:
        now = dict.fromkeys(times, read_clock(connection))
        connection.execute(insert(table), [{**row, **now} for row in rows])


def event_values(
    job_id: str, action: str, *, batch_id: str | None = None, actor: str = "machine", reason: str = ""
) -> dict[str, Any]:
    """Return the columns of an event, without its time."""
    return {
        "job_id": job_id,
        "batch_id": batch_id,
        "actor": clean_text(actor),
        "action": action,
        "reason": clean_text(reason),
    }
