"""Database URLs that name their driver, from the facts of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from sqlalchemy import URL

from airflow_batch_llm.exceptions import ConfigurationError

#: Kind of database -> (backend, ((module to import, driver's name in the URL), ...)), best first.
#: The driver is always named: which one a bare ``postgresql://`` means depends on SQLAlchemy's version.
_DRIVERS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "postgresql": ("postgresql", (("psycopg", "psycopg"), ("psycopg2", "psycopg2"))),
    "mysql": ("mysql", (("pymysql", "pymysql"), ("MySQLdb", "mysqldb"))),
    "mariadb": ("mariadb", (("pymysql", "pymysql"), ("MySQLdb", "mysqldb"))),
    "sqlite": ("sqlite", (("sqlite3", "pysqlite"),)),
}
_ALIASES = {"postgres": "postgresql", "sqlite3": "sqlite"}
_PACKAGES = {"postgresql": "psycopg[binary]", "mysql": "pymysql", "mariadb": "pymysql", "sqlite": "sqlite3"}


def database_url(
    kind: str,
    *,
    host: str | None = None,
    port: int | None = None,
    login: str | None = None,
    password: str | None = None,
    database: str | None = None,
    path: str | None = None,
    query: Mapping[str, str] | None = None,
) -> URL:
    """Return the URL of a database.

    :param kind: ``postgres`` (or ``postgresql``), ``mysql``, ``mariadb`` or ``sqlite``: an Airflow
        connection type.
    :param database: name of the database (``schema`` in an Airflow connection).
    :param path: the SQLite file.
    :param query: further options of the driver.
    :raises ConfigurationError: another kind, no driver installed, or a fact is missing.
    """
    name = _ALIASES.get(kind, kind)
    if name not in _DRIVERS:
        raise ConfigurationError(
            f"A ledger cannot be kept in {kind!r}: use postgres, mysql, mariadb or sqlite."
        )
    backend, drivers = _DRIVERS[name]
    driver = next((driver for module, driver in drivers if find_spec(module) is not None), None)
    if driver is None:
        raise ConfigurationError(f"No driver for {kind} is installed here: install {_PACKAGES[name]}.")
    if name == "sqlite":
        if not path:
            raise ConfigurationError("An SQLite ledger needs the path of its file.")
        return URL.create(f"{backend}+{driver}", database=path, query=query or {})
    if not database:
        raise ConfigurationError(f"The ledger's {kind} connection names no database.")
    return URL.create(
        f"{backend}+{driver}",
        username=login or None,
        password=password or None,
        host=host or None,
        port=port,
        database=database,
        query=query or {},
    )
