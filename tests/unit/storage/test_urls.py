from __future__ import annotations

import pytest
from pytest_mock import MockerFixture

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.storage import urls
from airflow_batch_llm.storage.urls import database_url


def _installed(mocker: MockerFixture, *modules: str) -> None:
    mocker.patch.object(urls, "find_spec", side_effect=lambda name: object() if name in modules else None)


@pytest.mark.parametrize(
    ("kind", "installed", "driver"),
    [
        ("postgres", ("psycopg", "psycopg2"), "postgresql+psycopg"),
        ("postgresql", ("psycopg2",), "postgresql+psycopg2"),
        ("mysql", ("pymysql", "MySQLdb"), "mysql+pymysql"),
        ("mysql", ("MySQLdb",), "mysql+mysqldb"),
        ("mariadb", ("pymysql",), "mariadb+pymysql"),
    ],
)
def test_the_url_names_a_driver_that_is_installed(
    mocker: MockerFixture, kind: str, installed: tuple[str, ...], driver: str
) -> None:
    _installed(mocker, *installed)
    url = database_url(kind, host="db", port=1234, login="me", password="p@:/s", database="ledger")
    assert url.drivername == driver
    assert (url.host, url.port, url.username, url.password, url.database) == (
        "db",
        1234,
        "me",
        "p@:/s",
        "ledger",
    )


def test_an_sqlite_url_holds_the_path_as_it_is() -> None:
    url = database_url("sqlite", path="/data/my ledger?.db")
    assert url.drivername == "sqlite+pysqlite"
    assert url.database == "/data/my ledger?.db"


def test_a_password_is_hidden_when_the_url_is_printed() -> None:
    assert "hunter2" not in str(database_url("postgres", password="hunter2", login="a", database="d"))


def test_a_database_without_a_driver_is_refused_with_the_package_to_install(mocker: MockerFixture) -> None:
    _installed(mocker)
    with pytest.raises(ConfigurationError, match="install pymysql"):
        database_url("mysql", database="d")


def test_other_databases_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="snowflake"):
        database_url("snowflake", database="d")


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_a_connection_that_names_no_database_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError):
        database_url(kind, host="db")
