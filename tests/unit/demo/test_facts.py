"""Facts are read from the real ledger's tables, the workspace's layout and the server's charge log."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_batch_llm.server.database import Database
from airflow_batch_llm.storage import schema
from example_dags.demo.__main__ import INTERVAL
from example_dags.demo.facts import Night, Places, collect
from example_dags.demo.warehouse import load_tickets

DAG_ID = "nightly_ticket_labels"
NIGHT = Night(DAG_ID, "manual__1", *INTERVAL)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A warehouse, a ledger and a server's database, as their owners make them, without rows of a job."""
    from sqlalchemy import create_engine

    found = Places(tmp_path / "warehouse.db", tmp_path / "state", tmp_path / "server.db")
    load_tickets(found.warehouse)
    with closing(sqlite3.connect(found.warehouse)) as warehouse, warehouse:
        warehouse.execute("CREATE TABLE ticket_labels (id TEXT PRIMARY KEY)")
    found.state.mkdir()
    engine = create_engine(f"sqlite:///{found.ledger}")
    schema.metadata.create_all(engine)
    engine.dispose()
    Database(found.server).connection().close()
    return found


def add_job(places: Places) -> None:
    with closing(sqlite3.connect(places.ledger)) as ledger, ledger:
        insert(ledger, "batch_llm_job", job_id="j1", dag_id=DAG_ID, run_id="manual__1", revision=2)
        insert(
            ledger, "batch_llm_batch", batch_id="b1", job_id="j1", revision=2, seq=0,
            round=0, provider_batch_id="batch_1", requests=3, usage_input=7, usage_output=2,
        )  # fmt: skip
        insert(ledger, "batch_llm_batch", batch_id="b2", job_id="j1", revision=2, seq=1, round=0, requests=1)
        letter = {"custom_id": "T-3", "code": "invalid_prompt", "state": "open", "exhausted": 0}
        insert(ledger, "batch_llm_dead_letter", job_id="j1", wire_id="a3", **letter)


def add_results(places: Places) -> Path:
    folder = places.workspace / "ns" / DAG_ID / "manual__1" / "label.submit" / "-1" / "results" / "2"
    folder.mkdir(parents=True)
    rows = [{"custom_id": "T-1", "wire_id": "a1", "round": 0, "output": "one\u2028line"}]
    (folder / "part-1.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    (folder / "part-old.jsonl").write_text("not named by the manifest\n")
    (folder / "_manifest.json").write_text(json.dumps({"job": "j1", "parts": [{"path": "part-1.jsonl"}]}))
    return folder


def add_charges(places: Places) -> None:
    with closing(sqlite3.connect(places.server)) as server, server:
        insert(server, "batch", seq=1, id="batch_1")
        insert(server, "batch", seq=2, id="batch_of_another_run")
        charge = {"body_sha256": b"", "model": "m", "at": 0.0, "input_tokens": 4, "output_tokens": 2}
        insert(server, "charge", batch=1, line=1, custom_id="a1", status=200, charged=1, **charge)
        insert(
            server,
            "charge",
            batch=1,
            line=2,
            custom_id="a2",
            status=200,
            charged=1,
            fault="truncated",
            **charge,
        )
        insert(server, "charge", batch=1, line=3, custom_id="a3", status=400, charged=0, **charge)
        insert(server, "charge", batch=2, line=1, custom_id="x", status=200, charged=1, **charge)


def insert(connection: sqlite3.Connection, table: str, **values: object) -> None:
    """Insert a row, with an empty value wherever the table demands one."""
    for _, name, kind, required, default, key in connection.execute(f"PRAGMA table_info({table})").fetchall():
        if required and default is None and not key and name not in values:
            values[name] = "" if "CHAR" in kind or "TEXT" in kind else 0
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def test_rows_of_the_run_are_found_and_no_others(places: Places) -> None:
    add_job(places)
    folder = add_results(places)
    add_charges(places)
    facts = collect(places, NIGHT)
    assert len(facts.tickets) == 69
    assert facts.results == folder
    assert [(answer.ticket, answer.round) for answer in facts.answers] == [("T-1", 0)]
    assert [(letter.ticket, letter.state) for letter in facts.unresolved] == [("T-3", "open")]
    assert [batch.provider_batch_id for batch in facts.batches] == ["batch_1"]
    assert [(sent.wire_id, sent.answered) for sent in facts.sent] == [
        ("a1", True),
        ("a2", False),
        ("a3", False),
    ]
    assert facts.paid_tokens() == (8, 4)


def test_landed_rows_are_those_of_the_night(places: Places) -> None:
    add_job(places)
    add_results(places)
    with closing(sqlite3.connect(places.warehouse)) as warehouse, warehouse:
        warehouse.execute("INSERT INTO ticket_labels SELECT id FROM tickets")
    assert len(collect(places, NIGHT).landed) == 69


def test_a_run_without_a_job_is_said_so(places: Places) -> None:
    with pytest.raises(LookupError, match="0 jobs of run manual__1"):
        collect(places, NIGHT)


def test_a_job_without_results_is_said_so(places: Places) -> None:
    add_job(places)
    with pytest.raises(LookupError, match="no results of job j1, revision 2"):
        collect(places, NIGHT)
