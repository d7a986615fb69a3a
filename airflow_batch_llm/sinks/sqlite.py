"""Tables of SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.sinks.cells import iso, moment
from airflow_batch_llm.sinks.columns import LANDED_AT
from airflow_batch_llm.sinks.kinds import BOOLEAN, DATE, INTEGER, JSON, NUMBER, TEXT, TIME, VECTOR
from airflow_batch_llm.sinks.tables import (
    AS_INTEGER,
    AS_OTHER,
    AS_TEXT,
    AS_TIME,
    Column,
    Table,
    TableFacts,
    Upsert,
    rows_of,
)
from airflow_batch_llm.sources.database import tuple_cursor


@dataclass(frozen=True)
class SqliteTable(Table):
    """A table of SQLite. Points in time and JSON are text there."""

    types = {
        TEXT: "TEXT",
        INTEGER: "BIGINT",
        NUMBER: "DOUBLE PRECISION",
        BOOLEAN: "BOOLEAN",
        JSON: "TEXT",
        DATE: "TEXT",
        TIME: "TEXT",
        VECTOR: "TEXT",
    }
    marker = "?"
    #: Points in time are text: only in one form do they order as time does.
    conversions = {AS_TIME: moment(iso)}

    @staticmethod
    def quote(identifier: str) -> str:
        """Quote one identifier by the SQL standard."""
        return '"' + identifier.replace('"', '""') + '"'

    @staticmethod
    def bound(quoted: str) -> str:
        """Return it as it is: a percent sign means nothing here."""
        return quoted

    def facts(self, connection: Any, written: Sequence[str], unique: Sequence[str]) -> TableFacts | None:
        """Ask SQLite about the table."""
        where = (self.name,) if self.schema is None else (self.name, self.schema)
        marks = ", ".join("?" * len(where))
        columns = rows_of(
            connection,
            f'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info({marks})',
            where,
        )
        if not columns:
            return None
        covered = [frozenset(name for name, *_, pk in columns if pk)]
        indexes = rows_of(
            connection, f'SELECT name FROM pragma_index_list({marks}) WHERE "unique" AND NOT partial', where
        )
        for (index,) in indexes:
            parts = rows_of(
                connection,
                f"SELECT name FROM pragma_index_xinfo({marks}) WHERE key",
                (index,) if self.schema is None else (index, self.schema),
            )
            if all(part is not None for (part,) in parts):
                covered.append(frozenset(part for (part,) in parts))
        return TableFacts(
            {name: Column(_category(declared), declared) for name, declared, *_ in columns},
            frozenset(name for name, _, not_null, default, _ in columns if not_null and default is None),
            frozenset(found for found in covered if found),
        )

    def missing_privileges(self, connection: Any, wanted: Sequence[str], written: Sequence[str]) -> list[str]:
        """Return nothing: SQLite knows no privileges."""
        return []

    def may_be_created(self, connection: Any) -> bool:
        """Say whether the schema, which is an attached file here, is there."""
        attached = rows_of(connection, "PRAGMA database_list")
        return self.schema is None or any(row[1] == self.schema for row in attached)

    def unique_index_statement(self, unique: Sequence[str]) -> str:
        """Return the statement that makes columns unique together; the schema goes with the index's name."""
        schema = f"{self.quote(self.schema)}." if self.schema else ""
        index = f"{schema}{self.quote(self.name + '_key')}"
        columns = ", ".join(map(self.quote, unique))
        return f"CREATE UNIQUE INDEX {index} ON {self.quote(self.name)} ({columns})"

    def write(self, connection: Any, plan: Upsert, rows: Sequence[tuple[Any, ...]]) -> int:
        """Write rows with one statement that is run for each; see :meth:`Table.write`."""
        updates = ", ".join(f"{self.quote(c)} = excluded.{self.quote(c)}" for c in plan.changing)
        differs = " OR ".join(f"{_old(c)} IS NOT {_new(c)}" for c in plan.changing if c != LANDED_AT)
        statement = (
            f"INSERT INTO {self.quoted} AS t ({', '.join(map(self.quote, plan.columns))}) "
            f"VALUES ({', '.join('?' * len(plan.columns))}) "
            f"ON CONFLICT ({', '.join(map(self.quote, plan.unique))}) DO UPDATE SET {updates} "
            f"WHERE ({differs}) AND ({self.newer(_old, _new, plan)})"
        )
        with tuple_cursor(connection) as cursor:
            cursor.executemany(statement, rows)
            return int(cursor.rowcount)

    def begin_alone(self, connection: Any, name: str) -> None:
        """Take the file's one right to write; waits as every writer does."""
        connection.execute("BEGIN IMMEDIATE")


def _old(column: str) -> str:
    return f"t.{SqliteTable.quote(column)}"


def _new(column: str) -> str:
    return f"excluded.{SqliteTable.quote(column)}"


def _category(declared: str) -> str:
    """Return the category of a declared type, by SQLite's rules of affinity."""
    upper = declared.upper()
    if "INT" in upper:
        return AS_INTEGER
    if "TIME" in upper:  # DATETIME, TIMESTAMP
        return AS_TIME
    return AS_TEXT if any(word in upper for word in ("CHAR", "CLOB", "TEXT")) else AS_OTHER
