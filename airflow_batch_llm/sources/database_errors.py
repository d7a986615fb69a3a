"""What an error of a user's database means: who is at fault, whether trying again helps, what may be told.

Told are the connection id, the kind of the error and, where it can only speak of the statement, the
database's message. Messages about values quote rows, and those about connections may quote a password.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_batch_llm.exceptions import (
    BatchLLMError,
    ConfigurationError,
    DatabaseUnavailable,
    SinkError,
    SourceError,
)

_SQLITE_HINT = 'for SQLite give {"conn_type": "sqlite", "host": "/abs/path.db"}'
_MAX_MESSAGE = 200

#: What SQLite says about a statement, as against what it says about values.
_SQLITE_STATEMENT = re.compile(
    r"near \".*\": syntax error|incomplete input|unrecognized token|no such (table|column|function)"
    r"|ambiguous column name|wrong number of arguments|table .* has no column|misuse of"
)

#: What MySQL says about a statement's names and rights: no such table, column, function, database; ambiguous
#: or repeated names; no right. These messages hold no value.
_MYSQL_NAMES = frozenset({1044, 1046, 1049, 1051, 1052, 1054, 1060, 1066, 1142, 1143, 1146, 1305, 1370})
#: Further ones at which a statement or a value is at fault and which its drivers take for the server's:
#: a value that cannot be converted, is too large or too long; several rows where one must be; GROUP BY;
#: collations that cannot be compared; arguments of functions; what a procedure raises; a CHECK.
_MYSQL_REFUSALS = _MYSQL_NAMES | {
    1055, 1056, 1111, 1140, 1222, 1235, 1241, 1242, 1247, 1248, 1264, 1265, 1267, 1271, 1292, 1364, 1365,
    1366, 1406, 1411, 1413, 1414, 1415, 1416, 1421, 1441, 1525, 1582, 1583, 1584, 1585, 1644, 1690, 3140,
    3141, 3143, 3819, 4025,
}  # fmt: skip
_MYSQL_DRIVERS = ("pymysql", "MySQLdb", "mysql.connector")
#: No right to do something to a table, or to a column of it.
_MYSQL_DENIED = frozenset({1142, 1143})

#: Errors of opening a connection that its fields cause, and no network.
_FIELDS_AT_FAULT = {
    "ProgrammingError",
    "AirflowException",
    "ImportError",
    "LookupError",
    "RuntimeError",
    "TypeError",
    "ValueError",
}

#: Errors of Python's own, about parameters that do not fit the statement.
_MISFITS = (KeyError, IndexError, TypeError)


def no_connection(conn_id: str) -> ConfigurationError:
    """Return the error for a connection id that Airflow does not know or cannot read."""
    return ConfigurationError(
        f"there is no connection {conn_id!r} that Airflow can read; make it in Airflow, or set "
        f"AIRFLOW_CONN_{conn_id.upper()} ({_SQLITE_HINT})"
    )


def no_sql_hook(conn_id: str, conn_type: str | None) -> ConfigurationError:
    """Return the error for a connection that gives no SQL hook."""
    return ConfigurationError(
        f"connection {conn_id!r} ({conn_type or 'without a type'}) is of no SQL database that is installed "
        f"here; check its type, and install the Airflow provider for it ({_SQLITE_HINT})"
    )


def of_connecting(error: Exception, conn_id: str) -> BatchLLMError:
    """Return the error for a connection that cannot be opened."""
    kind = _kind(error)
    text = str(error)
    if "invalid uri authority" in text or "unable to open database file" in text:
        return ConfigurationError(
            f"connection {conn_id!r} names no file that can be opened ({kind}); {_SQLITE_HINT}, "
            "in a folder that exists"
        )
    # By name: which driver it is can only be told from a connection.
    if _FIELDS_AT_FAULT & {base.__name__ for base in type(error).__mro__}:
        return ConfigurationError(
            f"connection {conn_id!r} cannot be used as it is ({kind}); check its fields and its extra"
        )
    return DatabaseUnavailable(f"the database of connection {conn_id!r} cannot be reached ({kind})")


def of_asking(
    error: Exception, driver: Any, conn_id: str, refused: type[SourceError] | type[SinkError]
) -> BatchLLMError:
    """Return the error for a statement that failed, on executing or on fetching.

    :param driver: the DB-API module.
    :param refused: the class of error for a statement or a value that is at fault.
    """
    if _is_refusal(error, driver):
        said = _safe_message(error, driver)
        return refused(
            f"the database of connection {conn_id!r} refuses the statement, or a value that it meets "
            f"({_kind(error)}){f': {said}' if said else ''}"
        )
    return DatabaseUnavailable(f"the database of connection {conn_id!r} does not answer ({_kind(error)})")


def is_of_values(error: Exception, driver: Any) -> bool:
    """Say whether the values that a statement brings are at fault, so that other rows may get through."""
    if not isinstance(error, driver.Error):
        # Python's own: whole numbers above 64 bits for SQLite, half surrogate pairs.
        return isinstance(error, (OverflowError, ValueError))
    if isinstance(error, (driver.DataError, driver.IntegrityError, driver.ProgrammingError)):
        return True
    # Class 54: more than the database can take, as JSON that nests too deeply.
    return _state(error)[:2] == "54" or (
        driver.__name__ in _MYSQL_DRIVERS and _mysql_number(error) in _MYSQL_REFUSALS
    )


def is_denied(error: Exception, driver: Any) -> bool:
    """Say whether MySQL tells that the user has no right to what a statement does."""
    return driver.__name__ in _MYSQL_DRIVERS and _mysql_number(error) in _MYSQL_DENIED


def _is_refusal(error: Exception, driver: Any) -> bool:
    """Say whether the statement, its parameters or the data are at fault, so that trying again is useless."""
    if not isinstance(error, driver.Error):
        return True
    wrong = (driver.ProgrammingError, driver.DataError, driver.IntegrityError, driver.NotSupportedError)
    if isinstance(error, wrong):
        return True
    sqlite = getattr(error, "sqlite_errorname", None)
    if sqlite is not None:
        # SQLite reports an unknown table or column as an operational error of its most general kind.
        return sqlite in ("SQLITE_ERROR", "SQLITE_NOTADB", "SQLITE_AUTH") or sqlite.startswith(
            ("SQLITE_CORRUPT", "SQLITE_READONLY")
        )
    if driver.__name__ in _MYSQL_DRIVERS:
        return _mysql_number(error) in _MYSQL_REFUSALS
    # PostgreSQL: a read-only transaction, and what a function of the user's own raises.
    state = _state(error)
    return state == "25006" or state.startswith("P0")


def _safe_message(error: Exception, driver: Any) -> str:
    """Return the message where it can only speak of the statement, else ""."""
    lines = str(error).strip().splitlines()
    if not lines:
        return ""
    if not isinstance(error, driver.Error):
        safe = isinstance(error, _MISFITS)
    elif driver.__name__ == "sqlite3":
        safe = isinstance(error, driver.ProgrammingError) or bool(_SQLITE_STATEMENT.match(lines[0]))
    elif driver.__name__ in _MYSQL_DRIVERS:
        # Nothing of syntax errors: they quote the statement, in which values stand by then.
        safe = _mysql_number(error) in _MYSQL_NAMES
    else:
        # Class 42: syntax errors, unknown names, missing rights. No state: the driver did not get to ask.
        safe = isinstance(error, driver.ProgrammingError) and _state(error)[:2] in ("", "42")
    return lines[0][:_MAX_MESSAGE] if safe else ""


def _mysql_number(error: Exception) -> int | None:
    number = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    return number if isinstance(number, int) else None


def _state(error: Exception) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _kind(error: Exception) -> str:
    state = _state(error) or getattr(error, "sqlite_errorname", "") or _mysql_number(error)
    return f"{type(error).__name__}{f' {state}' if state else ''}"
