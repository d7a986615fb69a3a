"""Compare models on a set of questions: every model answers all of them, a judge grades, a table has scores.

Needs two connections: ``warehouse`` (where ``eval_questions`` is; the others are made) and ``llm_batch``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import pendulum
from airflow.sdk import DAG, BaseHook, Param, get_current_context, task, task_group
from pydantic import BaseModel, ConfigDict

from airflow_batch_llm import ResultsSource, Reuse, RowPrompt, SqlSink, SqlSource, batch_llm_group

DOC = """
### Model evals

One mapped group for each model of the parameter `models`: its answers to all questions, then the judge's
grade of each answer. Table `eval_scores` gets a line for each model: graded, correct, and the score, which is
*correct of all questions*: a question that a model could not answer, or the judge could not grade, counts
against it.

Answers and grades are reused: a run with one more model pays for that model only.
"""

JUDGE = """
Question: {{ row.question }}
Expected: {{ row.expected }}
Answer to grade: {{ row.output }}

Is the answer right? Say "correct" only if it agrees with what is expected.
"""

SCORES = """
    INSERT INTO eval_scores (run_id, model, questions, graded, correct, score)
    SELECT ?, ?, total.n, COUNT(g.verdict), COALESCE(SUM(g.verdict = 'correct'), 0),
           COALESCE(SUM(g.verdict = 'correct'), 0) * 1.0 / total.n
    FROM (SELECT COUNT(*) AS n FROM eval_questions) AS total
    LEFT JOIN eval_grades AS g ON g._run_id = ? AND g.asked_model = ?
    GROUP BY total.n
"""


class Grade(BaseModel):
    """The judge's answer."""

    model_config = ConfigDict(extra="forbid")

    verdict: Literal["correct", "wrong"]


with DAG(
    "model_evals",
    description="Models x questions, graded by a judge",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    params={"models": Param(["gpt-5-mini", "gpt-5-nano"], type="array", items={"type": "string"})},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:

    @task
    def models() -> list[str]:
        return list(get_current_context()["params"]["models"])

    @task_group
    def evaluate(model: str) -> None:
        answers = batch_llm_group(
            group_id="answer",
            llm_conn_id="llm_batch",
            source=SqlSource("warehouse", "SELECT id, question, expected FROM eval_questions", key="id"),
            prompt=RowPrompt("{{ row.question }}", system="Answer in one sentence."),
            model=model,
            max_tokens=100,
            carry=["question", "expected"],
            reuse=Reuse(scope="task"),
            max_dead_letter_ratio=0.5,
        )
        grades = batch_llm_group(
            group_id="grade",
            llm_conn_id="llm_batch",
            source=ResultsSource(answers.results, key="id"),
            prompt=RowPrompt(JUDGE),
            model="gpt-5",
            output_schema=Grade,
            max_tokens=20,
            reuse=Reuse(scope="task"),
            sink=SqlSink(
                "warehouse",
                "eval_grades",
                key="id",
                mode="append",  # each run's grades beside those of earlier runs, so that a dead one is a gap
                partition={"asked_model": model},
                create=True,
            ),
            max_dead_letter_ratio=0.5,
        )
        answers >> grades

    @task(trigger_rule="all_done")
    def score(names: list[str], run_id: str | None = None) -> dict[str, float]:
        hook = BaseHook.get_hook("warehouse")
        hook.run(
            "CREATE TABLE IF NOT EXISTS eval_scores (run_id TEXT, model TEXT, questions INTEGER, "
            "graded INTEGER, correct INTEGER, score DOUBLE PRECISION, PRIMARY KEY (run_id, model))"
        )
        for name in names:
            hook.run("DELETE FROM eval_scores WHERE run_id = ? AND model = ?", parameters=(run_id, name))
            hook.run(SCORES, parameters=(run_id, name, run_id, name))
        rows = hook.get_records("SELECT model, score FROM eval_scores WHERE run_id = ?", parameters=(run_id,))
        return dict(rows)

    names = models()
    evaluate.expand(model=names) >> score(names)
