"""Databases behind Airflow connections: a SQLite file, PostgreSQL through each of its drivers, MariaDB.

MariaDB is reached through PyMySQL, and through mysqlclient where that and Airflow's provider are installed.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.pool import NullPool

from airflow_batch_llm.sources.database import Database
from tests.mariadb import execute, mariadb_server, mariadb_url
from tests.postgres import postgres_server, postgres_url

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]

CONN_ID = "warehouse"
ENV = "AIRFLOW_CONN_WAREHOUSE"
SCHEMA = "own"
OTHER_SCHEMA = "mart"

POSTGRESQL_DRIVERS = ["psycopg", "psycopg2"]
MYSQL_DRIVERS = ["pymysql"] + (
    ["MySQLdb"] if find_spec("MySQLdb") and find_spec("airflow.providers.mysql") else []
)
#: How statements of these tests are said on MySQL: text keys have a length, times a type.
_ON_MYSQL = [
    (r"_landed_at TEXT", "_landed_at DATETIME(6)"),
    (r"\bTEXT (PRIMARY KEY|UNIQUE)", r"VARCHAR(100) \1"),
    (r"\bTIMESTAMPTZ\b", "DATETIME(6)"),
]

Open = Callable[[str], str]


@pytest.fixture(scope="session")
def shared_database(postgres_url: Callable[[], URL]) -> URL:
    """One database for all these tests: a hundred of them take the server minutes to flush when it stops."""
    return postgres_url()


def _empty(url: URL) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for schema in (SCHEMA, OTHER_SCHEMA):
            connection.execute(text(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))


@pytest.fixture(scope="session")
def shared_mariadb(mariadb_url: Callable[[], URL]) -> URL:
    return mariadb_url()


def _open_mariadb(driver: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    url = request.getfixturevalue("shared_mariadb")
    execute(url, f"DROP DATABASE {url.database}", f"CREATE DATABASE {url.database}")
    extra = {
        "unix_socket": url.query["unix_socket"],
        "client": driver if driver == "pymysql" else "mysqlclient",
    }
    fields = {"conn_type": "mysql", "login": url.username, "schema": url.database, "extra": extra}
    monkeypatch.setenv(ENV, json.dumps(fields))
    return CONN_ID


@pytest.fixture
def open_database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return a function that gives the connection id of an empty database, by the name of its driver.

    A PostgreSQL connection asks for dict rows, which must not matter.
    """

    def make(driver: str) -> str:
        if driver in MYSQL_DRIVERS:
            return _open_mariadb(driver, request, monkeypatch)
        if driver == "sqlite3":
            path = tmp_path / "ware house.db"
            sqlite3.connect(path).close()
            monkeypatch.setenv(ENV, json.dumps({"conn_type": "sqlite", "host": str(path)}))
            return CONN_ID
        from airflow.providers.postgres.hooks import postgres

        monkeypatch.setattr(postgres, "USE_PSYCOPG3", driver == "psycopg")
        url = request.getfixturevalue("shared_database")
        _empty(url)
        fields = {
            "conn_type": "postgres",
            "host": url.host or url.query["host"],
            "login": url.username,
            "password": url.password or "",
            "schema": url.database,
            "port": url.port,
            "extra": {"cursor": "dictcursor", "options": f"-c search_path={SCHEMA}"},
        }
        monkeypatch.setenv(ENV, json.dumps(fields))
        return CONN_ID

    return make


@pytest.fixture
def sqlite_database(open_database: Open) -> str:
    return open_database("sqlite3")


@pytest.fixture(params=MYSQL_DRIVERS)
def mysql_database(request: pytest.FixtureRequest, open_database: Open) -> str:
    return open_database(request.param)


@pytest.fixture(params=POSTGRESQL_DRIVERS)
def postgres_database(request: pytest.FixtureRequest, open_database: Open) -> str:
    return open_database(request.param)


@pytest.fixture(params=["sqlite3", *POSTGRESQL_DRIVERS])
def database(request: pytest.FixtureRequest, open_database: Open) -> str:
    return open_database(request.param)


@pytest.fixture(params=["sqlite3", "psycopg", "pymysql"])
def each_database(request: pytest.FixtureRequest, open_database: Open) -> str:
    """One of each database, for what no driver has a part in."""
    return open_database(request.param)


@pytest.fixture(params=["sqlite3", *POSTGRESQL_DRIVERS, *MYSQL_DRIVERS])
def table_database(request: pytest.FixtureRequest, open_database: Open) -> str:
    """A database that answers land in."""
    return open_database(request.param)


@pytest.fixture
def sql() -> Callable[..., list[tuple[Any, ...]]]:
    """Run a statement on the connection and return what it yields."""

    def run(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        from airflow_batch_llm.sources.database import tuple_cursor

        opened = Database(CONN_ID)
        with opened.connect() as connection:
            with tuple_cursor(connection) as cursor:
                if opened.dialect == "mysql":
                    cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'")
                    for pattern, said in _ON_MYSQL:
                        statement = re.sub(pattern, said, statement)
                if parameters:
                    cursor.execute(statement, parameters)
                else:
                    cursor.execute(statement)
                rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
        return rows

    return run
