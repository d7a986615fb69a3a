"""Engines for the ledger: no pool, short transactions that end in bounded time, errors of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, quote_plus

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from airflow_batch_llm.exceptions import (
    BatchLLMError,
    ConfigurationError,
    LedgerSchemaError,
    LedgerUnavailable,
)

#: Seconds to wait for a connection, and in SQLite for another process's write.
CONNECT_SECONDS = 15
SQLITE_BUSY_SECONDS = 60
#: Seconds that a statement may take, and wait for somebody's lock, on PostgreSQL and MySQL.
STATEMENT_SECONDS = 60
LOCK_SECONDS = 30
#: Seconds of silence in the middle of a statement after which a MySQL connection counts as lost.
SILENCE_SECONDS = 90

_MYSQL = ("mysql", "mariadb")
#: Drivers whose options and errors we know.
_MYSQL_DRIVERS = ("pymysql", "mysqldb")
#: Whatever the server's settings: values that do not fit are refused, not cut, and tables know transactions.
_MYSQL_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', "
    "default_storage_engine = InnoDB"
)
_MYSQL_NO_TABLE, _MYSQL_NO_COLUMN = 1146, 1054

_WRITE = "batch_llm_write"
_OURS = "batch_llm_engine"


def make_engine(url: str | URL | Engine, *, limited: bool = True) -> Engine:
    """Return an engine without a pool, set up for its database.

    :param url: an engine made here is returned as it is; of any other one only the URL is used.
    :param limited: end statements and waits for locks that take too long; a migration must not.
    :raises ConfigurationError: not a URL, no driver for it, or an SQLite database in memory.
    """
    if isinstance(url, Engine):
        if limited and url.get_execution_options().get(_OURS):
            return url
        url = url.url
    parsed = _parse(url)
    backend = parsed.get_backend_name()
    options: dict[str, Any] = {
        "poolclass": NullPool,
        "hide_parameters": True,
        "execution_options": {_OURS: True},
    }
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise ConfigurationError("An SQLite ledger needs a file: every process opens it anew.")
        if "timeout" not in parsed.query:
            options["connect_args"] = {"timeout": SQLITE_BUSY_SECONDS}
    else:
        options["isolation_level"] = "READ COMMITTED"
        options["connect_args"] = _network_args(parsed, limited)
    try:
        engine = create_engine(parsed, **options)
    except ImportError as e:
        raise ConfigurationError(
            f"No driver for {parsed.drivername}: {e.name or e} is not installed."
        ) from None
    if backend == "sqlite":
        _take_over_transactions(engine)
    elif backend == "postgresql" and limited:
        _limit_transactions(engine)
    return engine


def with_schema(engine: Engine, schema: str | None) -> Engine:
    """Return the engine with the ledger's tables in ``schema``.

    :raises ConfigurationError: SQLite has no schemas.
    """
    if not schema:
        return engine
    if engine.dialect.name == "sqlite":
        raise ConfigurationError("An SQLite ledger has no schemas; leave the schema empty.")
    return engine.execution_options(schema_translate_map={None: schema})


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give a connection for reading; errors of the database come out as ours."""
    with translated(engine), engine.begin() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Give a connection in a transaction that may write, committed when the block ends."""
    with translated(engine), engine.execution_options(**{_WRITE: True}).begin() as connection:
        yield connection


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn what the driver raises into errors of this package.

    The driver's own error, which may quote the connection's settings, is not chained to it.

    :raises LedgerUnavailable: the database does not answer, takes no writes now, or gave up: a deadlock,
        a wait for a lock, a statement that takes too long. The transaction has left no trace.
    :raises LedgerSchemaError: a table or column is not there.
    """
    error: BatchLLMError
    try:
        yield
    except DBAPIError as e:
        text = redact(engine.url, str(e.orig).strip().partition("\n")[0])
        if _is_schema_fault(e):
            error = LedgerSchemaError(f"The ledger's tables do not fit: {text}. Run `batch-llm db migrate`.")
        elif isinstance(e, OperationalError | InterfaceError | InternalError) or e.connection_invalidated:
            error = LedgerUnavailable(
                f"The ledger's database ({describe(engine.url)}) does not answer: {text}"
            )
        else:
            raise
        raise error from None


def describe(url: URL) -> str:
    """Name the database without its login."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite, {url.database}"
    return f"{url.get_backend_name()}, {url.host or 'local socket'}/{url.database or ''}"


def redact(url: URL, text: str) -> str:
    """Take the URL's password out of a driver's message."""
    password = str(url.password) if url.password else ""
    for form in {password, quote(password, safe=""), quote_plus(password)} - {""}:
        text = text.replace(form, "***")
    return text


def _parse(url: str | URL) -> URL:
    if isinstance(url, URL):
        return url
    try:
        return make_url(url)
    except Exception:
        parsed = None  # SQLAlchemy's message quotes the text given, password included
    if parsed is None:
        raise ConfigurationError(
            "The ledger's address is not a database URL (driver://user:password@host/name)."
        )
    return parsed


def _network_args(url: URL, limited: bool) -> dict[str, Any]:
    if url.get_backend_name() in _MYSQL:
        return _mysql_args(url, limited)
    args: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS}
    if url.get_backend_name() == "postgresql":
        # A host that is gone without a word is noticed in about a minute.
        silence = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        args |= {"application_name": "airflow_batch_llm", "tcp_user_timeout": 60_000, **silence}
    args = {key: value for key, value in args.items() if key not in url.query}
    if url.get_driver_name() == "psycopg":
        args["prepare_threshold"] = None  # a pooler between us and the server loses prepared statements
    return args


def _mysql_args(url: URL, limited: bool) -> dict[str, Any]:
    if url.get_driver_name() not in _MYSQL_DRIVERS:
        raise ConfigurationError(
            f"A ledger cannot be reached with {url.drivername}: use the driver pymysql or mysqldb."
        )
    # The character set is ours to say: with any other one, some text could not be written.
    args: dict[str, Any] = {"charset": "utf8mb4", "init_command": _MYSQL_SESSION}
    if "connect_timeout" not in url.query:
        args["connect_timeout"] = CONNECT_SECONDS
    if limited:
        args["init_command"] += _mysql_limits()
        args |= {"read_timeout": SILENCE_SECONDS, "write_timeout": SILENCE_SECONDS}
    return args


def _mysql_limits() -> str:
    """Return the settings that bound a session. Each server reads its own kind of comment."""
    return (
        # The second is for tables that somebody alters.
        f", innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}"
        f" /*M!100100 , max_statement_time = {STATEMENT_SECONDS} */"
        f" /*!50708 , max_execution_time = {STATEMENT_SECONDS * 1000} */"
    )


def _limit_transactions(engine: Engine) -> None:
    """End statements and waits for locks. In each transaction: a pooler keeps no settings of a session."""
    limits = (
        f"SELECT set_config('lock_timeout', '{LOCK_SECONDS}s', true), "
        f"set_config('statement_timeout', '{STATEMENT_SECONDS}s', true)"
    )

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql(limits)


def _take_over_transactions(engine: Engine) -> None:
    """Make SQLite's transactions ours: the driver would begin late, and never IMMEDIATE.

    A transaction that reads first and writes later can fail with "database is locked" at once, whatever
    the time-out, when another one wrote in between.
    """

    @event.listens_for(engine, "connect")
    def _connected(dbapi_connection: Any, record: Any) -> None:
        dbapi_connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        write = connection.get_execution_options().get(_WRITE)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _is_schema_fault(error: DBAPIError) -> bool:
    text = str(error.orig)
    number = error.orig.args[0] if error.orig is not None and error.orig.args else None
    if number in (_MYSQL_NO_TABLE, _MYSQL_NO_COLUMN):  # the drivers sort the second as operational
        return True
    if isinstance(error, OperationalError):
        return "no such table" in text or "no such column" in text or "has no column named" in text
    if isinstance(error, ProgrammingError):
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        return state in ("42P01", "42703", "3F000")
    return False
