"""Three models answer 5,000 prompts each, and a judge grades every answer."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

from airflow.sdk import DAG, task_group

from airflow_batch_llm import ResultsSource, RowPrompt, SqlSink, SqlSource, batch_llm_group
from tests.integration.tasks.desk import Traffic, Warehouse
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

PROMPTS = 5_000
MODELS = ["small", "medium", "large"]
GRADE = {
    "type": "object",
    "properties": {"grade": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["grade"],
    "additionalProperties": False,
}

with DAG("bench", schedule=None, start_date=datetime(2026, 3, 1, tzinfo=UTC)) as dag:

    @task_group
    def bench(model: str) -> None:
        answers = batch_llm_group(
            group_id="answer",
            llm_conn_id="llm_batch",
            source=SqlSource("warehouse", "SELECT id, prompt FROM prompts", key="id"),
            prompt=RowPrompt("{{ row.prompt }}"),
            model=model,
            max_tokens=100,
            carry=["prompt"],
            max_dead_letter_ratio=0.5,
        )
        grades = batch_llm_group(
            group_id="grade",
            llm_conn_id="llm_batch",
            source=ResultsSource(answers.results, key="id"),
            prompt=RowPrompt("Grade from 1 to 5.\n\n{{ row.prompt }}\n\nAnswer: {{ row.output }}"),
            model="judge",
            output_schema=GRADE,
            max_tokens=20,
            sink=SqlSink(
                "warehouse",
                "grades",
                key="id",
                mode="replace_partition",
                partition={"of": model},
                create=True,
            ),
        )
        answers >> grades

    bench.expand(model=MODELS)


def test_every_answer_of_every_model_is_graded(
    runs: Runs, warehouse: Warehouse, server: LocalServer, traffic: Traffic
) -> None:
    server.set_scenario(
        {"rows": [{"match": {"model": "medium", "contains": "prompt 77 "}, "fault": "content_filter"}]}
    )
    warehouse.execute("CREATE TABLE prompts (id INTEGER PRIMARY KEY, prompt TEXT)")
    with sqlite3.connect(warehouse.path) as db:
        db.executemany(
            "INSERT INTO prompts VALUES (?, ?)", ((n, f"This is prompt {n} .") for n in range(PROMPTS))
        )
    db.close()
    run = runs.run(dag)
    assert run.state == "success"
    query = 'SELECT "of", COUNT(*), MIN(grade) >= 1 AND MAX(grade) <= 5 FROM grades GROUP BY "of"'
    assert sorted(warehouse.execute(query)) == [
        ("large", PROMPTS, 1),
        ("medium", PROMPTS - 1, 1),
        ("small", PROMPTS, 1),
    ]
    assert traffic.sent == 2 * len(MODELS) * PROMPTS - 1
    assert server.summary()["answered_twice"] == 0
