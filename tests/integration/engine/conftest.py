"""Benches on each kind of ledger. One local server serves the whole folder; each test sees its own part."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import migrate, open_default_sqlite
from tests.integration.engine.server_since import ServerSince
from tests.job_bench import Bench
from tests.local_server import LocalServer
from tests.mariadb import mariadb_server, mariadb_url
from tests.postgres import postgres_server, postgres_url

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(running_server: LocalServer) -> Iterator[ServerSince]:
    """The server without faults, as if it had just been started."""
    running_server.set_scenario({})
    yield ServerSince(running_server)
    running_server.release()


@pytest.fixture
def ledger(tmp_path: Path) -> SqlLedger:
    return open_default_sqlite(tmp_path / "ledger.db")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def any_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> SqlLedger:
    if request.param == "sqlite":
        return open_default_sqlite(tmp_path / "ledger.db")
    url = "postgres_url" if request.param == "postgresql" else "mariadb_url"
    ledger = SqlLedger(request.getfixturevalue(url)())
    migrate(ledger.engine)
    return ledger


@pytest.fixture
def bench(server: ServerSince, ledger: SqlLedger, tmp_path: Path) -> Callable[..., Bench]:
    def make(**values: Any) -> Bench:
        values.setdefault("ledger", ledger)
        values.setdefault("run_id", f"run-{secrets.token_hex(4)}")
        return Bench(server=server, folder=tmp_path / "workspace", **values)

    return make


@pytest.fixture(scope="session", autouse=True)
def airflow_db() -> None:
    """No metadata database here: the engine knows no Airflow."""
