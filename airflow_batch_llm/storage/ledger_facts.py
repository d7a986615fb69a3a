"""What the ledger as a whole looks like now: sums for monitoring, read only.

Three queries on indexes, whose work grows with open jobs, open letters and holds, not with rows or with
what is long settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, case, func, select

from airflow_batch_llm.core.model import IN_FLIGHT, NOT_SENT, BatchKind, BatchState, JobState, LetterState
from airflow_batch_llm.storage.engine import reading
from airflow_batch_llm.storage.ledger_base import LedgerBase
from airflow_batch_llm.storage.schema import batch, dead_letter, hold, job
from airflow_batch_llm.storage.types import clock

_OPEN_JOBS = (JobState.STAGING.value, JobState.RUNNING.value, JobState.HALTED.value)


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """The batches of one connection.

    :param in_flight: batches at the provider, or maybe there, that have not been read; duplicates count.
    :param oldest_age: seconds since the oldest of them was sent; 0 where there is none.
    :param stuck: those whose create call was begun and whose lease has ended without news.
    :param pending: rows in batches that are planned, sent or ended and not read yet.
    """

    in_flight: int = 0
    oldest_age: float = 0.0
    stuck: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The ledger at one moment.

    :param connections: connection -> its batches, for those with jobs that are not settled.
    :param halted: jobs that wait for a person.
    :param open_letters: DAG -> dead letters that nobody has decided about.
    :param held: connections that are held.
    """

    connections: Mapping[str, ConnectionFacts] = field(default_factory=dict)
    halted: int = 0
    open_letters: Mapping[str, int] = field(default_factory=dict)
    held: frozenset[str] = frozenset()


def read_facts(ledger: LedgerBase) -> LedgerFacts:
    """Read them.

    :raises LedgerUnavailable, LedgerSchemaError: as every read of the ledger.
    """
    with reading(ledger.engine) as connection:
        halted = select(func.count()).where(job.c.state == JobState.HALTED.value)
        letters = (
            select(dead_letter.c.dag_id, func.count())
            .where(dead_letter.c.state == LetterState.OPEN.value)
            .group_by(dead_letter.c.dag_id)
        )
        return LedgerFacts(
            connections=_connections(connection),
            halted=connection.execute(halted).scalar_one(),
            open_letters={row[0]: row[1] for row in connection.execute(letters)},
            held=frozenset(connection.execute(select(hold.c.conn_id)).scalars()),
        )


def _connections(connection: Connection) -> dict[str, ConnectionFacts]:
    t = batch.c
    in_flight = t.state.in_([state.value for state in IN_FLIGHT])
    unread = t.state.in_([state.value for state in IN_FLIGHT | NOT_SENT])
    stuck = and_(t.state == BatchState.SUBMITTING.value, t.lease_until < clock())
    began = case((in_flight, func.coalesce(t.submitted_at, t.updated_at)))
    pending = case((t.kind == BatchKind.PRIMARY.value, t.requests), else_=0)
    query = (
        select(t.conn_id, _count(in_flight), clock() - func.min(began), _count(stuck), func.sum(pending))
        .select_from(job.join(batch, t.job_id == job.c.job_id))
        .where(job.c.state.in_(_OPEN_JOBS), unread)
        .group_by(t.conn_id)
    )
    return {
        conn_id: ConnectionFacts(int(flying), max(float(age or 0.0), 0.0), int(late), int(rows))
        for conn_id, flying, age, late, rows in connection.execute(query)
    }


def _count(condition: Any) -> Any:
    return func.sum(case((condition, 1), else_=0))
