"""One local server for the folder; a warehouse, a workspace and connections for each test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_batch_llm.hooks.state import open_ledger
from tests.integration.tasks.desk import Traffic, Warehouse
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer
from tests.mariadb import mariadb_server, mariadb_url
from tests.postgres import postgres_server, postgres_url

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(shared_server: LocalServer) -> LocalServer:
    """The folder's server, without faults."""
    shared_server.set_scenario({})
    return shared_server


@pytest.fixture
def traffic(server: LocalServer) -> Traffic:
    return Traffic(server)


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """Six tickets, under connection ``warehouse``."""
    found = Warehouse(tmp_path / "warehouse.db")
    found.fill({n: f"ticket number {n}." for n in range(1, 7)})
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(found.path)}))
    return found


@pytest.fixture(autouse=True)
def settings(
    monkeypatch: pytest.MonkeyPatch, server: LocalServer, warehouse: Warehouse, tmp_path: Path
) -> None:
    set_llm(monkeypatch, server)
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY", "0")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN", "0.05")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{tmp_path}/ws")
    release_all()


@pytest.fixture
def runs(sync_dag: Callable[[DAG], DAG]) -> Iterator[Runs]:
    with Runs(sync_dag).recorded() as runs:
        yield runs


def release_all() -> None:
    """Release what an earlier test of the same ledger left held."""
    ledger = open_ledger()
    for hold in ledger.holds():
        ledger.release_connection(hold.conn_id, actor="tests", reason="the test is over")


def set_llm(monkeypatch: pytest.MonkeyPatch, server: LocalServer, **changes: object) -> None:
    """Define connection ``llm_batch``; ``changes`` replace fields, ``extra`` adds to its extra."""
    extra = {"dialect": "generic", "model": "m-1", **dict(changes.pop("extra", {}))}  # type: ignore[call-overload]
    fields = {"conn_type": "batch_llm", "host": server.url, "password": server.api_key, **changes}
    monkeypatch.setenv("AIRFLOW_CONN_LLM_BATCH", json.dumps({**fields, "extra": extra}))
