"""Whole runs in Airflow, on the ledger that tasks use by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli.runbook.stage import Stage
from tests.integration.conftest import airflow_db, sync_dag
from tests.integration.tasks.conftest import runs, server, settings, shared_server, warehouse
from tests.integration.tasks.desk import Warehouse
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

__all__ = ["airflow_db", "runs", "server", "settings", "shared_server", "sync_dag", "warehouse"]


@pytest.fixture
def stage(
    runs: Runs,
    server: LocalServer,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Stage:
    """What a red run needs; the DAG is named for the test."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    return Stage(name, runs, server, warehouse, monkeypatch, tmp_path / "ws")
