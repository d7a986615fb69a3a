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

#: Errors of opening a connection that its fields cause, and no network.
_FIELDS_AT_FAULT = {
    "ProgrammingError",
    "AirflowException",
    "ImportError",
    "LookupError",
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
    else:
        # Class 42: syntax errors, unknown names, missing rights. No state: the driver did not get to ask.
        safe = isinstance(error, driver.ProgrammingError) and _state(error)[:2] in ("", "42")
    return lines[0][:_MAX_MESSAGE] if safe else ""


def _state(error: Exception) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _kind(error: Exception) -> str:
    state = _state(error) or getattr(error, "sqlite_errorname", "")
    return f"{type(error).__name__}{f' {state}' if state else ''}"
