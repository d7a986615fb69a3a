"""Summarize the day's meeting transcripts from files, and let another DAG start on the results.

Needs the connection ``llm_batch``; the transcripts lie as JSON lines under the DAG's parameter ``folder``.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, Asset, ObjectStoragePath, Param, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_batch_llm import FileSource, Retention, RowPrompt, RowRetry, batch_llm_group, read_results

DOC = """
### Summaries of last night's meetings

Reads every file `<folder>/<day>/*.jsonl` (fields `meeting_id`, `team`, `transcript`), asks for a summary of
each, and leaves the answers in the workspace as JSON lines and Parquet. Speakers' e-mail addresses are cut
out before anything is sent or kept. When the run is green, asset `meeting_summaries` is updated and
`meeting_digest` starts.

Request bodies and raw answers are due for `batch-llm purge --due` after 30 days.
"""

SUMMARIES = Asset("meeting_summaries")
FOLDER = Param("/data/meetings", type="string", title="Folder", description="local, s3://, gs://, abfs://")

with DAG(
    "nightly_summaries",
    description="A summary of each meeting of the past day",
    schedule=CronDataIntervalTimetable("0 3 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    params={"folder": FOLDER},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    batch_llm_group(
        group_id="summarize",
        llm_conn_id="llm_batch",
        source=FileSource("{{ params.folder }}/{{ ds }}/*.jsonl", key="meeting_id"),
        prompt=RowPrompt(
            "Summarize this meeting of team {{ row.team }} in three sentences. Today is {{ day }}.\n\n"
            "{{ row.transcript }}",
            vars={"day": "{{ ds }}"},
        ),
        model="gpt-5-mini",
        max_tokens=300,
        carry=["team"],
        redact="meetings:without_addresses",
        row_retry=RowRetry(max_rounds=3, escalate_to="gpt-5"),
        results_formats=["jsonl", "parquet"],
        retention=Retention(workspace=timedelta(days=30), raw=timedelta(days=30)),
        max_dead_letter_ratio=0.05,
        on_empty="skip",
        outlets=[SUMMARIES],
    )

with DAG(
    "meeting_digest",
    description="One page with all summaries, as soon as they are there",
    schedule=[SUMMARIES],
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"folder": FOLDER},
    tags=["batch_llm", "example"],
) as digest:

    @task
    def write_digest(
        *, params: dict[str, Any] | None = None, triggering_asset_events: Any = None
    ) -> dict[str, Any]:
        """Write ``<folder>/digest.md`` from the results that the asset's newest event names."""
        event = triggering_asset_events[SUMMARIES][-1]
        lines = ["# Meetings", ""]
        for row in read_results(event.extra["results"]):
            lines += [f"## {row['key']['meeting_id']} ({row['carry']['team']})", "", row["output"], ""]
        target = ObjectStoragePath((params or {})["folder"]) / "digest.md"
        target.write_text("\n".join(lines))
        counts = {name: event.extra[name] for name in ("rows", "answered", "dead")}
        return json.loads(json.dumps(counts))

    write_digest()
