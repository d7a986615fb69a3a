"""What the large job's two sides, the one that runs it and its DAG, call things."""

from __future__ import annotations

DAG_ID = "large_job"
GROUP_ID = "label"

#: Environment variable: the Parquet files to read, "" for the table.
PARQUET = "BATCH_LLM_BENCH_PARQUET"
#: Environment variable: the folder in which each process of a task writes down what it needed.
FACTS = "BATCH_LLM_BENCH_FACTS"

PHASES = (
    "stage (read, render, shard, write)",
    "upload (encode, send)",
    "reconcile (download, judge)",
    "plan retry rounds",
    "settle (account, dead letters)",
    "publish (results)",
    "sink (read results, upsert)",
)
