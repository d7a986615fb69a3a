"""The users' databases, through the hooks that Airflow's providers give: connections, cursors, drivers."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from airflow_batch_llm.exceptions import ConfigurationError, SinkError, SourceError
from airflow_batch_llm.sources.database_errors import no_connection, no_sql_hook, of_asking, of_connecting

POSTGRESQL = "postgresql"
SQLITE = "sqlite"
MYSQL = "mysql"

_DIALECTS = {"postgres": POSTGRESQL, "sqlite": SQLITE, "mysql": MYSQL}
#: Seconds that SQLite waits for another writer.
_SQLITE_BUSY_SECONDS = 60


class Database:
    """One connection id's database. Nothing is opened before :meth:`connect`.

    :param refused: the class of error for what the database refuses.
    :raises ConfigurationError: there is no such connection, or it is of no SQL database.
    """

    def __init__(self, conn_id: str, refused: type[SourceError] | type[SinkError] = SourceError) -> None:
        from airflow.providers.common.sql.hooks.sql import DbApiHook
        from airflow.sdk import BaseHook
        from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

        self.conn_id = conn_id
        self._refused = refused
        try:
            connection = BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            raise no_connection(conn_id) from None
        try:
            self.hook: Any = _hook(connection, conn_id)
        except (AirflowException, ImportError):
            raise no_sql_hook(conn_id, connection.conn_type) from None
        if not isinstance(self.hook, DbApiHook):
            raise no_sql_hook(conn_id, connection.conn_type)
        #: ``postgresql``, ``sqlite``, ``mysql`` (MariaDB as well), or another database's connection type.
        self.dialect: str = _DIALECTS.get(self.hook.conn_type) or str(self.hook.conn_type)
        self._charset_given = bool(connection.extra_dejson.get("charset"))

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Open a DB-API connection; it is closed in every case, uncommitted work is rolled back.

        Errors of the driver that the body lets through come out as errors of this package.

        :raises DatabaseUnavailable: it does not answer, now or any more.
        :raises ConfigurationError: the connection's fields cannot work.
        """
        try:
            opened = self.hook.get_conn()
        except Exception as e:
            raise of_connecting(e, self.conn_id) from None
        driver = driver_of(opened)
        try:
            with closing(opened) as connection:
                if self.dialect == SQLITE:
                    connection.execute(f"PRAGMA busy_timeout = {_SQLITE_BUSY_SECONDS * 1000}")
                elif driver.__name__ in ("pymysql", "MySQLdb") and not self._charset_given:
                    # A client library's default may hold no more than Latin-1, and reads all else as "?".
                    connection.set_character_set("utf8mb4")
                yield connection
        except (driver.Error, driver.Warning) as e:
            raise of_asking(e, driver, self.conn_id, self._refused) from None

    @contextmanager
    def asking(self, driver: Any) -> Iterator[None]:
        """Turn an error of a call to the driver into one of this package.

        For reading: drivers also raise plain Python errors, over parameters that do not fit and over values
        that Python cannot hold.
        """
        plain = (ArithmeticError, LookupError, TypeError, ValueError)
        try:
            yield
        except (driver.Error, driver.Warning, *plain) as e:
            raise of_asking(e, driver, self.conn_id, self._refused) from None


def _hook(connection: Any, conn_id: str) -> Any:
    """Return the hook of a connection: Airflow's, or for MySQL one over PyMySQL (see there when)."""
    if connection.conn_type == "mysql":
        from airflow.sdk.exceptions import AirflowException

        if connection.extra_dejson.get("client") != "pymysql":
            try:
                return connection.get_hook()
            except (AirflowException, ImportError):
                pass  # the provider is not installed
        from airflow_batch_llm.sources.pymysql_hook import PyMySqlHook

        return PyMySqlHook(conn_id)
    return connection.get_hook()


def driver_of(connection: Any) -> Any:
    """Return the DB-API module of a connection: it holds the error classes."""
    package, _, module = type(connection).__module__.partition(".")
    if package == "mysql":  # of many packages; mysql-connector-python's is mysql.connector
        package = f"{package}.{module.partition('.')[0]}"
    return importlib.import_module(package)


@contextmanager
def tuple_cursor(connection: Any, *, stream: bool = False) -> Iterator[Any]:
    """Open a cursor that yields tuples, whatever rows the connection's ``cursor`` extra asks for.

    :param stream: do not fetch a whole result at once: psycopg and psycopg2 need a named cursor on the
        server for that, PyMySQL and mysqlclient a class of cursor; other drivers do it by themselves.
    """
    driver = driver_of(connection).__name__
    options: dict[str, Any] = {}
    if driver in ("pymysql", "MySQLdb"):
        cursors = importlib.import_module(f"{driver}.cursors")
        options["cursor" if driver == "pymysql" else "cursorclass"] = (
            cursors.SSCursor if stream else cursors.Cursor
        )
    if stream and driver in ("psycopg", "psycopg2"):
        options["name"] = "batch_llm_source"
    if driver == "psycopg2":
        from psycopg2.extensions import cursor as plain_cursor  # type: ignore[import-untyped]

        options["cursor_factory"] = plain_cursor
    elif driver == "psycopg":
        from psycopg.rows import tuple_row

        options["row_factory"] = tuple_row
    elif driver == "mysql.connector":
        connection.can_consume_results = True  # a cursor that has not been read to its end may be closed
    elif driver == "sqlite3":
        connection.text_factory = _sqlite_text
    cursor = connection.cursor(**options)
    try:
        yield cursor
    except Exception:
        # Closing what a lost connection left can fail as well, with an error that says less.
        with suppress(Exception):
            cursor.close()
        _forget_rest(cursor)
        raise
    except BaseException:
        cursor.close()
        raise
    cursor.close()


def _forget_rest(cursor: Any) -> None:
    """Let a result of PyMySQL go whose connection is gone: it would ask for its rest when it is collected."""
    result = getattr(cursor, "_result", None)
    if result is not None and getattr(result, "unbuffered_active", False):
        result.unbuffered_active = False


def _sqlite_text(data: bytes) -> str:
    """Decode a text value. SQLite stores any bytes as text; one bad value must not end the reading.

    Bytes that are not UTF-8 become half surrogates, which mark the row as one that cannot be sent.
    """
    return data.decode("utf-8", "surrogateescape")


def quote(identifier: str) -> str:
    """Quote one identifier by the SQL standard, as PostgreSQL and SQLite do."""
    return '"' + identifier.replace('"', '""') + '"'


_COMMENT = r"--.*\n|/\*(?:[^*]|\*(?!/))*\*/"
_STATEMENT = re.compile(rf"(?:\s|\(|{_COMMENT})*(?:select|with|values|table|show|call|exec)\s", re.IGNORECASE)


def is_statement(text: str) -> bool:
    """Say whether a text begins as a query does."""
    return _STATEMENT.match(text) is not None


_TABLE_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')


def split_table(name: str) -> tuple[str | None, str]:
    """Split ``table``, ``schema.table`` or ``"quoted.schema"."table"`` into schema and table.

    Names are taken as they are, case and all: they are always quoted in statements.

    :raises ConfigurationError: it is not one of these forms.
    """
    parts: list[str] = []
    position = 0
    while position < len(name):
        found = _TABLE_PART.match(name, position)
        if found is None:
            break
        parts.append(found[1].replace('""', '"') if found[1] is not None else found[2])
        position = found.end()
        if position == len(name):
            break
        if name[position] != "." or position + 1 == len(name):
            position = -1
            break
        position += 1
    if position != len(name) or len(parts) not in (1, 2) or "\0" in name:
        raise ConfigurationError(f"{name!r} is no table name; write it as table or schema.table")
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])
