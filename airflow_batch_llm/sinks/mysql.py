"""Tables of MySQL (from 8.0) and MariaDB (from 10.6)."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_batch_llm.exceptions import DatabaseUnavailable
from airflow_batch_llm.sinks.cells import iso_without_offset, json_text, moment, whole_number
from airflow_batch_llm.sinks.columns import LANDED_AT
from airflow_batch_llm.sinks.kinds import BOOLEAN, DATE, INTEGER, JSON, NUMBER, TEXT, TIME, VECTOR
from airflow_batch_llm.sinks.tables import (
    AS_INTEGER,
    AS_JSON,
    AS_OTHER,
    AS_TEXT,
    AS_TIME,
    Column,
    Table,
    TableFacts,
    Upsert,
    rows_of,
    run,
)
from airflow_batch_llm.sources.database import driver_of
from airflow_batch_llm.sources.database_errors import is_denied

#: InnoDB's bound of a key, bytes; a character of utf8mb4 takes up to four.
_KEY_CHARACTERS = 3072 // 4
_LONG_TEXT = "LONGTEXT CHARACTER SET utf8mb4"
#: Seconds that a partition waits for another process that replaces it.
_LOCK_SECONDS = 600

_CATEGORIES = {
    "json": AS_JSON,
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), AS_INTEGER),
    **dict.fromkeys(("datetime", "timestamp"), AS_TIME),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), AS_TEXT),
}


@dataclass(frozen=True)
class MysqlTable(Table):
    """A table of MySQL or MariaDB.

    Text keys of tables that are made here compare byte by byte, spaces at the end aside (``utf8mb4_bin``,
    the one such collation that both know).
    """

    types = {
        TEXT: _LONG_TEXT,
        INTEGER: "BIGINT",
        NUMBER: "DOUBLE",
        BOOLEAN: "BOOLEAN",
        JSON: _LONG_TEXT,
        DATE: "DATE",
        TIME: "DATETIME(6)",
        VECTOR: _LONG_TEXT,
    }
    conversions = {AS_JSON: json_text, AS_INTEGER: whole_number, AS_TIME: moment(iso_without_offset)}
    rows_per_statement = 500
    table_options = " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"

    @staticmethod
    def quote(identifier: str) -> str:
        """Quote one identifier as MySQL does."""
        return "`" + identifier.replace("`", "``") + "`"

    def facts(self, connection: Any, written: Sequence[str], unique: Sequence[str]) -> TableFacts | None:
        """Ask the information schema about the table."""
        here = "table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"
        where = (self.schema, self.name)
        found = rows_of(
            connection,
            "SELECT column_name, data_type, column_type, is_nullable = 'NO' AND column_default IS NULL "
            "AND extra NOT LIKE '%%auto_increment%%' AND extra NOT LIKE '%%GENERATED%%', "
            "extra LIKE '%%auto_increment%%', COALESCE(datetime_precision, -1), COALESCE(collation_name, '') "
            f"FROM information_schema.columns WHERE {here}",
            where,
        )
        if not found:
            return None
        columns = {row[0]: Column(_CATEGORIES.get(_text(row[1]), AS_OTHER), _text(row[2])) for row in found}
        indexes = self._unique_indexes(connection, here, where)
        counted = frozenset(row[0] for row in found if row[4])
        return TableFacts(
            columns,
            frozenset(row[0] for row in found if row[3]),
            frozenset(indexes.values()),
            self._engine_complaint(connection, here, where)
            or _index_complaint(indexes, frozenset(unique), counted)
            or _clock_complaint({row[0]: (_text(row[1]), row[5]) for row in found}),
            _collation_warning({row[0]: str(row[6]) for row in found}, unique),
        )

    def _unique_indexes(self, connection: Any, here: str, where: Sequence[Any]) -> dict[str, frozenset[str]]:
        """Return the unique indexes by name, without those over a part of a value or over an expression."""
        parts = rows_of(
            connection,
            f"SELECT index_name, column_name, sub_part FROM information_schema.statistics "
            f"WHERE {here} AND non_unique = 0",
            where,
        )
        unusable = {name for name, column, part in parts if column is None or part is not None}
        names = {name for name, _, _ in parts} - unusable
        return {name: frozenset(column for index, column, _ in parts if index == name) for name in names}

    def _engine_complaint(self, connection: Any, here: str, where: Sequence[Any]) -> str:
        found = rows_of(
            connection,
            "SELECT t.engine FROM information_schema.tables t JOIN information_schema.engines e "
            f"ON e.engine = t.engine WHERE {here} AND e.transactions <> 'YES'",
            where,
        )
        return f"it is of engine {found[0][0]}, which has no transactions; make it InnoDB" if found else ""

    def missing_privileges(self, connection: Any, wanted: Sequence[str], written: Sequence[str]) -> list[str]:
        """Try statements that touch no row: rights come from many places, roles and columns among them."""
        bookmark = f"{self.quote('_job_id')} = {self.quote('_job_id')}"
        columns = ", ".join(map(self.quote, written))
        trials = {
            "SELECT": f"SELECT {self.quote('_job_id')} FROM {self.quoted} LIMIT 0",
            "INSERT": f"INSERT INTO {self.quoted} ({columns}) "
            f"SELECT {columns} FROM {self.quoted} WHERE 1 = 0",
            "UPDATE": f"UPDATE {self.quoted} SET {bookmark} WHERE 1 = 0",
            "DELETE": f"DELETE FROM {self.quoted} WHERE 1 = 0",
        }
        driver = driver_of(connection)
        denied = []
        for name in wanted:
            try:
                rows_of(connection, trials[name]) if name == "SELECT" else run(connection, trials[name])
            except driver.Error as e:
                if not is_denied(e, driver):
                    raise
                denied.append(name)
        connection.rollback()
        return denied

    def may_be_created(self, connection: Any) -> bool:
        """Ask whether the database is there and the user, or a role that the user may have, creates in it."""
        rows = rows_of(
            connection,
            "SELECT s.schema_name, "
            "EXISTS (SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'CREATE') "
            "OR EXISTS (SELECT 1 FROM information_schema.schema_privileges p WHERE privilege_type = 'CREATE' "
            "AND s.schema_name LIKE p.table_schema) "
            "OR EXISTS (SELECT 1 FROM information_schema.applicable_roles) "
            "FROM information_schema.schemata s WHERE s.schema_name = COALESCE(%s, DATABASE())",
            (self.schema,),
        )
        return bool(rows and rows[0][1])

    def key_type(self, kind: str, columns: int) -> str:
        """Return the type of a key column: text of a bounded length."""
        if self.type_of(kind) != _LONG_TEXT:
            return self.type_of(kind)
        return f"VARCHAR({min(512, _KEY_CHARACTERS // columns)}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

    def prepare(self, connection: Any) -> None:
        """Make the server refuse what a column cannot hold; some cut it short instead."""
        run(connection, "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")
        run(connection, "SET SESSION time_zone = '+00:00'")

    def landed_at(self, now: datetime) -> str:
        """Return the value of ``_landed_at``: UTC, without saying so."""
        return iso_without_offset(now)

    def write(self, connection: Any, plan: Upsert, rows: Sequence[tuple[Any, ...]]) -> int:
        """Write rows in one statement; see :meth:`Table.write`."""
        run(connection, self._statement(plan, len(rows)), tuple(itertools.chain.from_iterable(rows)))
        # The server's own count depends on flags that each driver sets as it likes.
        places = [plan.columns.index(column) for column in plan.unique]
        key = ", ".join(map(self.id_, plan.unique))
        one = f"({', '.join(['%s'] * len(places))})"
        statement = (
            f"SELECT COUNT(*) FROM {self.bound(self.quoted)} WHERE ({key}) IN "
            f"({', '.join([one] * len(rows))}) AND {self.id_(LANDED_AT)} = %s AND {self.id_('_job_id')} = %s"
        )
        job_id = rows[0][plan.columns.index("_job_id")]
        values = [row[place] for row in rows for place in places]
        return int(rows_of(connection, statement, (*values, rows[0][-1], job_id))[0][0])

    def _statement(self, plan: Upsert, rows: int) -> str:
        """Return the statement.

        Assignments are carried out in order, and later ones see what earlier ones set. So the first one
        decides: a row is replaced where it took over the time of this landing, and the others look at that.
        """
        stamp = self.id_(LANDED_AT)
        differs = " OR ".join(
            f"NOT ({self.by_bytes(self.id_(c))} <=> {self.by_bytes(_new(self.id_(c)))})"
            for c in plan.changing
            if c != LANDED_AT
        )
        newer = self.newer(self.id_, lambda column: _new(self.id_(column)), plan)
        first = (
            f"{stamp} = CASE WHEN ({differs}) AND ({newer}) THEN {_new(stamp)} "
            f"WHEN {stamp} <=> {_new(stamp)} THEN {stamp} - INTERVAL 1 MICROSECOND ELSE {stamp} END"
        )
        others = [
            f"{self.id_(c)} = IF({stamp} <=> {_new(stamp)}, {_new(self.id_(c))}, {self.id_(c)})"
            for c in plan.changing
            if c != LANDED_AT
        ]
        values = f"({', '.join(['%s'] * len(plan.columns))})"
        return (
            f"INSERT INTO {self.bound(self.quoted)} ({', '.join(map(self.id_, plan.columns))}) "
            f"VALUES {', '.join([values] * rows)} ON DUPLICATE KEY UPDATE {', '.join([first, *others])}"
        )

    @staticmethod
    def by_bytes(expression: str) -> str:
        """Compare without a collation."""
        return f"CAST({expression} AS BINARY)"

    def begin_alone(self, connection: Any, name: str) -> None:
        """Take a lock by name, which ends with the connection, and begin a transaction."""
        lock = f"batch_llm_{hashlib.sha256(name.encode('utf-8')).hexdigest()[:40]}"
        if rows_of(connection, "SELECT GET_LOCK(%s, %s)", (lock, _LOCK_SECONDS)) != [(1,)]:
            raise DatabaseUnavailable(
                f"another process has been replacing this partition of {self.quoted} for {_LOCK_SECONDS} s"
            )
        connection.commit()  # what other transactions have done since shows in a new one
        run(connection, "START TRANSACTION")


def _new(quoted: str) -> str:
    # MariaDB does not know the row alias that MySQL has for this since 8.0.19.
    return f"VALUES({quoted})"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _index_complaint(
    indexes: Mapping[str, frozenset[str]], unique: frozenset[str], counted: frozenset[str]
) -> str:
    """Tell of a further unique index: a new row that meets an old one there would replace it."""
    for name, columns in sorted(indexes.items()):
        if not columns >= unique and not columns & counted:
            return (
                f"its unique index {name!r} over {sorted(columns)} beside that of the key could make an "
                "answer replace another row; drop it, or make it a plain index"
            )
    return ""


def _clock_complaint(types: Mapping[str, tuple[str, int]]) -> str:
    kind, precision = types.get(LANDED_AT, ("datetime", 6))
    if (kind, int(precision)) in (("datetime", 6), ("timestamp", 6)):
        return ""
    return f"its column {LANDED_AT!r} has to be DATETIME(6): whether a row was replaced is told by it"


def _collation_warning(collations: Mapping[str, str], unique: Sequence[str]) -> str:
    loose = [c for c in unique if not collations.get(c, "").endswith("bin") and collations.get(c)]
    if not loose:
        return ""
    return (
        f"its key column {', '.join(map(repr, loose))} takes ids for the same that differ in case or accents "
        f"only ({collations[loose[0]]}); if there are such ids, give it COLLATE utf8mb4_bin"
    )
