"""Where jobs are kept: the ledger and the workspace that ``[batch_llm]`` names.

With nothing set, both lie in AIRFLOW_HOME. That is one machine's disk: with an executor whose workers
may sit elsewhere each would keep its own books and pay on its own, so it is refused unless
``allow_local_state`` says that all workers see the same disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import ObjectStoragePath
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_batch_llm.exceptions import ConfigurationError, LocalStateError
from airflow_batch_llm.hooks.connections import find_connection
from airflow_batch_llm.hooks.executors import remote_executors
from airflow_batch_llm.hooks.settings import Settings, airflow_home, read_settings
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import check, open_default_sqlite
from airflow_batch_llm.storage.urls import database_url
from airflow_batch_llm.storage.workspace import ObjectWorkspace

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from sqlalchemy import URL

_LOCAL_SCHEMES = frozenset({"", "file", "local"})
#: Fields of a connection's extra that the drivers take; the rest is for Airflow's own hooks.
_DRIVER_OPTIONS = {
    "postgres": (
        "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "connect_timeout", "options",
        "target_session_attrs", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
    ),
    "mysql": ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key"),
    "mariadb": ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key"),
}  # fmt: skip


def open_ledger() -> SqlLedger:
    """Open the ledger that is configured and see that its tables fit.

    :raises LocalStateError: a local file with an executor whose workers may sit on other hosts.
    :raises ConfigurationError: its connection cannot be used.
    :raises LedgerSchemaError: its tables are missing or of another version.
    :raises LedgerUnavailable: its database does not answer.
    """
    settings = read_settings()
    if not settings.ledger_conn_id:
        path = default_ledger_path()
        _refuse_local(settings, f"the ledger is the file {path}", "ledger_conn_id")
        return open_default_sqlite(path)
    url, schema = ledger_url(settings.ledger_conn_id)
    if url.get_backend_name() == "sqlite":
        _refuse_local(settings, f"the ledger is the file {url.database}", "ledger_conn_id")
    ledger = SqlLedger(url, schema=schema)
    check(ledger.engine, schema)
    return ledger


def open_workspace() -> ObjectWorkspace:
    """Open the workspace that is configured.

    :raises LocalStateError: a local folder with an executor whose workers may sit on other hosts.
    :raises ConfigurationError: the address cannot be used.
    """
    settings = read_settings()
    address = settings.workspace or f"file://{default_workspace_path()}"
    if urlsplit(address).scheme in _LOCAL_SCHEMES:
        if not Path(ObjectStoragePath(address).path).is_absolute():
            raise ConfigurationError(
                f"[batch_llm] workspace {address!r} must be an absolute path or an address"
            )
        _refuse_local(settings, f"the workspace is the folder {address}", "workspace")
    try:
        return ObjectWorkspace(ObjectStoragePath(address))
    except (ValueError, ImportError):
        scheme = urlsplit(address).scheme
        raise ConfigurationError(
            f"[batch_llm] workspace: no file system for {scheme!r} is installed here; install its provider"
        ) from None
    except AirflowNotFoundException:
        raise ConfigurationError(
            "[batch_llm] workspace names a connection that is not defined (the part before @)"
        ) from None


def ledger_url(conn_id: str) -> tuple[URL, str | None]:
    """Return the database URL of a ledger's connection, and the schema set in ``[batch_llm]``.

    :raises ConfigurationError: no such connection, or one that cannot hold a ledger.
    """
    return connection_url(find_connection(conn_id)), read_settings().ledger_schema or None


def connection_url(connection: Connection) -> URL:
    """Return the database URL of a connection of type postgres, mysql or sqlite, its driver named.

    :raises ConfigurationError: another type, a missing fact, or an SQLite path that is not absolute.
    """
    kind = connection.conn_type or ""
    if kind.startswith("sqlite"):
        # Airflow reads sqlite:////a/b.db into the schema field, and forms put the path into the host.
        path = connection.host or connection.schema or ""
        if not Path(path).is_absolute():
            raise ConfigurationError(
                f"connection {connection.conn_id!r}: an SQLite ledger needs the absolute path of its file"
            )
        return database_url(kind, path=path)
    return database_url(
        kind,
        host=connection.host,
        port=connection.port,
        login=connection.login,
        password=connection.password,
        database=connection.schema,
        query=_driver_options(kind, connection.extra_dejson),
    )


def default_ledger_path() -> Path:
    """Return the SQLite file that serves where no connection is set."""
    return airflow_home() / "batch_llm" / "ledger.db"


def default_workspace_path() -> Path:
    """Return the folder that serves where no workspace is set."""
    return airflow_home() / "batch_llm" / "workspace"


def _driver_options(kind: str, extra: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(extra[name]) for name in _DRIVER_OPTIONS.get(kind, ()) if extra.get(name) not in (None, "")
    }


def _refuse_local(settings: Settings, what: str, option: str) -> None:
    remote = [] if settings.allow_local_state else remote_executors()
    if remote:
        raise LocalStateError(
            f"{what}, and tasks run by {', '.join(remote)} may be on other machines that do not see it. "
            f"Set [batch_llm] {option}, or allow_local_state if all workers share this disk"
        )
