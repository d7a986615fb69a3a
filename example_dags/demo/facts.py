"""What really happened to a night's tickets, read from rows: three SQLite files and the results folder.

Nothing here asks the package: the source and the sink are counted by SQL in the warehouse, dead letters
and batches by SQL in the ledger, answers by reading the result files, payments by SQL in the local
server's charge log. So the sums can disagree, and the demo would say so.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Places:
    """Where the rows are.

    :param warehouse: SQLite file with ``tickets`` and ``ticket_labels``.
    :param state: AIRFLOW_HOME's ``batch_llm`` folder: the ledger and the workspace.
    :param server: SQLite file of the local batch server.
    """

    warehouse: Path
    state: Path
    server: Path

    @property
    def ledger(self) -> Path:
        """The ledger's SQLite file."""
        return self.state / "ledger.db"

    @property
    def workspace(self) -> Path:
        """Requests, raw results and answers."""
        return self.state / "workspace"


@dataclass(frozen=True)
class Night:
    """One run of the nightly DAG. ``table`` is where its answers land."""

    dag_id: str
    run_id: str
    start: datetime
    end: datetime
    table: str = "ticket_labels"


@dataclass(frozen=True)
class Answered:
    """One line of the result files."""

    ticket: str
    wire_id: str
    round: int


@dataclass(frozen=True)
class Dead:
    """One row of ``batch_llm_dead_letter``."""

    ticket: str
    wire_id: str
    code: str
    state: str
    exhausted: bool


@dataclass(frozen=True)
class Sent:
    """One row of the server's charge log: a request that was executed.

    :param answered: it came back with a whole answer.
    :param input_tokens: tokens charged, 0 where nothing was.
    """

    wire_id: str
    answered: bool
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class BatchFacts:
    """One row of ``batch_llm_batch`` that the provider accepted."""

    round: int
    provider_batch_id: str
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Facts:
    """All rows that belong to a night."""

    tickets: tuple[str, ...]
    landed: tuple[str, ...]
    answers: tuple[Answered, ...]
    dead: tuple[Dead, ...]
    batches: tuple[BatchFacts, ...]
    sent: tuple[Sent, ...]
    results: Path
    table: str = "ticket_labels"

    @property
    def unresolved(self) -> tuple[Dead, ...]:
        """Dead letters that stand instead of an answer."""
        return tuple(letter for letter in self.dead if letter.state != "resolved")

    @property
    def redriven(self) -> frozenset[str]:
        """Tickets whose dead letter was resolved by a re-drive."""
        return frozenset(letter.ticket for letter in self.dead if letter.state == "resolved")

    def answered(self, *, first_round: bool) -> int:
        """Return how many tickets were answered in round 0, or in the automatic retry rounds."""
        own = [answer for answer in self.answers if answer.ticket not in self.redriven]
        return sum((answer.round == 0) is first_round for answer in own)

    def dead_by_code(self) -> Counter[tuple[str, str]]:
        """Return (state, code) -> dead letters."""
        return Counter((letter.state, letter.code) for letter in self.dead)

    def paid_tokens(self) -> tuple[int, int]:
        """Return input and output tokens that the server charged."""
        return sum(s.input_tokens for s in self.sent), sum(s.output_tokens for s in self.sent)


def collect(places: Places, night: Night) -> Facts:
    """Read all rows of a night.

    :raises LookupError: the ledger knows no job of this run, or its results have no manifest.
    """
    job_id, revision = _job(places.ledger, night)
    batches = _batches(places.ledger, job_id)
    answers, results = _answers(places.workspace, job_id, revision)
    interval = (night.start.isoformat(), night.end.isoformat())
    return Facts(
        tickets=tuple(_column(places.warehouse, _TICKETS, interval)),
        landed=tuple(_column(places.warehouse, _LANDED.format(table=night.table), interval)),
        answers=answers,
        dead=_dead(places.ledger, job_id),
        batches=batches,
        sent=_sent(places.server, [batch.provider_batch_id for batch in batches]),
        results=results,
        table=night.table,
    )


_TICKETS = "SELECT id FROM tickets WHERE updated_at >= ? AND updated_at < ?"
_LANDED = "SELECT {table}.id FROM {table} JOIN tickets USING (id) WHERE updated_at >= ? AND updated_at < ?"


def rows(database: Path, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the rows of a SELECT over an SQLite file, which is opened for reading only."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        return connection.execute(statement, values).fetchall()


def _column(database: Path, statement: str, values: tuple[Any, ...]) -> list[Any]:
    return [row[0] for row in rows(database, statement, values)]


def _job(ledger: Path, night: Night) -> tuple[str, int]:
    found = rows(
        ledger,
        "SELECT job_id, revision FROM batch_llm_job WHERE dag_id = ? AND run_id = ?",
        (night.dag_id, night.run_id),
    )
    if len(found) != 1:
        raise LookupError(f"the ledger holds {len(found)} jobs of run {night.run_id}, not one")
    return str(found[0][0]), int(found[0][1])


def _batches(ledger: Path, job_id: str) -> tuple[BatchFacts, ...]:
    statement = (
        "SELECT round, provider_batch_id, requests, usage_input, usage_output FROM batch_llm_batch"
        " WHERE job_id = ? AND provider_batch_id IS NOT NULL ORDER BY revision, round, seq"
    )
    return tuple(BatchFacts(*row) for row in rows(ledger, statement, (job_id,)))


def _dead(ledger: Path, job_id: str) -> tuple[Dead, ...]:
    statement = (
        "SELECT custom_id, wire_id, code, state, exhausted FROM batch_llm_dead_letter WHERE job_id = ?"
        " ORDER BY custom_id"
    )
    return tuple(
        Dead(ticket, wire_id, code, state, bool(exhausted))
        for ticket, wire_id, code, state, exhausted in rows(ledger, statement, (job_id,))
    )


def _answers(workspace: Path, job_id: str, revision: int) -> tuple[tuple[Answered, ...], Path]:
    for path in workspace.glob(f"**/results/{revision}/_manifest.json"):
        manifest = json.loads(path.read_bytes())
        if manifest["job"] == job_id:
            break
    else:
        raise LookupError(f"no results of job {job_id}, revision {revision}, under {workspace}")
    answers = []
    for part in manifest["parts"]:
        # Lines end in 0x0A alone; splitlines() would also break at U+2028 inside an answer.
        for line in (path.parent / part["path"]).read_bytes().split(b"\n"):
            if line:
                row = json.loads(line)
                answers.append(Answered(row["custom_id"], row["wire_id"], row["round"]))
    return tuple(answers), path.parent


def _sent(server: Path, batch_ids: list[str]) -> tuple[Sent, ...]:
    statement = (
        "SELECT custom_id, charge.status = 200 AND charge.fault IS NULL, charged * charge.input_tokens,"
        " charged * charge.output_tokens FROM charge JOIN batch ON batch.seq = charge.batch"
        f" WHERE batch.id IN ({','.join('?' * len(batch_ids))}) ORDER BY charge.id"
    )
    return tuple(
        Sent(wire_id, bool(answered), input_tokens, output_tokens)
        for wire_id, answered, input_tokens, output_tokens in rows(server, statement, tuple(batch_ids))
    )
