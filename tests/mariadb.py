"""A real MariaDB for the tests: on a socket of its own, started once per session where it is installed.

Use it with ``from tests.mariadb import mariadb_server, mariadb_url`` in a ``conftest.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

MISSING = "needs a MariaDB server and PyMySQL: apt-get install mariadb-server, pip install pymysql"

_numbers = count(1)
#: Where packages put servers, beside PATH.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/bin", "/opt/homebrew/bin")
#: Seconds until a starting server must answer.
_START_SECONDS = 60
#: No test pulls the plug, and a small server starts sooner.
_OPTIONS = (
    "--skip-networking",
    "--skip-log-bin",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=8M",
    "--innodb-fast-shutdown=2",
)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[URL]:
    """Start the server and give its URL without a database; stop it and remove its files."""
    with running_mariadb() as url:
        # A session that is told to end must take its server along; the default would leave it running.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield url
        finally:
            signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def mariadb_url(mariadb_server: URL) -> Callable[[], URL]:
    """Give a function whose every call makes an empty database and returns its URL (driver PyMySQL).

    Its default character set is the one of old servers: the ledger must not depend on it.
    """

    def make() -> URL:
        name = f"fresh_{next(_numbers)}"
        execute(mariadb_server, f"CREATE DATABASE {name} CHARACTER SET latin1 COLLATE latin1_swedish_ci")
        return mariadb_server.set(database=name)

    return make


@contextmanager
def running_mariadb(*options: str) -> Iterator[URL]:
    """Run a server with an empty data directory and give its URL (user root, no database).

    :param options: further options of the server.
    """
    server, install = _program("mariadbd", "mysqld"), _program("mariadb-install-db", "mysql_install_db")
    if server is None or install is None or find_spec("pymysql") is None:
        pytest.skip(MISSING)
    # Not pytest's folder: the path of a socket has to be short.
    folder = Path(tempfile.mkdtemp(prefix="batch-llm-my-"))
    data, socket = folder / "data", folder / "socket"
    user = ["--user=root"] if os.geteuid() == 0 else []
    quick = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(
        [install, "--no-defaults", *user, f"--datadir={data}", *quick], check=True, capture_output=True
    )
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            [server, "--no-defaults", *user, f"--datadir={data}", f"--socket={socket}",
             f"--pid-file={folder / 'pid'}", *_OPTIONS, *options],
            stdout=log, stderr=log,
        )  # fmt: skip
    url = URL.create("mysql+pymysql", username="root", query={"unix_socket": str(socket)})
    try:
        _wait_for(url, started, folder / "log")
        yield url
    finally:
        started.terminate()
        started.wait()
        shutil.rmtree(folder, ignore_errors=True)


def execute(url: URL, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _program(*names: str) -> str | None:
    folders = os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS])
    return next((found for name in names if (found := shutil.which(name, path=folders))), None)


def _wait_for(url: URL, started: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(_START_SECONDS * 20):
        try:
            return execute(url, "SELECT 1")
        except OperationalError:
            try:
                started.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
    raise RuntimeError(f"MariaDB did not start: {log.read_text()[-2000:]}")
