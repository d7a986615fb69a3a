"""Commands run on real ledgers; no test here needs Airflow's own database, but those of whole runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, text

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.storage.engine import make_engine, writing
from airflow_batch_llm.storage.schema import metadata
from tests.integration.engine.conftest import bench, running_server, server
from tests.integration.engine.server_since import ServerSince
from tests.integration.storage.conftest import (
    SCHEMA,
    Address,
    airflow_db,
    ledger,
    migrated_postgres,
    migrated_sqlite,
    postgres_server,
    postgres_url,
)

__all__ = [
    "airflow_db",
    "bench",
    "ledger",
    "migrated_postgres",
    "migrated_sqlite",
    "postgres_server",
    "postgres_url",
    "running_server",
    "server",
]

#: On SQLite; what asks the database something new also runs on PostgreSQL.
SQLITE = pytest.mark.parametrize("address", ["sqlite"], indirect=True)

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """URL and schema of a ledger with its tables, all empty."""
    if request.param == "sqlite":
        path = tmp_path / "ledger.db"
        shutil.copyfile(request.getfixturevalue("migrated_sqlite"), path)
        return URL.create("sqlite+pysqlite", database=str(path)), None
    url: URL = request.getfixturevalue("migrated_postgres")(SCHEMA)
    with writing(make_engine(url)) as connection:
        tables = ", ".join(f'"{SCHEMA}".{table.name}' for table in metadata.sorted_tables)
        connection.execute(text(f"TRUNCATE {tables}"))
    return url, SCHEMA


@pytest.fixture
def command(address: Address, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command on the ledger: exit status, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        url, schema = address
        target = ["--url", url.render_as_string(hide_password=False)]
        capsys.readouterr()
        status = main([*words, *target, *(["--schema", schema] if schema else [])])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def provider(server: ServerSince, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerSince:
    """The server, with what the commands need to reach it: connection ``llm``, and the bench's workspace."""
    define_connection(monkeypatch, "llm", server)
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{tmp_path}/workspace")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIND_INTERVAL", "0.2")
    return server


def define_connection(monkeypatch: pytest.MonkeyPatch, conn_id: str, server: Any, **changes: Any) -> None:
    """Define an Airflow connection to a server in the environment."""
    fields = {"conn_type": "batch_llm", "host": server.url, "password": server.api_key, **changes}
    extra = {"dialect": "openai", "model": "m-1"}  # as the bench has it
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({**fields, "extra": extra}))


def printed_json(command: Command, *words: str) -> Any:
    """Run a command that must succeed and read what it prints."""
    status, out, err = command(*words, "--json")
    assert status == 0, err
    return json.loads(out)
