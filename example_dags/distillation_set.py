"""Make a training set for a small model from a large one: several samples a topic, checked, as train.jsonl.

Needs the connection ``llm_batch``.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, ObjectStoragePath, Param, get_current_context, task
from pydantic import BaseModel, ConfigDict, Field

from airflow_batch_llm import RowPrompt, RowRetry, batch_llm_group, read_results

DOC = """
### Synthetic data for distillation

For each topic of the parameter `topics`, three different pairs of question and answer are asked for
(`samples=3`), as JSON. Pairs that do not fit the schema are asked for again; what never fits is left out and
counted as dead. `write_training_file` writes `<folder>/train.jsonl` in the form that fine-tuning takes.
"""


class Pair(BaseModel):
    """One example."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, max_length=400)
    answer: str = Field(min_length=1, max_length=1200)


with DAG(
    "distillation_set",
    description="Question and answer pairs for fine-tuning a small model",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    params={
        "topics": Param(["opening hours", "returns"], type="array", items={"type": "string"}),
        "folder": Param("/data/training", type="string", title="Folder"),
    },
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:

    @task
    def topics() -> list[dict[str, str]]:
        return [{"topic": topic} for topic in get_current_context()["params"]["topics"]]

    pairs = batch_llm_group(
        group_id="generate",
        llm_conn_id="llm_batch",
        source=topics(),
        key="topic",
        samples=3,
        prompt=RowPrompt(
            "Write one question that a small shop's customer may ask about {{ row.topic }}, and the answer.",
            system="You write training examples. No two are alike.",
        ),
        model="gpt-5",
        params={"temperature": 1.0},
        output_schema=Pair,
        max_tokens=500,
        row_retry=RowRetry(max_rounds=2),
        max_dead_letter_ratio=0.2,
    )

    @task
    def write_training_file(results: dict[str, Any]) -> int:
        """Write one line for each pair and return how many there are."""
        folder = ObjectStoragePath(get_current_context()["params"]["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps(
                {
                    "messages": [
                        {"role": "user", "content": row["output"]["question"]},
                        {"role": "assistant", "content": row["output"]["answer"]},
                    ]
                }
            )
            for row in read_results(results)
        ]
        (folder / "train.jsonl").write_text("".join(line + "\n" for line in lines))
        return len(lines)

    write_training_file(pairs.results)
