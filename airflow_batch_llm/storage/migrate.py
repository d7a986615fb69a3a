"""The ledger's schema: workers check it, one process at a time changes it.

Alembic is imported only to migrate: a check reads one row.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, column, inspect, select, table, text

from airflow_batch_llm.exceptions import ConfigurationError, LedgerSchemaError, LedgerUnavailable
from airflow_batch_llm.storage.engine import describe, make_engine, reading, translated, with_schema, writing
from airflow_batch_llm.storage.ledger import SqlLedger

#: The newest revision in ``migrations/versions``. Revisions are numbers of four digits.
HEAD_REVISION = "0005"
VERSION_TABLE = "batch_llm_version"
COMMAND = "batch-llm db migrate"

#: Seconds to wait for another process that is migrating (MySQL; elsewhere without limit).
_LOCK_SECONDS = 600
_SCRIPTS = Path(__file__).with_name("migrations")


def current_revision(engine: Engine, schema: str | None = None) -> str | None:
    """Return the schema's revision, None where there are no tables.

    :raises LedgerUnavailable: the database does not answer.
    """
    version = table(VERSION_TABLE, column("version_num"), schema=schema or None)
    with reading(engine) as connection:
        if not inspect(connection).has_table(VERSION_TABLE, schema=schema or None):
            return None
        return connection.execute(select(version.c.version_num)).scalar()


def check(engine: Engine, schema: str | None = None) -> None:
    """Return if the ledger's tables are those of this version of the package.

    :raises LedgerSchemaError: they are missing, older or newer; the message says what to run.
    :raises LedgerUnavailable: the database does not answer.
    """
    found = current_revision(engine, schema)
    if found == HEAD_REVISION:
        return
    where = f"The ledger ({describe(engine.url)}{f', schema {schema}' if schema else ''})"
    if found is None:
        raise LedgerSchemaError(f"{where} has no tables yet. Run `{COMMAND}`.")
    if found > HEAD_REVISION:
        raise LedgerSchemaError(
            f"{where} is of schema {found}, newer than this version of the package, which knows "
            f"{HEAD_REVISION}: upgrade the package here (`{COMMAND}` does not go back)."
        )
    raise LedgerSchemaError(
        f"{where} is of schema {found}, and this version needs {HEAD_REVISION}. Run `{COMMAND}`."
    )


def migrate(engine: Engine, schema: str | None = None) -> str:
    """Bring the ledger's tables to this version and return its revision. Does nothing where they are.

    Several processes may call this at once; they take turns.

    :raises LedgerSchemaError: the tables are newer than this version.
    :raises LedgerUnavailable: the database does not answer.
    """
    engine = with_schema(make_engine(engine, limited=False), schema)
    with translated(engine), _lock(engine, schema):
        found = current_revision(engine, schema)
        if found != HEAD_REVISION:
            if found is not None and found > HEAD_REVISION:
                check(engine, schema)
            if engine.dialect.name == "sqlite":
                _use_write_ahead_log(engine)
            with writing(engine) as connection:
                _upgrade(connection, schema)
    return HEAD_REVISION


def open_default_sqlite(path: Path | str) -> SqlLedger:
    """Open the ledger in an SQLite file, which is made and migrated if need be.

    :raises LedgerSchemaError: the file is of a newer version of the package.
    :raises ConfigurationError: the file cannot be made there.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigurationError(f"The ledger's folder {path.parent} cannot be made: {e.strerror}.") from None
    ledger = SqlLedger(URL.create("sqlite+pysqlite", database=str(path)))
    if current_revision(ledger.engine) != HEAD_REVISION:
        migrate(ledger.engine)
    return ledger


def _upgrade(connection: Connection, schema: str | None) -> None:
    from alembic import command
    from alembic.config import Config

    if schema and not inspect(connection).has_schema(schema):
        connection.execute(text(f"CREATE SCHEMA {connection.dialect.identifier_preparer.quote(schema)}"))
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema or None
    command.upgrade(config, HEAD_REVISION)


def _use_write_ahead_log(engine: Engine) -> None:
    """Let readers and one writer of an SQLite file work side by side. The file remembers it."""
    raw = engine.raw_connection()
    try:
        raw.cursor().execute("PRAGMA journal_mode=WAL")
    finally:
        raw.close()


def _lock(engine: Engine, schema: str | None) -> AbstractContextManager[None]:
    if engine.dialect.name == "sqlite":
        return _file_lock(Path(f"{engine.url.database}.lock"))
    if engine.dialect.name == "postgresql":
        return _postgresql_lock(engine, schema)
    return _mysql_lock(engine, schema)


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however that ends. The file stays."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise ConfigurationError(f"The ledger's lock file {path} cannot be opened: {e.strerror}.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _postgresql_lock(engine: Engine, schema: str | None) -> Iterator[None]:
    """Hold an advisory lock of a session of its own; it ends with the session."""
    key = int.from_bytes(_lock_digest(schema)[:8], "big", signed=True)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": key})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": key})


@contextmanager
def _mysql_lock(engine: Engine, schema: str | None) -> Iterator[None]:
    """Hold a named lock of a session of its own. Names are server-wide, hence the database in it."""
    key = "batch_llm_" + _lock_digest(schema or engine.url.database)[:16].hex()
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        taken = connection.execute(text("SELECT GET_LOCK(:key, :wait)"), {"key": key, "wait": _LOCK_SECONDS})
        if taken.scalar() != 1:
            raise LedgerUnavailable("Another process has been migrating the ledger for ten minutes.")
        try:
            yield
        finally:
            connection.execute(text("SELECT RELEASE_LOCK(:key)"), {"key": key})


def _lock_digest(scope: str | None) -> bytes:
    return hashlib.sha256(f"{VERSION_TABLE}/{scope or ''}".encode()).digest()
