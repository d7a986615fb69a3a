from __future__ import annotations

from airflow_batch_llm.core.model import LetterState
from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Books, Traffic, Warehouse
from tests.local_server import LocalServer

TICKETS = (
    "CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer TEXT, channel TEXT, body TEXT, updated_at TEXT)"
)


def test_a_redrive_lands_what_was_dead_and_pays_for_nothing_else(
    examples: Examples, warehouse: Warehouse, server: LocalServer, traffic: Traffic
) -> None:
    warehouse.execute("DROP TABLE tickets")
    warehouse.execute(TICKETS)
    for number in range(1, 21):
        row = (number, "c", "mail", f"ticket number {number}.", "2026-03-01T10:00:00+00:00")
        warehouse.execute("INSERT INTO tickets VALUES (?, ?, ?, ?, ?)", row)
    server.set_scenario({"rows": [{"match": {"contains": "number 7."}, "fault": "content_filter"}]})
    night = examples.run("nightly_ticket_labels")
    assert night.state == "success"  # one of twenty
    assert set(Books.of(night, "label_tickets.submit").open_codes()) == {"7"}

    server.set_scenario({})
    traffic.forget()
    params = {"dag_id": night.dag_id, "run_id": night.run_id, "reason": "the filter was relaxed"}
    redrive = examples.runs.run(
        examples.dag("redrive_dead_letters"), conf={**params, "task_id": "label_tickets.submit"}
    )
    assert redrive.state == "success"
    assert traffic.sent == 1
    labelled = {row[0] for row in warehouse.execute("SELECT id FROM ticket_labels")}
    assert labelled == set(range(1, 21))
    assert len(Books.of(night, "label_tickets.submit").letters(LetterState.RESOLVED)) == 1
