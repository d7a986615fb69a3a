"""What a table is to a sink, whatever its database: what is there, and the statements that fill it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from airflow_batch_llm.core.drafts import LandingInfo
from airflow_batch_llm.sinks.cells import Cell, cell, version_text
from airflow_batch_llm.sinks.columns import CUSTOM_ID, LANDED_AT
from airflow_batch_llm.sinks.kinds import TIME, VECTOR
from airflow_batch_llm.sources.database import driver_of, tuple_cursor

#: What a column holds, as far as that decides how values are written (:attr:`Column.category`).
AS_TEXT, AS_INTEGER, AS_JSON, AS_ARRAY, AS_TIME, AS_OTHER = (
    "text",
    "integer",
    "json",
    "array",
    "time",
    "other",
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is there.

    :param category: one of :data:`AS_TEXT` and its fellows.
    :param type: its type as statements name it.
    """

    category: str
    type: str


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the database says about a table.

    :param columns: its columns by name.
    :param required: those that are NOT NULL and have no default.
    :param unique: the sets of columns that a usable unique index covers.
    :param complaint: why answers cannot be written to it, "" where they can.
    :param warning: what its owner should know, "" for nothing.
    """

    columns: Mapping[str, Column]
    required: frozenset[str]
    unique: frozenset[frozenset[str]]
    complaint: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Upsert:
    """How rows are written.

    :param columns: the columns that are written, ``_landed_at`` last.
    :param types: what the table says of each of them.
    :param unique: the columns that decide whether a row is there already.
    :param version: the column that holds the source's version, None for none.
    :param always: a row that differs is replaced, whichever job wrote it.
    """

    columns: tuple[str, ...]
    types: Mapping[str, Column]
    unique: tuple[str, ...]
    version: str | None
    always: bool

    @property
    def changing(self) -> list[str]:
        """The columns that an update sets, ``_landed_at`` last."""
        return [column for column in self.columns if column not in self.unique]


@dataclass(frozen=True)
class Table(ABC):
    """A table by name in one database."""

    schema: str | None
    name: str
    #: column kind -> type, as in CREATE TABLE.
    types: ClassVar[Mapping[str, str]]
    #: How the driver marks a bound value.
    marker: ClassVar[str] = "%s"
    #: Answers in one statement.
    rows_per_statement: ClassVar[int] = 2000

    @property
    def quoted(self) -> str:
        """The name as statements write it."""
        return f"{self.quote(self.schema)}.{self.quote(self.name)}" if self.schema else self.quote(self.name)

    @staticmethod
    @abstractmethod
    def quote(identifier: str) -> str:
        """Quote one identifier."""

    # -- what is there -------------------------------------------------------------------------------
    @abstractmethod
    def facts(self, connection: Any, written: Sequence[str], unique: Sequence[str]) -> TableFacts | None:
        """Ask the database about the table; None where there is none.

        :param written: the columns that will be written.
        :param unique: those of them that will be unique together.
        """

    @abstractmethod
    def missing_privileges(self, connection: Any, wanted: Sequence[str], written: Sequence[str]) -> list[str]:
        """Return which of ``SELECT``, ``INSERT``, ``UPDATE``, ``DELETE`` the connection's user may not do.

        :param written: the columns that will be written.
        """

    @abstractmethod
    def may_be_created(self, connection: Any) -> bool:
        """Say whether the schema is there and the user may make tables in it."""

    # -- making it -----------------------------------------------------------------------------------
    def create_statement(self, kinds: Mapping[str, str], unique: Sequence[str]) -> str:
        """Return the statement that makes the table where it is absent.

        :param kinds: column -> kind, without ``_landed_at``.
        :param unique: the columns that are unique together.
        """
        columns = [
            f"{self.quote(name)} {self.key_type(kind, len(unique)) if name in unique else self.type_of(kind)}"
            f"{' NOT NULL' if name in unique else ''}"
            for name, kind in kinds.items()
        ]
        columns.append(f"{self.quote(LANDED_AT)} {self.type_of(TIME)}")
        primary = ", ".join(map(self.quote, unique))
        return (
            f"CREATE TABLE IF NOT EXISTS {self.quoted} ({', '.join(columns)}, PRIMARY KEY ({primary}))"
            f"{self.table_options}"
        )

    #: What follows the columns in CREATE TABLE.
    table_options: ClassVar[str] = ""

    def type_of(self, kind: str) -> str:
        """Return the type of a column of this kind."""
        return self.types[VECTOR] if kind.startswith(VECTOR) else self.types[kind]

    def key_type(self, kind: str, columns: int) -> str:
        """Return the type of a column that is part of a key of so many columns."""
        return self.type_of(kind)

    def known_kinds(self, connection: Any, kinds: Mapping[str, str]) -> Mapping[str, str]:
        """Return the kinds with those replaced that this very database has no type for."""
        return kinds

    def add_column_statement(self, name: str, kind: str) -> str:
        """Return the statement that adds a column."""
        return f"ALTER TABLE {self.quoted} ADD COLUMN {self.quote(name)} {self.type_of(kind)}"

    def unique_index_statement(self, unique: Sequence[str]) -> str:
        """Return the statement that makes columns unique together."""
        columns = ", ".join(map(self.quote, unique))
        return f"CREATE UNIQUE INDEX {self.quote(self.name + '_key')} ON {self.quoted} ({columns})"

    # -- filling it ----------------------------------------------------------------------------------
    def prepare(self, connection: Any) -> None:
        """Set what the session needs before rows are written; most need nothing."""
        return

    def landed_at(self, now: datetime) -> str:
        """Return the value of ``_landed_at``."""
        return now.isoformat(timespec="microseconds")

    def cells(self, plan: Upsert) -> list[Cell]:
        """Return the conversion of each column's values, in order.

        :raises SinkError: (when a conversion is called) a version that does not order.
        """
        found = []
        for name in plan.columns:
            column = plan.types[name]
            if name == plan.version and column.category == AS_TEXT:
                found.append(version_text(name))
            else:
                found.append(self.conversions.get(column.category, cell))
        return found

    #: column category -> conversion, where it is another than :func:`~.cells.cell`.
    conversions: ClassVar[Mapping[str, Cell]] = {}

    @abstractmethod
    def write(self, connection: Any, plan: Upsert, rows: Sequence[tuple[Any, ...]]) -> int:
        """Insert rows, update those that are there and differ, and return how many were new or changed.

        A row that says the same stays as it is, ``_landed_at`` included.
        """

    @abstractmethod
    def begin_alone(self, connection: Any, name: str) -> None:
        """Begin a transaction that no other with this name runs beside.

        :raises DatabaseUnavailable: another one has been running for longer than a landing waits.
        """

    # -- taking out of it ----------------------------------------------------------------------------
    def holds_newer(self, connection: Any, where: Mapping[str, Any], info: LandingInfo) -> bool:
        """Say whether rows of a partition come from a later job, or a later revision of this one."""
        statement = (
            f"SELECT 1 FROM {self.bound(self.quoted)} WHERE {self._equal(where)} AND "
            f"CASE WHEN {self.id_('_job_id')} = {self.marker} THEN {self.id_('_revision')} > {self.marker} "
            f"ELSE {self.id_('_job_created_at')} > {self.marker} END LIMIT 1"
        )
        values = (*where.values(), info.job_id, info.revision, info.created_at)
        return bool(rows_of(connection, statement, values))

    def other_jobs_of_the_run(self, connection: Any, where: Mapping[str, Any], info: LandingInfo) -> set[str]:
        """Return the other jobs of the same DAG run that have rows in a partition."""
        job_id, run_id = self.id_("_job_id"), self.id_("_run_id")
        statement = (
            f"SELECT DISTINCT {job_id} FROM {self.bound(self.quoted)} WHERE {self._equal(where)} "
            f"AND {run_id} = {self.marker} AND {job_id} <> {self.marker}"
        )
        found = rows_of(connection, statement, (*where.values(), info.key.run_id, info.job_id))
        return {str(job_id) for (job_id,) in found}

    def delete_others(self, connection: Any, where: Mapping[str, Any], info: LandingInfo) -> int:
        """Delete the rows of a partition that this revision of this job did not write."""
        statement = (
            f"DELETE FROM {self.bound(self.quoted)} WHERE {self._equal(where)} AND "
            f"({self.id_('_job_id')} IS NULL OR {self.id_('_job_id')} <> {self.marker} OR "
            f"{self.id_('_revision')} IS NULL OR {self.id_('_revision')} <> {self.marker})"
        )
        return run(connection, statement, (*where.values(), info.job_id, info.revision))

    def ids_of_earlier(self, info: LandingInfo) -> tuple[str, tuple[Any, ...]]:
        """Return the statement (and its values) that reads the ids that earlier revisions of a job landed."""
        return (
            f"SELECT {self.id_(CUSTOM_ID)} FROM {self.bound(self.quoted)} WHERE "
            f"{self.id_('_job_id')} = {self.marker} AND {self.id_('_revision')} < {self.marker}",
            (info.job_id, info.revision),
        )

    def delete_earlier(self, connection: Any, info: LandingInfo, ids: Sequence[str]) -> int:
        """Delete what earlier revisions of the job landed for these ids."""
        statement = (
            f"DELETE FROM {self.bound(self.quoted)} WHERE {self.id_('_job_id')} = {self.marker} AND "
            f"{self.id_('_revision')} < {self.marker} AND {self.by_bytes(self.id_(CUSTOM_ID))} IN "
            f"({', '.join([self.by_bytes(self.marker)] * len(ids))})"
        )
        return run(connection, statement, (info.job_id, info.revision, *ids))

    # -- pieces of statements ------------------------------------------------------------------------
    def newer(self, old: Callable[[str], str], new: Callable[[str], str], plan: Upsert) -> str:
        """Return the condition under which a new row takes the place of an old one.

        First the source's version decides, where there is one (no version loses to any), then whether it
        is of a job that was made later, or of a later revision of the same job.

        :param old, new: how the statement names a column of the old and of the new row.
        """
        if plan.always:
            return "TRUE"
        job = (
            f"CASE WHEN {old('_job_id')} = {new('_job_id')} "
            f"THEN {old('_revision')} IS NULL OR {old('_revision')} <= {new('_revision')} "
            f"ELSE {old('_job_created_at')} IS NULL "
            f"OR {old('_job_created_at')} <= {new('_job_created_at')} END"
        )
        if plan.version is None:
            return job
        plain_old, plain_new = old(plan.version), new(plan.version)
        before, after = plain_old, plain_new
        if plan.types[plan.version].category == AS_TEXT:
            before, after = self.by_bytes(plain_old), self.by_bytes(plain_new)
        return (
            f"CASE WHEN {plain_old} IS NULL THEN {plain_new} IS NOT NULL OR ({job}) "
            f"WHEN {plain_new} IS NULL OR {after} < {before} THEN FALSE "
            f"WHEN {after} > {before} THEN TRUE ELSE ({job}) END"
        )

    @staticmethod
    def by_bytes(expression: str) -> str:
        """Return a text expression so that it compares byte by byte."""
        return expression

    def id_(self, identifier: str) -> str:
        """Quote an identifier for a statement with bound values."""
        return self.bound(self.quote(identifier))

    @staticmethod
    def bound(quoted: str) -> str:
        """Write what is quoted for a statement with bound values.

        Drivers that mark a value with ``%s`` take a percent sign for the start of one, also inside quotes.
        """
        return quoted.replace("%", "%%")

    def _equal(self, where: Mapping[str, Any]) -> str:
        return " AND ".join(f"{self.id_(column)} = {self.marker}" for column in where)


def rows_of(connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a query and return its rows."""
    with tuple_cursor(connection) as cursor:
        cursor.execute(*_for_driver(connection, statement, values))
        return list(cursor.fetchall())


def run(connection: Any, statement: str, values: Sequence[Any] = ()) -> int:
    """Run a statement and return how many rows it touched."""
    with tuple_cursor(connection) as cursor:
        cursor.execute(*_for_driver(connection, statement, values))
        return int(cursor.rowcount)


def _for_driver(connection: Any, statement: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if not values:
        return (statement,)
    if driver_of(connection).__name__ == "mysql.connector":
        statement = statement.replace("%%", "%")  # it replaces %s and nothing else
    return statement, tuple(values)
