"""Jobs of a real size, as users write them: their own server, warehouse and workspace for each test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.tasks.conftest import runs, set_llm
from tests.integration.tasks.desk import Traffic, Warehouse
from tests.local_server import LocalServer

__all__ = ["runs"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def traffic(server: LocalServer) -> Traffic:
    return Traffic(server)


@pytest.fixture
def warehouse(tmp_path: Path, server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """An SQLite file under connection ``warehouse``, and ``llm_batch`` for the server."""
    found = Warehouse(tmp_path / "warehouse.db")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(found.path)}))
    set_llm(monkeypatch, server)
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY", "0")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN", "0.5")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{tmp_path}/ws")
    return found
