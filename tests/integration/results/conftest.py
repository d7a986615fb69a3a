"""Jobs at a real server, and the configuration by which notebooks and tasks find them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.hooks.state import default_ledger_path
from airflow_batch_llm.results.parquet import results_formats
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.integration.engine.conftest import airflow_db, bench, running_server, server
from tests.job_bench import Bench

__all__ = ["airflow_db", "bench", "running_server", "server"]

SCHEMA = answer_schema(
    {
        "title": "label",
        "type": "object",
        "properties": {
            "label": {"type": "string", "enum": ["bug", "billing"]},
            "stars": {"type": "integer", "minimum": 1, "maximum": 5},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["label", "stars", "tags"],
        "additionalProperties": False,
    }
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AIRFLOW_HOME with ledger and workspace as they are without any setting."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{tmp_path}/workspace")
    return tmp_path


@pytest.fixture
def ledger(home: Path) -> SqlLedger:
    return open_default_sqlite(default_ledger_path())


def drafts(texts: dict[str, str]) -> Callable[[], list[Draft]]:
    """Return what reads rows with a key and a carried column."""

    def read() -> list[Draft]:
        return [
            Draft(
                line=line,
                custom_id=custom_id,
                body={"messages": [{"role": "user", "content": text}]},
                row={"id": custom_id, "text": text},
                key={"id": custom_id},
                carry={"team": f"team of {custom_id}"},
            )
            for line, (custom_id, text) in enumerate(texts.items(), start=1)
        ]

    return read


def formats(schema: Any = None) -> tuple[Any, ...]:
    """Return what ``results_formats=("jsonl", "parquet")`` stands for."""
    return results_formats(("jsonl", "parquet"), schema)


def settled(bench: Callable[..., Bench], texts: dict[str, str], **values: Any) -> Bench:
    """Run a job with these rows to its end."""
    job = bench(texts=texts, drafts=drafts(texts), **values)
    job.run()
    return job
