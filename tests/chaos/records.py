"""Compares three records that know nothing of each other: the source, what was written, what was charged."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.core.files import results_path
from airflow_batch_llm.core.model import BatchKind, BatchState, JobKey, LetterState
from airflow_batch_llm.core.publish import MANIFEST
from airflow_batch_llm.server.simulated import Ask, say
from tests.chaos.jobs import JobRun, Reading, schema_of
from tests.chaos.landing import LandingTable
from tests.chaos.plans import Plan
from tests.chaos.work import Stage, workspace_of

_answers = msgspec.json.Decoder(Answer)


@dataclass
class Findings:
    """What the comparison found. The texts say which rows, for people.

    :param residue: rows paid for again by a process that was suspended past its lease, cancelled and
        recorded as a duplicate.
    """

    rows_lost: int = 0
    landed_twice: int = 0
    paid_twice: int = 0
    residue: int = 0
    texts: list[str] = field(default_factory=list)

    def lost(self, text: str) -> None:
        self.rows_lost += 1
        self.texts.append(f"lost: {text}")

    def twice(self, text: str) -> None:
        self.landed_twice += 1
        self.texts.append(f"landed twice: {text}")

    def paid(self, text: str) -> None:
        self.paid_twice += 1
        self.texts.append(f"paid twice: {text}")


def compare(
    stage: Stage, jobs: list[tuple[JobKey, JobRun]], charges: list[dict[str, Any]], *, suspended: bool
) -> Findings:
    """Compare the records of all jobs of a schedule.

    :param charges: the server's own log, in the order of execution.
    :param suspended: whether a process really was suspended past its lease.
    """
    found = Findings()
    good = {charge["custom_id"] for charge in charges if _is_answer(charge)}
    for key, job in jobs:
        expected = job.expected
        if expected is None:
            found.lost(f"{job.run_id}: the source was never staged")
            continue
        answers = _published(stage, key)
        _compare_rows(found, stage, key, job.run_id, expected, answers, good)
        _compare_landing(found, stage, key, job.run_id, answers)
    _compare_charges(found, stage, [key for key, _ in jobs], charges, suspended=suspended)
    return found


def _published(stage: Stage, key: JobKey) -> list[Answer]:
    """Read the results of the job's revision, file by file as the manifest names them."""
    workspace = workspace_of(stage)
    job = stage.ledger.get_job(key.job_id)
    assert job is not None
    folder = results_path(workspace.job_root(key), job.revision)
    with workspace.open(f"{folder}/{MANIFEST}") as file:
        parts = msgspec.json.decode(file.read())["parts"]
    lines: list[bytes] = []
    for part in parts:
        with workspace.open(f"{folder}/{part['path']}") as file:
            lines += [line for line in file.read().split(b"\n") if line]
    return [_answers.decode(line) for line in lines]


def _compare_rows(
    found: Findings,
    stage: Stage,
    key: JobKey,
    run_id: str,
    expected: Reading,
    answers: list[Answer],
    good: set[str],
) -> None:
    letters = Counter(
        letter.custom_id
        for letter in stage.ledger.dead_letters(key.job_id, states=[LetterState.OPEN, LetterState.REDRIVING])
    )
    answered = Counter(answer.custom_id for answer in answers)
    for custom_id in expected.texts:
        where = f"{run_id} {custom_id}"
        if not answered[custom_id] and not letters[custom_id]:
            found.lost(f"{where} is neither answered nor dead")
        if answered[custom_id] + letters[custom_id] > 1:
            found.twice(f"{where} has {answered[custom_id]} answers and {letters[custom_id]} letters")
    for custom_id in set(answered | letters) - set(expected.texts):
        found.lost(f"{run_id} {custom_id} was never asked in this revision")
    for answer in answers:
        text = expected.texts.get(answer.custom_id)
        if text is None:
            continue
        if answer.output != _server_says(text, expected.schema):
            found.lost(f"{run_id} {answer.custom_id} has an answer to something else")
        elif answer.wire_id not in good:
            found.lost(f"{run_id} {answer.custom_id} has an answer that the server never charged")


def _server_says(text: str, schema_version: int) -> Any:
    """Return what the simulated model answers to a prompt: the same, always."""
    schema = schema_of(schema_version)
    size = len(text.encode())
    said = say(Ask(size, text, schema.json_schema if schema is not None else None))
    return msgspec.json.decode(said.text) if schema is not None else said.text


def _compare_landing(found: Findings, stage: Stage, key: JobKey, run_id: str, answers: list[Answer]) -> None:
    rows = LandingTable(stage.landing).rows(key.job_id)
    for custom_id, number in Counter(custom_id for custom_id, _ in rows).items():
        if number > 1:
            found.twice(f"{run_id} {custom_id} stands {number} times in the table")
    landed = dict(rows)
    for answer in answers:
        if answer.custom_id not in landed or landed[answer.custom_id] != answer.output:
            found.lost(f"{run_id} {answer.custom_id} is not in the table as it was answered")
    for custom_id in landed.keys() - {answer.custom_id for answer in answers}:
        found.lost(f"{run_id} {custom_id} is in the table and not in the results")


# -- payments --------------------------------------------------------------------------------------
def _compare_charges(
    found: Findings, stage: Stage, keys: list[JobKey], charges: list[dict[str, Any]], *, suspended: bool
) -> None:
    """Count good answers beside the first, and what was executed after it, of one (custom_id, body).

    A person's ``fresh`` clear allows one more answer from the batches of its revision on; nothing else
    does.
    """
    eras, duplicates = _eras(stage, keys)
    answered: dict[tuple[int, str, str], str] = {}
    by_wire: dict[tuple[int, str], str] = {}
    for charge in charges:
        batch = charge["batch_id"]
        era = eras.get(batch, 0)
        row = (era, charge["custom_id"], charge["body_sha256"])
        wire = (era, charge["custom_id"])
        before = answered.get(row) or by_wire.get(wire)
        if before is not None:
            if suspended and (batch in duplicates or before in duplicates):
                found.residue += 1
            elif _is_answer(charge):
                found.paid(f"{charge['custom_id']} in {before} and in {batch}")
            else:
                found.paid(f"{charge['custom_id']} was answered in {before} and sent again in {batch}")
        elif _is_answer(charge):
            answered[row] = by_wire[wire] = batch


def _is_answer(charge: dict[str, Any]) -> bool:
    return bool(charge["charged"]) and charge["fault"] is None


def _eras(stage: Stage, keys: list[JobKey]) -> tuple[dict[str, int], set[str]]:
    """Return provider batch -> revision of the fresh clear that it is of (0: none), and the duplicates
    that are recorded as such and were read."""
    eras: dict[str, int] = {}
    duplicates: set[str] = set()
    for key in keys:
        fresh = [
            int(event.reason.removeprefix("revision ").partition(",")[0])
            for event in stage.ledger.events(key.job_id)
            if event.action == "revision_begun" and event.reason.endswith(", fresh")
        ]
        for batch in stage.ledger.batches(key.job_id):
            if batch.provider_batch_id is None:
                continue
            # The server's own id: some protocols put its kind before it.
            own_id = batch.provider_batch_id.rpartition("/")[2]
            eras[own_id] = max((n for n in fresh if n <= batch.revision), default=0)
            if batch.kind is BatchKind.DUPLICATE and batch.state is BatchState.RECONCILED:
                duplicates.add(own_id)
    return eras, duplicates


# -- what the server's faults came to ----------------------------------------------------------------
def server_hits(database: Path, plan: Plan) -> Counter[str]:
    """Count how often each fault of the plan's scenario happened, from the server's own counters."""
    hits: Counter[str] = Counter()
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        generation = connection.execute("SELECT min(generation) FROM scenario").fetchone()[0]
        counters = dict(
            connection.execute("SELECT name, n FROM counter WHERE generation = ?", (generation,)).fetchall()
        )
        rows = dict(connection.execute("SELECT fault, count(*) FROM charge GROUP BY fault").fetchall())
        read = connection.execute(
            "SELECT count(*) FROM batch WHERE scenario = ? AND total > 0 AND rows_done = total",
            (generation,),
        ).fetchone()[0]
    connection.close()
    for place, label in plan.labels.items():
        kind, _, number = place.partition("/")
        if kind == "results":
            hits[label] += min(read, 1)
        elif kind == "rows":
            continue
        else:
            rule = (plan.call_rules if kind == "calls" else plan.batch_rules)[int(number)]
            name = f"{'call' if kind == 'calls' else 'batch'}/{number}"
            hits[label] += max(0, min(counters.get(name, 0) - rule.get("skip", 0), rule["times"]))
    hits.update({f"row {fault}": number for fault, number in rows.items() if fault})
    return hits
