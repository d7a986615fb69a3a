"""docs/metrics.md and the code name the same metrics."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from airflow_batch_llm.metrics import CONNECTION_GAUGES, COUNTERS, DAG_GAUGES, LEDGER_GAUGES, Tally

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `batch_llm.")]


def documented(heading: str) -> list[str]:
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(batch_llm\.[a-z_.]+)` ", part, re.MULTILINE)


def test_the_page_and_the_code_name_the_same_metrics() -> None:
    assert documented("Gauges of the ledger") == list(LEDGER_GAUGES)
    assert documented("Gauges with a tag") == [*CONNECTION_GAUGES, *DAG_GAUGES]
    assert documented("Counters") == list(COUNTERS)
    assert len(ROWS) == len(LEDGER_GAUGES) + len(CONNECTION_GAUGES) + len(DAG_GAUGES) + len(COUNTERS)


def test_every_metric_says_when_to_worry() -> None:
    assert all(len(row) in (3, 4) and row[-1] for row in ROWS)


def test_every_number_of_a_tally_has_its_counter() -> None:
    assert list(COUNTERS.values()) == [named.name for named in fields(Tally)]
