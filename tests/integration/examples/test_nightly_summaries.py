from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_batch_llm import read_results
from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Traffic

MEETINGS = {
    "a.jsonl": [
        {"meeting_id": "m-1", "team": "till", "transcript": "Ann (ann@shop.example): the till is slow."},
        {"meeting_id": "m-2", "team": "web", "transcript": "Bo: the page is blue.\u2028And green."},
    ],
    "b.jsonl": [
        {"meeting_id": "m-3", "team": "web", "transcript": "Cy: {{ nothing }} to say. '); DROP TABLE x"}
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    day = tmp_path / "meetings" / "2026-03-01"
    day.mkdir(parents=True)
    for name, rows in MEETINGS.items():
        (day / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return day.parent


def test_summaries_come_as_lines_and_parquet_without_addresses(
    examples: Examples, folder: Path, traffic: Traffic, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    run = examples.run("nightly_summaries", params={"folder": str(folder)})
    assert run.state == "success"
    results = read_results(examples.runs.xcom(run, "summarize.dead_letter"))
    rows = {row["key"]["meeting_id"]: row for row in results}
    assert {name: row["carry"]["team"] for name, row in rows.items()} == {
        "m-1": "till",
        "m-2": "web",
        "m-3": "web",
    }
    assert all(row["output"] for row in rows.values())
    kept = [path for path in (tmp_path / "ws").rglob("*") if path.is_file()]
    assert kept and not any(b"ann@shop.example" in path.read_bytes() for path in kept)
    (parquet,) = [path for path in kept if path.suffix == ".parquet"]
    assert sorted(pq.read_table(parquet)["custom_id"].to_pylist()) == ["m-1", "m-2", "m-3"]


def test_a_day_without_files_is_skipped(examples: Examples, folder: Path, traffic: Traffic) -> None:
    run = examples.run("nightly_summaries", 5, params={"folder": str(folder)})
    assert examples.runs.states(run)["summarize.submit"] == "skipped"
    assert not traffic.anything


def test_the_digest_is_written_from_the_results_that_the_event_names(
    examples: Examples, folder: Path
) -> None:
    examples.run("nightly_summaries", params={"folder": str(folder)})
    digest = examples.dag("meeting_digest", file="nightly_summaries")
    run = examples.runs.run(digest, conf={"folder": str(folder)}, triggered_by_assets=True)
    assert run.state == "success"
    page = (folder / "digest.md").read_text()
    assert page.startswith("# Meetings") and "## m-2 (web)" in page
    assert examples.runs.xcom(run, "write_digest") == {"rows": 3, "answered": 3, "dead": 0}
