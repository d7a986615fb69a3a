"""A table that answers are landed in: looked at before money is spent, filled, cleared of what is gone."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_batch_llm.core.drafts import Answer, LandingInfo
from airflow_batch_llm.core.jsonl import dumps, loads
from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.exceptions import ConfigurationError, SinkError
from airflow_batch_llm.sinks.columns import BOOKKEEPING, CUSTOM_ID, LANDED_AT, Layout
from airflow_batch_llm.sinks.kinds import TEXT, TIME
from airflow_batch_llm.sinks.mysql import MysqlTable
from airflow_batch_llm.sinks.postgresql import PostgresTable
from airflow_batch_llm.sinks.sqlite import SqliteTable
from airflow_batch_llm.sinks.tables import Table, TableFacts, Upsert
from airflow_batch_llm.sinks.writing import Landing, Row, chunks
from airflow_batch_llm.sources.database import (
    MYSQL,
    POSTGRESQL,
    SQLITE,
    Database,
    split_table,
    tuple_cursor,
)

log = logging.getLogger(__name__)

_TABLES: Mapping[str, type[Table]] = {POSTGRESQL: PostgresTable, SQLITE: SqliteTable, MYSQL: MysqlTable}
#: Answers that show of what kinds the key and carried columns are.
_FIRST = 2000
#: Map indices that are told apart.
_MOST_INDICES = 4096
#: Ids that are looked up, and deleted, at a time.
_IDS = 10_000

_NOBODY = LandingInfo(JobKey("", "", "", ""), "", 0)


@dataclass(frozen=True, slots=True)
class Manner:
    """How answers are landed.

    :param create: make the table where it is absent.
    :param replace: the rows of the layout's constants are replaced as a whole.
    :param append: rows of other jobs are never touched.
    """

    create: bool = False
    replace: bool = False
    append: bool = False


class SqlTableSink:
    """A table that answers are landed in (:class:`~airflow_batch_llm.core.drafts.ResolvedSink`)."""

    def __init__(
        self,
        conn_id: str,
        table: str,
        layout: Layout,
        manner: Manner,
        *,
        each_round: bool = False,
        deletes_withdrawn: bool = False,
    ) -> None:
        self._conn_id, self._table_name = conn_id, table
        self._layout, self._manner = layout, manner
        self.each_round = each_round
        self.deletes_withdrawn = deletes_withdrawn

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
            facts = table.facts(connection, self._layout.columns, self._layout.unique)
            if facts is None:
                if not self._manner.create:
                    raise self._no_table(table)
                if not table.may_be_created(connection):
                    raise SinkError(
                        f"table {table.quoted} cannot be created on {self._conn_id!r}: "
                        "there is no such schema, or no right to create in it"
                    )
                return
            self._check_table(table, facts)
            if facts.warning:
                log.warning("table %s: %s", table.quoted, facts.warning)
            denied = table.missing_privileges(connection, self._rights(), self._layout.columns)
            if denied:
                raise SinkError(f"the user of {self._conn_id!r} lacks {', '.join(denied)} on {table.quoted}")
            if self._manner.replace:
                # Tells whether the partition's values are such that the columns can be compared with them.
                table.holds_newer(connection, self._partition(table, self._plan(facts)), _NOBODY)

    def land(self, answers: Iterable[Answer], info: LandingInfo) -> int:
        """Write the answers and return how many rows were new or changed.

        Each statement is a transaction of its own, and an answer whose values the table refuses does not
        stop the others: they land, and the error names it afterwards. Where a partition is replaced, all is
        one transaction; it is not begun while rows of the job have no answer, nor where the source had no
        rows (unless that is what it means to say), nor where the partition holds what a later job, or a later
        revision of this one, has landed.

        :raises SinkError: answers that do not fit, at most 20 named; a table that :meth:`check` would refuse.
        :raises DatabaseUnavailable: the database does not answer.
        """
        if self._manner.replace and not info.rows and not info.empty_is_content:
            log.info(
                "partition %s of table %s keeps what it had: no rows, and on_empty is not success",
                *(dict(self._layout.constants), self._table_name),
            )
            return 0
        if self._manner.replace and not (info.final and info.answered == info.rows):
            log.warning(
                "partition %s of table %s keeps what it had: of %d rows %d have an answer, %d are dead",
                *(dict(self._layout.constants), self._table_name, info.rows, info.answered, info.dead),
            )
            return 0
        database, table = self._open()
        with database.connect() as connection:
            if database.dialect != SQLITE and database.hook.get_autocommit(connection):
                database.hook.set_autocommit(connection, False)
            iterator = iter(answers)
            first = list(itertools.islice(iterator, _FIRST))
            if first:
                check_key(self._layout, first[0].key, whole=not self._manner.append)
            table.prepare(connection)
            plan = self._plan(self._prepared_table(connection, table, first))
            rows = self._rows(itertools.chain(first, iterator), info, table, plan)
            if self._manner.replace:
                return self._replace(connection, table, plan, rows, info)
            landing = Landing(connection, table, plan, alone=False)
            for chunk in chunks(rows, table.rows_per_statement):
                landing.write(chunk)
            landing.finish()
            return landing.written

    def withdraw(self, members: Callable[[Sequence[str]], set[str]], info: LandingInfo) -> int:
        """Delete what this job landed for rows that are no longer in the revision; returns how many.

        Rows that another job has taken over since are that job's, and stay.

        :param members: says which of some custom_ids are in the revision.
        :raises SinkError: the user may not delete.
        :raises DatabaseUnavailable: the database does not answer.
        """
        if not self.deletes_withdrawn:
            return 0
        database, table = self._open()
        with database.connect() as connection, tempfile.TemporaryFile() as spool:
            if table.facts(connection, self._layout.columns, self._layout.unique) is None:
                return 0
            table.prepare(connection)
            # Ids first, then deletions: reading on while rows go would need a second connection.
            with tuple_cursor(connection, stream=True) as cursor:
                cursor.execute(*table.ids_of_earlier(info))
                while rows := cursor.fetchmany(_IDS):
                    ids = [custom_id for (custom_id,) in rows]
                    there = members(ids)
                    gone = [custom_id for custom_id in ids if custom_id not in there]
                    if gone:
                        spool.write(dumps(gone) + b"\n")
            connection.rollback()
            spool.seek(0)
            deleted = 0
            for line in spool:
                deleted += table.delete_earlier(connection, info, loads(line))
                connection.commit()
            return deleted

    # -- how it goes ---------------------------------------------------------------------------------
    def _replace(
        self, connection: Any, table: Table, plan: Upsert, rows: Iterator[Row], info: LandingInfo
    ) -> int:
        """Put the rows in place of the partition's: those that are there change, the others go.

        So landing once more changes nothing, and readers see the one or the other content, never a part.
        """
        partition = self._partition(table, plan)
        table.begin_alone(connection, dumps([table.schema, table.name, partition]).decode())
        self._refuse_shared(table.other_jobs_of_the_run(connection, partition, info), table, info)
        if table.holds_newer(connection, partition, info):
            connection.rollback()
            log.warning(
                "partition %s of table %s holds what a later job or revision has landed; job %s leaves it",
                *(dict(self._layout.constants), table.quoted, info.job_id),
            )
            return 0
        landing = Landing(connection, table, plan, alone=True)
        for chunk in chunks(rows, table.rows_per_statement):
            landing.write(chunk)
        table.delete_others(connection, partition, info)
        connection.commit()
        return landing.written

    def _refuse_shared(self, others: set[str], table: Table, info: LandingInfo) -> None:
        """See that no other map index of the task puts its rows in the same place: one of them would stay.

        :raises SinkError: one has.
        """
        if info.key.map_index < 0 or not others:
            return
        for index in range(_MOST_INDICES):
            if replace(info.key, map_index=index).job_id in others:
                raise SinkError(
                    f"partition {dict(self._layout.constants)} of table {table.quoted} has the answers of "
                    f"map index {index}, which those of map index {info.key.map_index} would replace: "
                    "give each map index a partition of its own. Where these are left from another order of "
                    "what is mapped over, delete them, and give each index a job_key"
                )

    def _rows(
        self, answers: Iterable[Answer], info: LandingInfo, table: Table, plan: Upsert
    ) -> Iterator[Row]:
        landed_at = table.landed_at(datetime.now(UTC))
        cells = table.cells(plan)
        for answer in answers:
            values = self._layout.values(answer, info, landed_at)
            yield answer.custom_id, tuple([cell(value) for cell, value in zip(cells, values, strict=True)])

    def _partition(self, table: Table, plan: Upsert) -> dict[str, Any]:
        cells = dict(zip(plan.columns, table.cells(plan), strict=True))
        return {column: cells[column](value) for column, value in self._layout.constants.items()}

    def _plan(self, facts: TableFacts) -> Upsert:
        layout = self._layout
        types = {column: facts.columns[column] for column in layout.columns}
        return Upsert(layout.columns, types, layout.unique, layout.version, always=self._manner.replace)

    def _rights(self) -> list[str]:
        deletes = self._manner.replace or self.deletes_withdrawn
        return ["SELECT", "INSERT", "UPDATE", *(["DELETE"] if deletes else [])]

    # -- what is there -------------------------------------------------------------------------------
    def _open(self) -> tuple[Database, Table]:
        database = Database(self._conn_id, SinkError)
        kind = _TABLES.get(database.dialect)
        if kind is None:
            raise SinkError(
                f"connection {self._conn_id!r} is {database.dialect}, which is not supported; "
                f"there are {', '.join(sorted(_TABLES))}"
            )
        try:
            return database, kind(*split_table(self._table_name))
        except ConfigurationError as e:
            raise SinkError(f"sink: {e.args[0]}") from None

    def _no_table(self, table: Table) -> SinkError:
        statement = table.create_statement(self._layout.kinds_with([]), self._layout.unique)
        return SinkError(
            f"there is no table {table.quoted} on {self._conn_id!r}; pass create=True, or run "
            f"(with types of key and carried columns to match): {statement}"
        )

    def _check_table(self, table: Table, facts: TableFacts) -> None:
        wanted, unique = self._layout.columns, self._layout.unique
        missing = [column for column in wanted if column not in facts.columns]
        if missing:
            kinds = {**self._layout.kinds_with([]), LANDED_AT: TIME}
            statements = "; ".join(
                table.add_column_statement(column, kinds.get(column, TEXT)) for column in missing
            )
            raise SinkError(
                f"table {table.quoted} has no column {', '.join(map(repr, missing))}; add with: {statements}"
            )
        if frozenset(unique) not in facts.unique:
            raise SinkError(
                f"table {table.quoted} has no unique index on exactly {list(unique)}; "
                f"make it with: {table.unique_index_statement(unique)}"
            )
        unfilled = sorted(facts.required - set(wanted))
        if unfilled:
            raise SinkError(
                f"table {table.quoted} demands a value for {', '.join(map(repr, unfilled))}, "
                "which answers do not have; give a default or allow NULL"
            )
        if facts.complaint:
            raise SinkError(f"table {table.quoted}: {facts.complaint}")

    def _prepared_table(self, connection: Any, table: Table, first: Sequence[Answer]) -> TableFacts:
        """Make the table where that is asked for; look once more whether one that is there will do."""
        layout = self._layout
        facts = table.facts(connection, layout.columns, layout.unique)
        if facts is None:
            if not self._manner.create:
                raise self._no_table(table)
            kinds = table.known_kinds(connection, layout.kinds_with(first))
            with tuple_cursor(connection) as cursor:
                cursor.execute(table.create_statement(kinds, layout.unique))
            connection.commit()
            facts = table.facts(connection, layout.columns, layout.unique)
        if facts is None:
            raise self._no_table(table)
        self._check_table(table, facts)
        connection.rollback()
        return facts


def check_key(layout: Layout, source_key: Iterable[str], *, whole: bool) -> None:
    """Compare the sink's key with the source's.

    :param whole: all of the source's key has to be in it, or rows would meet.
    :raises SinkError: a column is missing.
    """
    own = [name for name, column in layout.key.items() if column not in BOOKKEEPING]
    there = list(source_key)
    missing = [name for name in own if name not in there]
    if missing:
        raise SinkError(
            f"the sink's key column {', '.join(map(repr, missing))} is not a key column of the source; "
            f"there are: {', '.join(there) or 'none'}"
        )
    constant = [name for name in there if name in layout.constants and name in layout.unique]
    if whole and CUSTOM_ID not in layout.unique and {*own, *constant} != set(there):
        left_out = [name for name in there if name not in own]
        raise SinkError(
            f"the sink's key leaves out {', '.join(map(repr, left_out))} of the source's key: "
            "several answers would be written to one row. Add it, or use key=['_custom_id']"
        )
