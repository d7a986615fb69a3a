"""Answers as rows of a table: inserted, or updated where the key is there already."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_batch_llm.core.drafts import Answer, AnswerSchema, LandingInfo
from airflow_batch_llm.declared import Context, Declared, Renderer, conn_id_argument, names, text_argument
from airflow_batch_llm.exceptions import ConfigurationError, SinkError
from airflow_batch_llm.sinks.columns import BOOKKEEPING, LANDED_AT, Layout, key_kinds, layout
from airflow_batch_llm.sinks.tables import SUPPORTED, Table, TableFacts
from airflow_batch_llm.sources.database import SQLITE, Database, driver_of, split_table, tuple_cursor

#: Answers written in one transaction.
_CHUNK = 2000
#: Values bound in one statement: below PostgreSQL's 65,535 and SQLite's 32,766.
_MAX_VALUES = 30_000
#: How many ids an error lists.
_MAX_IDS = 20


class SqlSink(Declared):
    """A table of PostgreSQL or SQLite that answers are written to.

    One row an answer: the key columns; the answer (one column for each property of the output schema,
    what is not a scalar as JSON text; free text goes to ``output``); and the bookkeeping columns
    ``_custom_id``, ``_model``, ``_job_id``, ``_run_id``, ``_job_created_at`` (seconds since the epoch),
    ``_revision``, ``_round``, ``_landed_at``. The NUL character becomes U+FFFD.

    Where a key is in the table already, the answer of the job that was created later stands, and of the
    same job that of the later revision. An older run that lands once more, after a re-drive or a clear,
    therefore leaves the rows of newer runs alone.

    The key must be unique in the table (a primary key or a unique index), and all of the source's key
    columns must be in it, or two answers would meet in one row. ``key=["_custom_id"]`` works for every
    source.

    :param conn_id: Airflow connection of the database. Templated.
    :param table: ``table`` or ``schema.table``; names are quoted, so case matters. Templated.
    :param key: the source's key columns; a mapping ``{source column: table column}`` renames them.
    :param columns: which properties of the answer to write; a mapping ``{property: column}`` also renames.
    :param create: make the table where it is absent.
    :param mode: ``upsert``, the only one so far.
    """

    def __init__(
        self,
        conn_id: str,
        table: str,
        *,
        key: str | Sequence[str] | Mapping[str, str],
        columns: Sequence[str] | Mapping[str, str] | None = None,
        create: bool = False,
        mode: str = "upsert",
    ) -> None:
        if mode != "upsert":
            raise ConfigurationError(f"sink mode {mode!r} is not known; there is 'upsert'")
        self.conn_id = conn_id_argument(conn_id, "SqlSink's conn_id")
        self.table = text_argument(table, "SqlSink's table")
        self.key = _renamed(key, "SqlSink's key")
        self.columns = None if columns is None else _renamed(columns, "SqlSink's columns")
        self.create = create
        self.mode = mode

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as given."""
        return {
            "type": "sql",
            "conn_id": self.conn_id,
            "table": self.table,
            "key": self.key,
            "columns": self.columns,
            "create": self.create,
            "mode": self.mode,
        }

    def resolve(
        self, context: Context, schema: AnswerSchema | None = None, source_key: Sequence[str] | None = None
    ) -> SqlTableSink:
        """Render the names and lay out the columns; nothing is opened yet.

        :param schema: the output schema, None for free text.
        :param source_key: the source's key columns, so that a key that does not fit is told before money
            is spent.
        :raises SinkError: the key or the columns do not fit source and schema.
        """
        render = Renderer(context)
        if source_key is not None:
            _check_key(self.key, source_key)
        return SqlTableSink(
            render.text(self.conn_id, "the sink's conn_id"),
            render.text(self.table, "the sink's table"),
            layout(self.key, self.columns, schema),
            self.create,
        )


class SqlTableSink:
    """A table that answers are landed in (:class:`~airflow_batch_llm.core.drafts.ResolvedSink`)."""

    each_round = False
    deletes_withdrawn = False

    def __init__(self, conn_id: str, table: str, layout: Layout, create: bool) -> None:
        self._conn_id, self._table_name = conn_id, table
        self._layout = layout
        self._create = create

    def check(self) -> None:
        """Fail early, before money is spent.

        A table that ``create`` allows to be made is made with the first answers: only they show the types
        of the key columns.

        :raises SinkError: the table, a column, the unique key or a privilege is missing, or a column that
            has to be filled is none of ours; the message has the statements that mend it.
        :raises ConfigurationError: the connection cannot work.
        :raises DatabaseUnavailable: the database does not answer.
        """
        database, table = self._open()
        with database.connect() as connection:
            facts = table.facts(connection)
            if facts is not None:
                self._check_table(table, facts)
                denied = table.missing_privileges(connection)
                if denied:
                    raise SinkError(
                        f"the user of {self._conn_id!r} lacks {', '.join(denied)} on {table.quoted}"
                    )
            elif not self._create:
                raise self._no_table(table)
            elif not table.may_be_created(connection):
                raise SinkError(
                    f"table {table.quoted} cannot be created on {self._conn_id!r}: "
                    "there is no such schema, or no right to create in it"
                )

    def land(self, answers: Iterable[Answer], info: LandingInfo) -> int:
        """Write the answers, one transaction for each 2,000, and return how many rows were new or changed.

        An answer whose values the table refuses does not stop the others: they land, and the error names
        it afterwards.

        :raises SinkError: answers that do not fit, at most 20 named; a table that :meth:`check` would refuse.
        :raises DatabaseUnavailable: the database does not answer.
        """
        database, table = self._open()
        landed_at: Any = datetime.now(UTC)
        if table.dialect == SQLITE:
            landed_at = landed_at.isoformat()
        with database.connect() as connection:
            landing = _Landing(connection, table, self._layout)
            first = True
            for chunk in _chunks(answers):
                if first:
                    _check_key(self._layout.key, chunk[0].key)
                    self._prepare_table(connection, table, chunk)
                    first = False
                landing.write([(a.custom_id, self._layout.values(a, info, landed_at)) for a in chunk])
            if first:
                self._prepare_table(connection, table, [])
            landing.finish()
            return landing.written

    def _open(self) -> tuple[Database, Table]:
        database = Database(self._conn_id, SinkError)
        if database.dialect not in SUPPORTED:
            raise SinkError(
                f"connection {self._conn_id!r} is {database.dialect}, which is not supported yet; "
                "there are postgres and sqlite"
            )
        try:
            return database, Table(database.dialect, *split_table(self._table_name))
        except ConfigurationError as e:
            raise SinkError(f"sink: {e.args[0]}") from None

    def _no_table(self, table: Table) -> SinkError:
        statement = table.create_statement(self._kinds({}), self._layout.key_columns)
        return SinkError(
            f"there is no table {table.quoted} on {self._conn_id!r}; pass create=True, or run "
            f"(with key types to match): {statement}"
        )

    def _check_table(self, table: Table, facts: TableFacts) -> None:
        wanted = self._layout.columns
        missing = [column for column in wanted if column not in facts.columns]
        if missing:
            kinds = {**self._kinds({}), LANDED_AT: "time"}
            statements = "; ".join(table.add_column_statement(column, kinds[column]) for column in missing)
            raise SinkError(
                f"table {table.quoted} has no column {', '.join(map(repr, missing))}; add with: {statements}"
            )
        if frozenset(self._layout.key_columns) not in facts.unique:
            raise SinkError(
                f"table {table.quoted} has no unique index on exactly {list(self._layout.key_columns)}; "
                f"make it with: {table.unique_index_statement(self._layout.key_columns)}"
            )
        unfilled = sorted(facts.required - set(wanted))
        if unfilled:
            raise SinkError(
                f"table {table.quoted} demands a value for {', '.join(map(repr, unfilled))}, "
                "which answers do not have; give a default or allow NULL"
            )

    def _prepare_table(self, connection: Any, table: Table, first: Sequence[Answer]) -> None:
        """Make the table where that is asked for; look once more whether one that is there will do."""
        facts = table.facts(connection)
        if facts is not None:
            self._check_table(table, facts)
            connection.rollback()
            return
        if not self._create:
            raise self._no_table(table)
        kinds = self._kinds(key_kinds(self._layout, first))
        with tuple_cursor(connection) as cursor:
            cursor.execute(table.create_statement(kinds, self._layout.key_columns))
        connection.commit()

    def _kinds(self, key: Mapping[str, str]) -> dict[str, str]:
        kinds = {**self._layout.kinds, **key}
        return {column: kinds.get(column, "text") for column in self._layout.columns if column != LANDED_AT}


class _Landing:
    """Writes chunks of rows through one connection and keeps the count."""

    def __init__(self, connection: Any, table: Table, layout: Layout) -> None:
        self._connection, self._table = connection, table
        self._columns, self._key = layout.columns, layout.key_columns
        self._rows_per_statement = max(1, _MAX_VALUES // len(self._columns))
        driver = driver_of(connection)
        # OverflowError: SQLite's driver, for whole numbers above 64 bits.
        self._value_errors = (driver.DataError, driver.IntegrityError, driver.ProgrammingError, OverflowError)
        self._refused: list[str] = []
        self._refused_rows = 0
        self._accepted_any = False
        self.written = 0

    def write(self, rows: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Write ``(custom_id, values)`` in one transaction; halves it where values are refused."""
        refusal = self._try(rows)
        if not refusal:
            self._accepted_any = True
        elif len(rows) == 1:
            self._refuse(rows[0][0], refusal)
        else:
            middle = len(rows) // 2
            self.write(rows[:middle])
            self.write(rows[middle:])

    def finish(self) -> None:
        """:raises SinkError: the table refused answers."""
        if self._refused_rows:
            raise SinkError(
                f"table {self._table.quoted} refused {self._refused_rows} answers (all others have landed): "
                f"{self._told()}"
            )

    def _try(self, rows: Sequence[tuple[str, tuple[Any, ...]]]) -> str:
        """Write the rows or nothing. Returns "" or the kind of the refusal; its text would quote answers."""
        try:
            written = sum(
                self._execute([values for _, values in part])
                for part in _parts(rows, self._rows_per_statement)
            )
            self._connection.commit()
        except self._value_errors as e:
            self._connection.rollback()
            return type(e).__name__
        self.written += written
        return ""

    def _refuse(self, custom_id: str, kind: str) -> None:
        self._refused_rows += 1
        if len(self._refused) < _MAX_IDS:
            self._refused.append(f"{custom_id!r} ({kind})")
        elif not self._accepted_any:
            # The fault is the table's, and trying all the others tells nothing new.
            raise SinkError(f"table {self._table.quoted} takes no answer; it refused {self._told()}")

    def _told(self) -> str:
        more = self._refused_rows - len(self._refused)
        return "; ".join(self._refused) + (f" and {more} more" if more else "")

    def _execute(self, rows: Sequence[tuple[Any, ...]]) -> int:
        statement = self._table.upsert_statement(self._columns, self._key, len(rows))
        with tuple_cursor(self._connection) as cursor:
            cursor.execute(statement, tuple(itertools.chain.from_iterable(rows)))
            return int(cursor.rowcount)


def _renamed(value: Any, what: str) -> dict[str, str]:
    """Return names, or a mapping of names to names, as a mapping.

    :raises ConfigurationError: it is neither.
    """
    if not isinstance(value, Mapping):
        return {name: name for name in names(value, what)}
    return dict(zip(names(tuple(value), what), names(tuple(value.values()), what), strict=True))


def _check_key(key: Mapping[str, str], source_key: Iterable[str]) -> None:
    """:raises SinkError: the key is not the source's key: a column is missing, or rows would meet."""
    own = [name for name, column in key.items() if column not in BOOKKEEPING]
    there = list(source_key)
    missing = [name for name in own if name not in there]
    if missing:
        raise SinkError(
            f"the sink's key column {', '.join(map(repr, missing))} is not a key column of the source; "
            f"there are: {', '.join(there) or 'none'}"
        )
    if "_custom_id" not in key.values() and set(own) != set(there):
        left_out = [name for name in there if name not in own]
        raise SinkError(
            f"the sink's key leaves out {', '.join(map(repr, left_out))} of the source's key: "
            "several answers would be written to one row. Add it, or use key=['_custom_id']"
        )


def _chunks(answers: Iterable[Answer]) -> Iterator[list[Answer]]:
    iterator = iter(answers)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        yield chunk


def _parts(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
