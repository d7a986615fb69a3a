"""Every change of a connection's hold: at most one row a connection, one compare-and-set on its version."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_batch_llm.core.model import Hold, HoldOrigin
from airflow_batch_llm.storage.engine import reading, writing
from airflow_batch_llm.storage.ledger_base import LedgerBase, append_event
from airflow_batch_llm.storage.records import clean_text, hold_from
from airflow_batch_llm.storage.schema import hold as hold_table
from airflow_batch_llm.storage.types import clock

#: A hold's first version is below this. Few enough bits that it can rise for ever.
_FIRST_VERSIONS = 1 << 48


class HoldTransitions(LedgerBase):
    """The part of the ledger that holds and releases connections.

    Events stand under the job that made the hold; those of a person's hold under no job (``""``).
    """

    def holds(self) -> list[Hold]:
        """Return the held connections, by name."""
        query = select(hold_table).order_by(hold_table.c.conn_id)
        with reading(self.engine) as connection:
            return [hold_from(row) for row in connection.execute(query).mappings()]

    def get_hold(self, conn_id: str) -> Hold | None:
        """Return the connection's hold, None where it is not held."""
        with reading(self.engine) as connection:
            return _read_hold(connection, conn_id)

    def hold_connection(
        self,
        conn_id: str,
        *,
        code: str,
        origin: HoldOrigin,
        job_id: str = "",
        batch_id: str | None = None,
        actor: str = "machine",
        reason: str,
        probe_at: float | None,
    ) -> tuple[Hold, bool]:
        """Insert the hold if absent. Returns what stands now and whether this call made it.

        A person's hold takes the place of one that the machine made.

        :param probe_at: when one job may try again, None for never.
        """
        values = {
            "code": code,
            "origin": HoldOrigin(origin).value,
            "job_id": job_id,
            "batch_id": batch_id,
            "actor": clean_text(actor),
            "reason": clean_text(reason),
            "probe_at": probe_at,
            "probes": 0,
            "probe_batch_id": None,
            "version": secrets.randbelow(_FIRST_VERSIONS),
        }
        while True:
            found = self.get_hold(conn_id)
            if found is None:
                made = self._insert_hold(conn_id, values)
            elif origin == HoldOrigin.PERSON and found.origin is not HoldOrigin.PERSON:
                made = self._change_hold(found, {**values, "held_at": clock()}, "connection_held", reason)
            else:
                return found, False
            if made is not None:
                return made, True

    def take_probe(self, hold: Hold, *, probe_at: float, batch_id: str | None = None) -> Hold | None:
        """Take the right to try, once ``hold.probe_at`` has come: probes + 1, the next trial at ``probe_at``.

        :param batch_id: the batch of ours that tries.
        """
        values = {
            "probe_at": probe_at,
            "probes": hold.probes + 1,
            "probe_batch_id": batch_id,
            "version": hold.version + 1,
        }
        reason = f"trial {hold.probes + 1}" + (f" with batch {batch_id}" if batch_id else "")
        due = hold_table.c.probe_at <= clock()
        return self._change_hold(hold, values, "probe_taken", reason, due)

    def hurry_probe(self, conn_id: str, *, actor: str = "machine", reason: str = "") -> Hold | None:
        """Let the next trial be due now, whatever tries at this moment; nothing for a person's hold."""
        while (hold := self.get_hold(conn_id)) is not None and hold.origin is not HoldOrigin.PERSON:
            values = {
                "probe_at": clock(),
                "probes": 0,
                "probe_batch_id": None,
                "version": hold.version + 1,
            }
            hurried = self._change_hold(hold, values, "probe_hurried", reason, actor=actor)
            if hurried is not None:
                return hurried
        return None

    def release_connection(
        self, conn_id: str, *, actor: str, reason: str, only: Hold | None = None
    ) -> Hold | None:
        """Delete the hold and return it as it was, None where there is none.

        :param only: delete it only while it is still just so.
        """
        t = hold_table.c
        while (hold := only or self.get_hold(conn_id)) is not None:
            with writing(self.engine) as connection:
                gone = delete(hold_table).where(t.conn_id == conn_id, t.version == hold.version)
                if connection.execute(gone).rowcount == 1:
                    _append(connection, hold, "connection_released", actor, reason)
                    return hold
            if only is not None:
                return None
        return None

    def _insert_hold(self, conn_id: str, values: Mapping[str, Any]) -> Hold | None:
        try:
            with writing(self.engine) as connection:
                connection.execute(insert(hold_table).values(conn_id=conn_id, **values, held_at=clock()))
                made = _existing_hold(connection, conn_id)
                _append(connection, made, "connection_held", made.actor, made.reason)
                return made
        except IntegrityError:  # somebody held it between the look and the insert
            return None

    def _change_hold(
        self,
        hold: Hold,
        values: Mapping[str, Any],
        action: str,
        reason: str,
        *also: Any,
        actor: str | None = None,
    ) -> Hold | None:
        t = hold_table.c
        with writing(self.engine) as connection:
            same = update(hold_table).where(t.conn_id == hold.conn_id, t.version == hold.version, *also)
            if connection.execute(same.values(**values)).rowcount != 1:
                return None
            changed = _existing_hold(connection, hold.conn_id)
            by = actor or (changed.actor if action == "connection_held" else "machine")
            _append(connection, changed, action, by, reason)
            return changed


def _append(connection: Connection, hold: Hold, action: str, actor: str, reason: str) -> None:
    text = f"connection {hold.conn_id}" + (f", {hold.code}" if hold.code else "")
    text += f": {reason}" if reason else ""
    append_event(connection, hold.job_id, action, batch_id=hold.batch_id, actor=actor, reason=text)


def _read_hold(connection: Connection, conn_id: str) -> Hold | None:
    query = select(hold_table).where(hold_table.c.conn_id == conn_id)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else hold_from(row)


def _existing_hold(connection: Connection, conn_id: str) -> Hold:
    query = select(hold_table).where(hold_table.c.conn_id == conn_id)
    return hold_from(connection.execute(query).mappings().one())
