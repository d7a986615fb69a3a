"""Sweep new comments through a moderation model and hide what is flagged.

Needs two connections: ``warehouse`` (where ``comments`` is and ``comment_flags`` goes) and ``llm_batch``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, BaseHook, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_batch_llm import BatchLLMOperator, RowPrompt, SqlSink, SqlSource

DOC = """
### Moderation of comments

Every hour the comments of the past hour, and those that arrived late within the two hours before, go through
the moderation endpoint as one task. Table `comment_flags` has one row for each comment: `flagged`, and the
categories with their scores as JSON. Then flagged comments are hidden.

A comment that was edited since is checked again; an older text never overwrites the flags of a newer one
(`version_column`).
"""

COMMENTS = """
    SELECT id, body, edited_at FROM comments WHERE edited_at >= :since AND edited_at < :until
"""

with DAG(
    "comment_moderation",
    description="Flags for the comments of the past hour; flagged ones are hidden",
    schedule=CronDataIntervalTimetable("5 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=2,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    flags = BatchLLMOperator(
        task_id="moderate",
        llm_conn_id="llm_batch",
        source=SqlSource(
            "warehouse",
            COMMENTS,
            parameters={"since": "{{ data_interval_start | ts }}", "until": "{{ data_interval_end | ts }}"},
            key="id",
            lookback=timedelta(hours=2),
        ),
        prompt=RowPrompt("{{ row.body }}"),
        endpoint="moderations",
        model="omni-moderation-latest",
        carry=["edited_at"],
        sink=SqlSink("warehouse", "comment_flags", key="id", version_column="edited_at", create=True),
        on_empty="skip",
    )

    @task
    def hide_flagged() -> None:
        BaseHook.get_hook("warehouse").run(
            "UPDATE comments SET hidden = 1 WHERE id IN (SELECT id FROM comment_flags WHERE flagged)"
        )

    flags >> hide_flagged()
