from __future__ import annotations

import pytest

from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Traffic, Warehouse
from tests.local_server import LocalServer

QUESTIONS = [
    ("q1", "What is 2 + 2?", "4"),
    ("q2", "Capital of France?", "Paris"),
    ("q3", "Colour of a ripe lemon?", "yellow"),
    ("q4", "How many legs has a spider?", "8"),
]


@pytest.fixture(autouse=True)
def questions(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE TABLE eval_questions (id TEXT PRIMARY KEY, question TEXT, expected TEXT)")
    for row in QUESTIONS:
        warehouse.execute("INSERT INTO eval_questions VALUES (?, ?, ?)", row)


def scores(warehouse: Warehouse, run_id: str) -> dict[str, tuple[int, int, int, float]]:
    rows = warehouse.execute(
        "SELECT model, questions, graded, correct, score FROM eval_scores WHERE run_id = ?", (run_id,)
    )
    return {row[0]: row[1:] for row in rows}


def test_a_question_that_a_model_cannot_answer_counts_against_it(
    examples: Examples, warehouse: Warehouse, server: LocalServer, traffic: Traffic
) -> None:
    fault = {"match": {"contains": "spider", "model": "gpt-5-nano"}, "fault": "content_filter"}
    server.set_scenario({"rows": [fault]})
    run = examples.run("model_evals", params={"models": ["gpt-5-mini", "gpt-5-nano"]})
    found = scores(warehouse, run.run_id)
    assert {model: row[:2] for model, row in found.items()} == {"gpt-5-mini": (4, 4), "gpt-5-nano": (4, 3)}
    for _, graded, correct, score in found.values():
        assert 0 < correct <= graded and score == correct / 4
    assert traffic.sent == 8 + 7


def test_a_further_model_pays_for_itself_only(
    examples: Examples, warehouse: Warehouse, traffic: Traffic
) -> None:
    examples.run("model_evals", 0, params={"models": ["gpt-5-mini"]})
    traffic.forget()
    run = examples.run("model_evals", 1, params={"models": ["gpt-5-mini", "gpt-5"]})
    assert run.state == "success"
    assert set(scores(warehouse, run.run_id)) == {"gpt-5-mini", "gpt-5"}
    # The simulated model says the same under every name: grades are reused, four answers are paid.
    assert traffic.sent == 4
