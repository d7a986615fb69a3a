"""The demo's warehouse: an SQLite file with the shipped tickets in table ``tickets``."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

TICKETS = Path(__file__).with_name("tickets.csv")

_SCHEMA = """
CREATE TABLE tickets (
    id         TEXT PRIMARY KEY,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    customer   TEXT NOT NULL,
    channel    TEXT NOT NULL,
    body       TEXT NOT NULL
);
CREATE INDEX tickets_updated_at ON tickets (updated_at);
"""


def load_tickets(database: Path, *, later_by: timedelta = timedelta(0)) -> int:
    """Make the database with the shipped tickets in it and return how many there are.

    The tickets were updated between 2026-01-14 02:00 and 2026-01-17 02:00 UTC: three nightly intervals.

    :param database: file to make; must not exist.
    :param later_by: moves all times, for tests that need tickets of yesterday.
    :raises FileExistsError: the file is there already.
    """
    if database.exists():
        raise FileExistsError(database)
    database.parent.mkdir(parents=True, exist_ok=True)
    with TICKETS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for column in ("created_at", "updated_at"):
            row[column] = (datetime.fromisoformat(row[column]) + later_by).isoformat()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(_SCHEMA)
        connection.executemany(
            "INSERT INTO tickets VALUES (:id, :created_at, :updated_at, :customer, :channel, :body)", rows
        )
    return len(rows)
