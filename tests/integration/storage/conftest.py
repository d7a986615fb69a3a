"""Ledgers on real databases: each test runs on SQLite, on MariaDB, and on PostgreSQL in a schema of its own.

The tables are made once per database; each test finds them empty.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import URL, text

from airflow_batch_llm.storage.engine import make_engine, writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import migrate
from airflow_batch_llm.storage.schema import metadata
from tests.mariadb import execute, mariadb_server, mariadb_url
from tests.postgres import postgres_server, postgres_url

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]

Address = tuple[URL, str | None]

#: A name that must be quoted.
SCHEMA = "Batch LLM"


@pytest.fixture(scope="session", autouse=True)
def airflow_db() -> Iterator[None]:
    """The ledger is not Airflow's database; no test here needs that one."""
    yield


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables and nothing in them."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    migrate(make_engine(_sqlite(path)))
    return path


@pytest.fixture(scope="session")
def migrated_postgres(request: pytest.FixtureRequest) -> Callable[[str | None], URL]:
    """Give a function that returns a database with the tables in a schema."""

    @cache
    def make(schema: str | None) -> URL:
        url: URL = request.getfixturevalue("postgres_url")()
        migrate(make_engine(url), schema)
        return url

    return make


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb_url: Callable[[], URL]) -> URL:
    """A database with the tables."""
    url = mariadb_url()
    migrate(make_engine(url))
    return url


@pytest.fixture
def empty_mariadb(migrated_mariadb: URL) -> URL:
    """A database whose tables are empty."""
    execute(migrated_mariadb, *[f"DELETE FROM {table.name}" for table in metadata.sorted_tables])
    return migrated_mariadb


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """URL and schema of a ledger with its tables, all empty. ``psycopg2`` uses that driver and no schema."""
    if request.param == "sqlite":
        path = tmp_path / "ledger.db"
        shutil.copyfile(request.getfixturevalue("migrated_sqlite"), path)
        return _sqlite(path), None
    if request.param == "mysql":
        return request.getfixturevalue("empty_mariadb"), None
    schema = None if request.param == "psycopg2" else SCHEMA
    url = request.getfixturevalue("migrated_postgres")(schema)
    with writing(make_engine(url)) as connection:
        prefix = f'"{schema}".' if schema else ""
        tables = ", ".join(prefix + table.name for table in metadata.sorted_tables)
        connection.execute(text(f"TRUNCATE {tables}"))
    return (url.set(drivername="postgresql+psycopg2") if request.param == "psycopg2" else url), schema


@pytest.fixture
def ledger(address: Address) -> SqlLedger:
    """An empty ledger with its tables."""
    url, schema = address
    return SqlLedger(url, schema=schema)


@pytest.fixture(params=["sqlite", "postgresql", "postgresql-schema", "mysql", "mariadb-schema"])
def empty_address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """URL and schema of a database without the tables."""
    if request.param == "sqlite":
        return _sqlite(tmp_path / "ledger.db"), None
    backend, _, schema = request.param.partition("-")
    if backend == "postgresql":
        return request.getfixturevalue("postgres_url")(), SCHEMA if schema else None
    url: URL = request.getfixturevalue("mariadb_url")()
    return url.set(drivername=f"{backend}+pymysql"), SCHEMA if schema else None


def _sqlite(path: Path) -> URL:
    return URL.create("sqlite+pysqlite", database=str(path))
