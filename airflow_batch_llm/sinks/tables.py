"""Tables of PostgreSQL and SQLite: what is there, and the statements to make and to fill one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.sinks.columns import LANDED_AT
from airflow_batch_llm.sources.database import POSTGRESQL, SQLITE, quote, tuple_cursor

_TYPES = {
    POSTGRESQL: {
        "text": "TEXT",
        "integer": "BIGINT",
        "number": "DOUBLE PRECISION",
        "boolean": "BOOLEAN",
        "time": "TIMESTAMPTZ",
    },
    SQLITE: {
        "text": "TEXT",
        "integer": "BIGINT",
        "number": "DOUBLE PRECISION",
        "boolean": "BOOLEAN",
        "time": "TEXT",
    },
}
SUPPORTED = frozenset(_TYPES)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the database says about a table.

    :param columns: its columns.
    :param required: those that are NOT NULL and have no default.
    :param unique: the sets of columns that a usable unique index covers.
    """

    columns: frozenset[str]
    required: frozenset[str]
    unique: frozenset[frozenset[str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table by name in one dialect."""

    dialect: str
    schema: str | None
    name: str

    @property
    def quoted(self) -> str:
        """The name as statements write it."""
        return f"{quote(self.schema)}.{quote(self.name)}" if self.schema else quote(self.name)

    def facts(self, connection: Any) -> TableFacts | None:
        """Ask the database about the table; None where there is none."""
        if self.dialect == POSTGRESQL:
            return _postgresql_facts(connection, self.quoted)
        return _sqlite_facts(connection, self.schema, self.name)

    def missing_privileges(self, connection: Any) -> list[str]:
        """Return what the connection's user may not do with the table (SQLite knows no privileges)."""
        if self.dialect != POSTGRESQL:
            return []
        wanted = ("SELECT", "INSERT", "UPDATE")
        calls = ", ".join(f"has_table_privilege(%s::regclass, '{name}')" for name in wanted)
        (allowed,) = _rows(connection, f"SELECT {calls}", (self.quoted,) * len(wanted))
        return [name for name, is_allowed in zip(wanted, allowed, strict=True) if not is_allowed]

    def may_be_created(self, connection: Any) -> bool:
        """Say whether the schema is there and the user may make tables in it."""
        if self.dialect != POSTGRESQL:
            return self.schema is None or any(
                row[1] == self.schema for row in _rows(connection, "PRAGMA database_list", ())
            )
        rows = _rows(
            connection,
            "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace "
            "WHERE nspname = COALESCE(%s::text, current_schema())",
            (self.schema,),
        )
        return bool(rows and rows[0][0])

    def create_statement(self, kinds: Mapping[str, str], key: Sequence[str]) -> str:
        """Return the statement that makes the table where it is absent.

        :param kinds: column -> ``text``, ``integer``, ``number`` or ``boolean``, without ``_landed_at``.
        """
        types = _TYPES[self.dialect]
        columns = [
            f"{quote(name)} {types[kind]}{' NOT NULL' if name in key else ''}" for name, kind in kinds.items()
        ]
        columns.append(f"{quote(LANDED_AT)} {types['time']}")
        primary = ", ".join(map(quote, key))
        return f"CREATE TABLE IF NOT EXISTS {self.quoted} ({', '.join(columns)}, PRIMARY KEY ({primary}))"

    def add_column_statement(self, name: str, kind: str) -> str:
        """Return the statement that adds a column."""
        return f"ALTER TABLE {self.quoted} ADD COLUMN {quote(name)} {_TYPES[self.dialect][kind]}"

    def unique_index_statement(self, key: Sequence[str]) -> str:
        """Return the statement that makes the key unique."""
        columns = ", ".join(map(quote, key))
        if self.dialect == POSTGRESQL:
            return f"CREATE UNIQUE INDEX ON {self.quoted} ({columns})"
        schema = f"{quote(self.schema)}." if self.schema else ""
        return f"CREATE UNIQUE INDEX {schema}{quote(self.name + '_key')} ON {quote(self.name)} ({columns})"

    def upsert_statement(self, columns: Sequence[str], key: Sequence[str], rows: int) -> str:
        """Return the statement that inserts rows, and updates those that are there and differ.

        A row that says the same stays as it is, ``_landed_at`` included. A row of a later revision of the
        same job, or of a job that was created later, is never overwritten by an earlier one.
        """
        marker = "?" if self.dialect == SQLITE else "%s"
        values = f"({', '.join([marker] * len(columns))})"
        changing = [column for column in columns if column not in key]
        updates = ", ".join(f"{self._bound(c)} = excluded.{self._bound(c)}" for c in changing)
        differs = " OR ".join(self._differs(column) for column in changing if column != LANDED_AT)
        return (
            f"INSERT INTO {self._escaped(self.quoted)} AS t ({', '.join(map(self._bound, columns))}) "
            f"VALUES {', '.join([values] * rows)} "
            f"ON CONFLICT ({', '.join(map(self._bound, key))}) DO UPDATE SET {updates} "
            f"WHERE ({differs}) AND CASE WHEN t._job_id = excluded._job_id "
            "THEN t._revision IS NULL OR t._revision <= excluded._revision "
            "ELSE t._job_created_at IS NULL OR t._job_created_at <= excluded._job_created_at END"
        )

    def _differs(self, column: str) -> str:
        old, new = f"t.{self._bound(column)}", f"excluded.{self._bound(column)}"
        if self.dialect == POSTGRESQL:
            # Compared as text: the type json has no equality.
            return f"{old}::text IS DISTINCT FROM {new}::text"
        return f"{old} IS NOT {new}"

    def _bound(self, identifier: str) -> str:
        """Quote an identifier for a statement with bound values."""
        return self._escaped(quote(identifier))

    def _escaped(self, quoted: str) -> str:
        # The PostgreSQL drivers take a percent sign for the start of a placeholder, also inside quotes.
        return quoted.replace("%", "%%") if self.dialect == POSTGRESQL else quoted


def _rows(connection: Any, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with tuple_cursor(connection) as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def _postgresql_facts(connection: Any, quoted: str) -> TableFacts | None:
    if _rows(connection, "SELECT to_regclass(%s)", (quoted,))[0][0] is None:
        return None
    columns = _rows(
        connection,
        "SELECT attname::text, attnotnull AND NOT atthasdef AND attidentity = '' FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        (quoted,),
    )
    # An index over a part of the rows, over expressions, or checked only at commit cannot decide an upsert.
    unique = _rows(
        connection,
        "SELECT array_agg(a.attname::text) FROM pg_index i "
        "CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
        "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate "
        "AND i.indpred IS NULL AND i.indexprs IS NULL AND k.n <= i.indnkeyatts "
        "GROUP BY i.indexrelid",
        (quoted,),
    )
    return TableFacts(
        frozenset(name for name, _ in columns),
        frozenset(name for name, is_required in columns if is_required),
        frozenset(frozenset(row[0]) for row in unique),
    )


def _sqlite_facts(connection: Any, schema: str | None, name: str) -> TableFacts | None:
    where = (name,) if schema is None else (name, schema)
    marks = ", ".join("?" * len(where))
    columns = _rows(
        connection, f'SELECT name, "notnull", dflt_value, pk FROM pragma_table_info({marks})', where
    )
    if not columns:
        return None
    unique = [frozenset(column for column, _, _, pk in columns if pk)]
    indexes = _rows(
        connection, f'SELECT name FROM pragma_index_list({marks}) WHERE "unique" AND NOT partial', where
    )
    for (index,) in indexes:
        parts = _rows(
            connection,
            f"SELECT name FROM pragma_index_xinfo({marks}) WHERE key",
            (index,) if schema is None else (index, schema),
        )
        if all(part is not None for (part,) in parts):
            unique.append(frozenset(part for (part,) in parts))
    return TableFacts(
        frozenset(column for column, *_ in columns),
        frozenset(column for column, not_null, default, _ in columns if not_null and default is None),
        frozenset(found for found in unique if found),
    )
