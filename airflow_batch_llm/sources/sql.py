"""Rows of a query, through any common.sql hook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_batch_llm.declared import (
    Context,
    Renderer,
    conn_id_argument,
    names,
    plain_argument,
    text_argument,
)
from airflow_batch_llm.exceptions import ConfigurationError, SourceError
from airflow_batch_llm.sources.base import RowReader, Source
from airflow_batch_llm.sources.database import Database, driver_of, is_statement, tuple_cursor

#: Rows of the first fetch, which tells how long they are, and characters and bytes of text in a later one.
_FIRST_ROWS = 100
_FETCHED_TEXT = 8 << 20


class SqlSource(Source):
    """Rows of a query, read as a stream (on PostgreSQL through a cursor on the server).

    :param conn_id: Airflow connection of the database.
    :param sql: one SELECT. Templated; give values as parameters, not inside the text.
    :param parameters: values bound by the driver, in its style: ``%(a)s`` with a dict or ``%s`` with a
        list on PostgreSQL and MySQL, ``:a`` or ``?`` on SQLite. Templated.
    :param key: the columns that name a row.
    :param chunk_size: rows fetched at a time; fewer where they hold long texts.
    :param lookback: how much earlier than the run's ``data_interval_start`` the templates of this source see
        it, so that rows which came late are read by the next runs. ``logical_date``, ``ds`` and all else stay
        what they are. With ``reuse`` rows that were answered before cost nothing.
    """

    def __init__(
        self,
        conn_id: str,
        sql: str,
        parameters: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        key: str | Sequence[str],
        chunk_size: int = 5000,
        lookback: timedelta | None = None,
    ) -> None:
        if not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1:
            raise ConfigurationError(f"chunk_size must be a whole number of at least 1, not {chunk_size!r}")
        if parameters is not None and not isinstance(parameters, (Mapping, list, tuple)):
            raise ConfigurationError(
                f"parameters must be a mapping or a list, not a {type(parameters).__name__}"
            )
        plain_argument(parameters, "parameters")
        self.conn_id = conn_id_argument(conn_id, "SqlSource's conn_id", reference=True)
        self.sql = _statement(text_argument(sql, "SqlSource's sql"))
        self.parameters = parameters
        self.key = names(key, "key")
        self.chunk_size = chunk_size
        self.lookback = lookback
        if lookback is not None:
            self._check_lookback(lookback)

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as given."""
        return {
            "type": "sql",
            "conn_id": plain_argument(self.conn_id, "SqlSource's conn_id"),
            "sql": self.sql,
            "parameters": plain_argument(self.parameters, "parameters"),
            "key": list(self.key),
            "chunk_size": self.chunk_size,
            "lookback": plain_argument(self.lookback, "lookback"),
        }

    def _check_lookback(self, lookback: timedelta) -> None:
        if not isinstance(lookback, timedelta) or lookback <= timedelta():
            raise ConfigurationError(f"lookback must be a timedelta of more than 0, not {lookback!r}")
        if not any(_INTERVAL_START.search(text) for text in _texts([self.sql, self.parameters])):
            raise ConfigurationError(
                "lookback moves data_interval_start, which neither sql nor parameters of the SqlSource name "
                '(parameters={"start": "{{ data_interval_start }}"})'
            )

    def _templated(self) -> Iterable[Any]:
        return (self.conn_id, self.parameters)

    def resolve(self, context: Context) -> SqlReader:
        """Render connection id, statement and parameters; nothing is opened yet."""
        render = Renderer(self._moved(context))
        parameters = self.parameters
        if isinstance(parameters, Mapping):
            parameters = {name: render(value) for name, value in parameters.items()}
        elif parameters is not None:
            parameters = [render(value) for value in parameters]
        return SqlReader(
            render.text(self.conn_id, "the source's conn_id"),
            _statement(render.text(self.sql, "the source's sql")),
            parameters or None,
            self.key,
            self.chunk_size,
        )

    def _moved(self, context: Context) -> Context:
        """Return the context with the interval's start moved back; a run without an interval has none."""
        start = context.get("data_interval_start")
        if self.lookback is None or start is None:
            return context
        return {**context, "data_interval_start": start - self.lookback}


#: The interval's start as templates name it; not that of ``dag_run`` or another object, which stays.
_INTERVAL_START = re.compile(r"(?<![\w.])data_interval_start\b")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _statement(sql: str) -> str:
    """:raises ConfigurationError: it is the name of a file."""
    if sql.strip().lower().endswith(".sql") and not is_statement(sql):
        raise ConfigurationError(
            f"SqlSource takes the statement itself, not a file ({sql.strip()}); "
            "read the file in the DAG: sql=Path(...).read_text()"
        )
    return sql


class SqlReader(RowReader):
    """The rows of a rendered query."""

    fixed_columns = True

    def __init__(
        self,
        conn_id: str,
        sql: str,
        parameters: Mapping[str, Any] | Sequence[Any] | None,
        key: Sequence[str],
        chunk_size: int,
    ) -> None:
        super().__init__(key, f"the query on {conn_id!r}")
        self._conn_id, self._sql, self._parameters = conn_id, sql, parameters
        self._chunk_size = chunk_size

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the result's rows, numbered from 1. Cursor and connection are closed in every case.

        :raises SourceError: the statement is wrong, yields no rows, names two columns alike, or meets a value
            that the database or its driver cannot work with, at whatever row.
        :raises ConfigurationError: there is no such connection, or it is of no SQL database.
        :raises DatabaseUnavailable: the database does not answer.
        """
        database = Database(self._conn_id)
        with database.connect() as connection:
            driver = driver_of(connection)
            with tuple_cursor(connection, stream=True) as cursor:
                with database.asking(driver):
                    chunk = self._begin(cursor)
                columns = self._columns(cursor)
                number = 0
                while chunk:
                    for row in chunk:
                        number += 1
                        yield number, dict(zip(columns, row, strict=True))
                    size = self._next_size(chunk)
                    del chunk, row
                    with database.asking(driver):
                        chunk = cursor.fetchmany(size)

    def _begin(self, cursor: Any) -> list[Any]:
        """Execute and fetch the first rows: psycopg2 knows a named cursor's columns only then."""
        if self._parameters is None:
            # Without parameters the drivers leave percent signs in the text alone.
            cursor.execute(self._sql)
        else:
            cursor.execute(self._sql, self._parameters)
        first: list[Any] = cursor.fetchmany(min(self._chunk_size, _FIRST_ROWS))
        return first

    def _next_size(self, chunk: list[Any]) -> int:
        """Return how many rows to fetch next, by the text in the last ones."""
        text = sum(len(value) for row in chunk for value in row if isinstance(value, (str, bytes)))
        return max(1, min(self._chunk_size, _FETCHED_TEXT * len(chunk) // max(text, 1)))

    def _columns(self, cursor: Any) -> list[str]:
        if cursor.description is None:
            raise SourceError(f"{self._what} yields no rows; it must be a SELECT")
        columns = [str(column[0]) for column in cursor.description]
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise SourceError(
                f"{self._what} has two columns {', '.join(map(repr, twice))}; tell them apart with AS"
            )
        # Here too, so that a wrong key is told even where there is no row.
        self._key.check_columns(dict.fromkeys(columns), self._what)
        return columns
