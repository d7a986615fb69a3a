"""A DAG run that is made red and brought to an end, and what the provider charged in between."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk import DAG

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.core.by_hand import not_to_be_had
from airflow_batch_llm.core.model import Batch, BatchState
from airflow_batch_llm.hooks.state import open_ledger
from airflow_batch_llm.storage.engine import make_engine
from airflow_batch_llm.storage.migrate import migrate
from tests.integration.cli.runbook.ways import Clear, Way
from tests.integration.tasks.desk import (
    DEAD_LETTER,
    RECONCILE,
    RETRY,
    TASKS,
    Books,
    Traffic,
    Warehouse,
    desk_dag,
)
from tests.integration.tasks.runs import Run, Runs
from tests.local_server import LocalServer

_CLEARED = {
    ("submit", True): TASKS,
    ("reconcile", True): (RECONCILE, RETRY, DEAD_LETTER),
    ("retry", True): (RETRY, DEAD_LETTER),
    ("dead_letter", False): (DEAD_LETTER,),
}


@dataclass
class Stage:
    """One run of the ticket desk: six tickets, batches of two."""

    name: str
    runs: Runs
    server: LocalServer
    warehouse: Warehouse
    monkeypatch: pytest.MonkeyPatch
    workspace: Path
    values: dict[str, Any] = field(default_factory=dict)
    run: Run | None = None

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.server)

    @property
    def dag(self) -> DAG:
        return desk_dag(self.name, **self.values)

    def start(self, **values: Any) -> None:
        """Run the DAG; ``values`` go to the group."""
        self.values = values
        self.run = self.runs.run(self.dag)

    def books(self) -> Books:
        assert self.run is not None
        return Books.of(self.run)

    def sql(self, statement: str) -> None:
        """Change the job's rows in the ledger: ``{job}`` is its id. Time passes, say."""
        with open_ledger().engine.begin() as connection:
            connection.exec_driver_sql(statement.format(job=f"'{self.job_id()}'"))

    def job_id(self) -> str:
        """Return the job's id, also while the first process runs."""
        return open_ledger().jobs(dag_id=self.name, limit=1)[0].job_id

    def answered(self) -> set[str]:
        """Return the wire ids of the published answers."""
        parts = self.workspace.glob("**/results/*/part-*.jsonl")
        return {json.loads(line)["wire_id"] for part in parts for line in part.read_text().splitlines()}

    def cancel_at_provider(self, provider_batch_id: str) -> None:
        """Cancel a batch as somebody does in the provider's console."""
        headers = {"Authorization": f"Bearer {self.server.api_key}"}
        url = f"{self.server.url}/batches/{provider_batch_id}/cancel"
        httpx.post(url, headers=headers).raise_for_status()

    def use_ledger(self, path: Path | None) -> None:
        """Name another ledger in the settings, made here; None for the default one."""
        if path is None:
            self.monkeypatch.delenv("AIRFLOW__BATCH_LLM__LEDGER_CONN_ID")
            return
        self.monkeypatch.setenv(
            "AIRFLOW_CONN_OTHER_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(path)})
        )
        self.monkeypatch.setenv("AIRFLOW__BATCH_LLM__LEDGER_CONN_ID", "other_ledger")
        migrate(make_engine(f"sqlite+pysqlite:///{path}"))

    # -- the way out -----------------------------------------------------------------------------------
    def follow(self, way: Way) -> str:
        """Do what a line of the runbook says; returns the run's state at the end."""
        state = ""
        for step in way.steps:
            state = self.clear(step) if isinstance(step, Clear) else self.command(step)
        return state

    def command(self, words: list[str]) -> str:
        status = main([self._filled_in(word) for word in words])
        assert status == 0, f"batch-llm {' '.join(words)} ended with {status}"
        return ""

    def clear(self, step: Clear) -> str:
        """Clear tasks and run them. What runs at the provider has ended meanwhile."""
        assert self.run is not None
        self.server.release()
        return self.runs.rerun(self.dag, self.run, *_CLEARED[step.task, step.downstream])

    def _filled_in(self, word: str) -> str:
        if word == "JOB":
            return self.job_id()
        if word in ("BATCH", "PROVIDER_ID"):
            batch = self._batch()
            return batch.batch_id if word == "BATCH" else batch.provider_batch_id or ""
        if word == "FILE":
            return str(self._results())
        return word

    def _batch(self) -> Batch:
        """Return the batch whose results are missed."""
        ledger, job = self.books().ledger, self.books().job
        return (not_to_be_had(ledger, job) or ledger.batches(job.job_id, states=[BatchState.ENDED]))[0]

    def _results(self) -> Path:
        """Download its results as somebody does whose downloads work."""
        self.server.set_scenario({})
        headers = {"Authorization": f"Bearer {self.server.api_key}"}
        with httpx.Client(base_url=self.server.url, headers=headers) as client:
            batch = client.get(f"/batches/{self._batch().provider_batch_id}").raise_for_status().json()
            content = client.get(f"/files/{batch['output_file_id']}/content").raise_for_status().content
        path = self.workspace.parent / "output.jsonl"
        path.write_bytes(content)
        return path

    def paid_twice(self) -> set[str]:
        """Return the wire ids that the server answered, and charged, more than once."""
        paid = Counter(c["custom_id"] for c in self.traffic.charges if c["charged"] and c["fault"] is None)
        return {wire_id for wire_id, number in paid.items() if number > 1}
