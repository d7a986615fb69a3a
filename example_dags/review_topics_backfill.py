"""Classify product reviews day by day, and backfill past days from the UI.

Needs two connections: ``warehouse`` (where ``reviews`` is and ``review_topics`` goes) and ``llm_batch``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from pydantic import BaseModel, ConfigDict

from airflow_batch_llm import Reuse, RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group

DOC = """
### Topics and sentiment of product reviews, one partition a day

Each run classifies the reviews of one day and replaces that day in table `review_topics`, in one
transaction. A day on which a review could not be answered keeps its old content, and the run is red.

**To backfill:** *Trigger > Backfill* on this DAG, choose the dates, *Max Active Runs* 4 or fewer (each run
holds a worker only while it sends and reads; it waits in the triggerer). Choose *Missing and Errored Runs*
to fill holes: what is answered is never paid for again. *All Runs* clears the runs that are there: their
reviews are read again, and only new and changed ones are sent.

**What a day costs the second time:** `Reuse(scope="task")` takes an answer that any earlier run bought for
the same request. Raise `version` to buy everything anew.
"""


class ReviewTopic(BaseModel):
    """One answer: columns of table ``review_topics``."""

    model_config = ConfigDict(extra="forbid")

    topic: Literal["price", "quality", "delivery", "service", "other"]
    sentiment: Literal["positive", "neutral", "negative"]


with DAG(
    "review_topics_backfill",
    description="Topics and sentiment of each day's reviews, made to be backfilled",
    # Each run has the 24 hours before it; `ds` is the day those hours belong to.
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    batch_llm_group(
        group_id="classify",
        llm_conn_id="llm_batch",
        source=SqlSource(
            "warehouse",
            "SELECT id, product, body FROM reviews WHERE written_on = :day",
            parameters={"day": "{{ ds }}"},
            key="id",
        ),
        prompt=RowPrompt(
            "Review of {{ row.product }}:\n\n{{ row.body }}",
            system="You sort product reviews by topic and sentiment.",
            examples=[
                {
                    "user": "Review of kettle:\n\nBroke after two days.",
                    "assistant": {"topic": "quality", "sentiment": "negative"},
                },
                {
                    "user": "Review of lamp:\n\nIt came a day early, thank you!",
                    "assistant": {"topic": "delivery", "sentiment": "positive"},
                },
            ],
        ),
        model="gpt-5-mini",
        output_schema=ReviewTopic,
        max_tokens=50,
        reuse=Reuse(scope="task"),
        row_retry=RowRetry(max_rounds=3),
        sink=SqlSink(
            "warehouse",
            "review_topics",
            key="id",
            mode="replace_partition",
            partition={"written_on": "{{ ds }}"},
            create=True,
        ),
        on_empty="success",
    )
