from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.hooks.state import open_workspace
from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Books, Traffic, Warehouse
from tests.local_server import LocalServer

TICKETS = [
    (1, "A billing matter.", "2026-03-01T10:00:00+00:00"),
    (2, "It was a problem, now mended.", "2026-03-01T11:00:00+00:00"),
    (3, "Of the day before.", "2026-02-28T11:00:00+00:00"),
]


@pytest.fixture(autouse=True)
def tickets(warehouse: Warehouse) -> None:
    warehouse.execute("DROP TABLE tickets")
    warehouse.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, body TEXT, updated_at TEXT)")
    for row in TICKETS:
        warehouse.execute("INSERT INTO tickets VALUES (?, ?, ?)", row)


def requests_of(books: Books) -> list[Any]:
    """Return the bodies that the job has sent, from its folder."""
    workspace = open_workspace()
    (path,) = [
        path for path in workspace.list(workspace.job_root(books.job.key)) if path.endswith("requests.jsonl")
    ]
    with workspace.open(path) as file:
        return [json.loads(line)["body"] for line in file.read().split(b"\n") if line]


def test_tickets_of_the_night_get_a_kind(examples: Examples, warehouse: Warehouse) -> None:
    assert examples.run("few_shot_ticket_kinds").state == "success"
    landed = dict(warehouse.execute("SELECT id, kind FROM ticket_kinds"))
    assert landed == {1: "billing", 2: "problem"}


def test_examples_go_before_each_ticket_as_turns(examples: Examples) -> None:
    requests = requests_of(Books.of(examples.run("few_shot_ticket_kinds"), "sort_tickets.submit"))
    for request in requests:
        messages = request["messages"]
        assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 8, "user"]
        assert {tuple(json.loads(m["content"])) for m in messages if m["role"] == "assistant"} == {("kind",)}
    assert {request["messages"][-1]["content"] for request in requests} == {TICKETS[0][1], TICKETS[1][1]}


def test_a_redrive_lands_in_the_table_that_it_is_told(
    examples: Examples, warehouse: Warehouse, server: LocalServer, traffic: Traffic
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    server.set_scenario({"rows": [{"match": {"contains": "now mended"}, "fault": "content_filter"}]})
    night = examples.run("few_shot_ticket_kinds")
    assert night.state == "failed"  # one of two is more than a tenth
    server.set_scenario({})
    traffic.forget()
    told = {"dag_id": night.dag_id, "run_id": night.run_id, "task_id": "sort_tickets.submit"}
    again = {**told, "table": "ticket_kinds", "reason": "the filter was relaxed"}
    # Parsed for this run alone: values of params stay with the DAG object that was run.
    dag = DagBag(dag_folder=str(examples.folder / "redrive_dead_letters.py")).dags["redrive_dead_letters"]
    redrive = examples.runs.run(dag, conf=again)
    assert redrive.state == "success"
    assert traffic.sent == 1
    assert [row[0] for row in warehouse.execute("SELECT id FROM ticket_kinds ORDER BY id")] == [1, 2]
