"""The nightly labels, over one provider after the other: only the connection changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_batch_llm.hooks.state import open_ledger
from tests.integration.examples.days import Examples
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import Warehouse
from tests.local_server import LocalServer

PROTOCOLS = ("openai", "azure", "anthropic", "gemini", "mistral")
BODIES = (
    "My invoice 4711 was charged twice, please refund it.",
    "The till crashes when I scan {{ a }} coupon.",
    "Où est mon colis ? C'est urgent !",
    "Please cancel my plan; 'DROP TABLE tickets'; --",
    "Ich kann mich nicht anmelden 🙁",
    "Lovely tills. Thank you!\u2028And the paper?",
    "This one always fails.",
    "This one is cut off at first.",
    "This one fails once.",
    "This one is refused.",
    "This one breaks its form once.",
)
FAULTS = {
    "always fails": {"fault": "bad_request"},
    "cut off": {"fault": "truncated", "times": 1},
    "fails once": {"fault": "server_error", "times": 1},
    "is refused": {"fault": "refusal"},
    "its form": {"fault": "invalid_json", "times": 1},
}


@pytest.fixture
def tickets(warehouse: Warehouse) -> Warehouse:
    warehouse.execute("DROP TABLE tickets")
    columns = "id INTEGER PRIMARY KEY, customer TEXT, channel TEXT, body TEXT, updated_at TEXT"
    warehouse.execute(f"CREATE TABLE tickets ({columns})")
    for number, body in enumerate(BODIES, start=1):
        row = (number, f"shop {number}", "mail", body, "")
        warehouse.execute("INSERT INTO tickets VALUES (?, ?, ?, ?, ?)", row)
    return warehouse


def test_the_same_dag_gives_the_same_table_over_each_protocol(
    examples: Examples, tickets: Warehouse, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    for day, protocol in enumerate(PROTOCOLS):
        set_llm(monkeypatch, server, host=server.url_of(protocol), extra={"dialect": protocol, "model": None})
        rules = [{"match": {"contains": text}, **fault} for text, fault in FAULTS.items()]
        server.set_scenario({"rows": rules, "results": {"shuffle": day}})
        moment = examples.first + timedelta(days=day, hours=3)
        tickets.execute("UPDATE tickets SET updated_at = ?", (moment.isoformat(),))
        run = examples.run("nightly_ticket_labels", day)
        assert run.state == "failed", "two of eleven are dead, which is more than the DAG takes"
        told[protocol] = (landed(tickets), dead(run.run_id))
        tickets.execute("DROP TABLE ticket_labels")
    columns, rows = told["openai"][0]
    assert len(rows) == len(BODIES) - 2 and "summary" in columns
    assert told["openai"][1] == {"7": "bad_request", "10": "refused"}
    for protocol in PROTOCOLS:
        assert told[protocol] == told["openai"], protocol


def landed(warehouse: Warehouse) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the table's columns and rows, without what names the run that wrote a row."""
    columns = [row[1] for row in warehouse.execute("PRAGMA table_info(ticket_labels)")]
    kept = [name for name in columns if not name.startswith("_")]
    listed = ", ".join(f'"{name}"' for name in kept)
    return kept, warehouse.execute(f"SELECT {listed} FROM ticket_labels ORDER BY id")


def dead(run_id: str) -> dict[str, str]:
    """Return custom_id -> verdict of the run's dead letters."""
    ledger = open_ledger()
    jobs = [job for job in ledger.jobs() if job.key.run_id == run_id]
    letters = {letter.custom_id: letter for job in jobs for letter in ledger.dead_letters(job.job_id)}
    # Anthropic and Gemini have one word for a refusal and for a filter.
    return {name: str(x.verdict).replace("filtered", "refused") for name, x in letters.items()}
