"""The numbers for monitoring: their names, and how they follow from the ledger.

Nothing here knows Airflow: tasks send them (``operators/metrics.py``), ``batch-llm metrics`` prints them.
What each means and when to worry is in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_batch_llm.core.model import BatchKind, BatchState, JobState, LetterState
from airflow_batch_llm.core.verdicts import Verdict

if TYPE_CHECKING:
    from airflow_batch_llm.core.ledger_port import Ledger
    from airflow_batch_llm.storage.ledger_facts import LedgerFacts

#: Gauges of the whole ledger. Without tags, so that plain StatsD, which has none, shows them right.
LEDGER_GAUGES = (
    "batch_llm.batches.in_flight",
    "batch_llm.batches.oldest_age",
    "batch_llm.batches.stuck_submitting",
    "batch_llm.rows.pending",
    "batch_llm.jobs.halted",
    "batch_llm.dead_letters.open",
    "batch_llm.connections.held",
)
#: Gauges with tag ``conn_id``.
CONNECTION_GAUGES = (
    "batch_llm.connection.batches_in_flight",
    "batch_llm.connection.oldest_batch_age",
    "batch_llm.connection.held",
)
#: Gauges with tag ``dag_id``.
DAG_GAUGES = ("batch_llm.dag.dead_letters_open",)
#: Counters with tags ``conn_id`` and ``dag_id``: name -> field of :class:`Tally`.
COUNTERS = {
    "batch_llm.rows.answered": "answered",
    "batch_llm.rows.dead": "dead",
    "batch_llm.rows.retried": "retried",
    "batch_llm.batches.sent": "sent",
    "batch_llm.batches.ended": "ended",
    "batch_llm.batches.duplicates": "duplicates",
    "batch_llm.jobs.halts": "halts",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A number under its name. Ages are seconds."""

    name: str
    value: float
    tags: Mapping[str, str] = field(default_factory=dict)


def gauges(facts: LedgerFacts, *, conn_id: str | None = None, dag_id: str | None = None) -> Iterator[Sample]:
    """Yield every gauge of the ledger as it is.

    :param conn_id: tell about this connection even where nothing is out: what was above 0 must fall.
    :param dag_id: the same for this DAG.
    """
    connections = facts.connections
    totals = (
        sum(found.in_flight for found in connections.values()),
        max((found.oldest_age for found in connections.values()), default=0.0),
        sum(found.stuck for found in connections.values()),
        sum(found.pending for found in connections.values()),
        facts.halted,
        sum(facts.open_letters.values()),
        len(facts.held),
    )
    for name, value in zip(LEDGER_GAUGES, totals, strict=True):
        yield Sample(name, value)
    for known in sorted({*connections, *facts.held, *([conn_id] if conn_id else [])}):
        found = connections.get(known)
        values = (found.in_flight, found.oldest_age) if found is not None else (0, 0.0)
        for name, value in zip(CONNECTION_GAUGES, (*values, int(known in facts.held)), strict=True):
            yield Sample(name, value, {"conn_id": known})
    for known in sorted({*facts.open_letters, *([dag_id] if dag_id else [])}):
        yield Sample(DAG_GAUGES[0], facts.open_letters.get(known, 0), {"dag_id": known})


@dataclass(frozen=True, slots=True)
class Tally:
    """What a job has come to, in numbers that only grow while it is worked on."""

    answered: int = 0
    dead: int = 0
    retried: int = 0
    sent: int = 0
    ended: int = 0
    duplicates: int = 0
    halts: int = 0


def tally(ledger: Ledger, job_id: str) -> Tally:
    """Read a job's numbers; all 0 where there is no such job.

    :raises LedgerUnavailable, LedgerSchemaError: as every read of the ledger.
    """
    job = ledger.get_job(job_id)
    if job is None:
        return Tally()
    batches = ledger.batches(job_id)
    primary = [batch for batch in batches if batch.kind is BatchKind.PRIMARY]
    letters = ledger.count_dead_letters(job_id)
    return Tally(
        answered=sum(batch.counts.get(Verdict.OK, 0) for batch in primary),
        dead=sum(count for (state, _), count in letters.items() if state is not LetterState.RESOLVED),
        retried=sum(b.requests for b in primary if b.round and b.state is not BatchState.SUPERSEDED),
        sent=sum(batch.submitted_at is not None for batch in batches),
        ended=sum(batch.ended_at is not None for batch in batches),
        duplicates=len(batches) - len(primary),
        halts=int(job.state is JobState.HALTED),
    )


def counted(before: Tally, after: Tally, *, conn_id: str, dag_id: str) -> Iterator[Sample]:
    """Yield the counters that rose."""
    for name, attribute in COUNTERS.items():
        rise = getattr(after, attribute) - getattr(before, attribute)
        if rise > 0:
            yield Sample(name, rise, {"conn_id": conn_id, "dag_id": dag_id})
