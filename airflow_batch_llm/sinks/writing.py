"""Rows on their way into a table, a chunk at a time, and what becomes of those that it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from airflow_batch_llm.exceptions import SinkError
from airflow_batch_llm.sinks.cells import size_of
from airflow_batch_llm.sinks.tables import Table, Upsert, run
from airflow_batch_llm.sources.database import driver_of
from airflow_batch_llm.sources.database_errors import is_of_values

#: An answer's id and its values.
Row = tuple[str, tuple[Any, ...]]

#: Bytes of values, about, that are written in one statement at most, beside one row of any size.
_MAX_BYTES = 4_000_000
#: How many ids an error lists.
_MAX_IDS = 20


def chunks(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Group rows into what one statement takes.

    :param most: rows in one statement.
    """
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(map(size_of, row[1]))
        if len(chunk) == most or size >= _MAX_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class Landing:
    """Writes chunks of rows through one connection, each in a transaction of its own, and keeps the count.

    :param alone: False: each chunk is a transaction of its own, and rows that the table refuses do not stop
        the others. True: all is one transaction, which the caller has begun and ends; the first chunk with
        a refusal ends it.
    """

    def __init__(self, connection: Any, table: Table, plan: Upsert, *, alone: bool) -> None:
        self._connection, self._table, self._plan = connection, table, plan
        self._alone = alone
        self._driver = driver_of(connection)
        self._refused: list[str] = []
        self._refused_rows = 0
        self._accepted_any = False
        self.written = 0

    def write(self, rows: Sequence[Row]) -> None:
        """Write a chunk.

        :raises SinkError: where all is one transaction, the table refused rows; else, it takes none at all.
        """
        self._write(rows)
        if self._alone and self._refused_rows:
            raise SinkError(
                f"table {self._table.quoted} refused {self._told()}; the partition keeps what it had"
            )

    def finish(self) -> None:
        """:raises SinkError: the table refused answers."""
        if self._refused_rows:
            raise SinkError(
                f"table {self._table.quoted} refused {self._refused_rows} answers (all others have landed): "
                f"{self._told()}"
            )

    def _write(self, rows: Sequence[Row]) -> None:
        """Write rows; halves them where values are refused."""
        refusal = self._try(rows)
        if not refusal:
            self._accepted_any = True
        elif len(rows) == 1:
            self._refuse(rows[0][0], refusal)
        else:
            middle = len(rows) // 2
            self._write(rows[:middle])
            self._write(rows[middle:])

    def _try(self, rows: Sequence[Row]) -> str:
        """Write the rows or nothing. Returns "" or the kind of the refusal; its text would quote answers."""
        if self._alone:
            run(self._connection, "SAVEPOINT batch_llm")
        try:
            written = self._table.write(self._connection, self._plan, [values for _, values in rows])
        except (self._driver.Error, OverflowError, ValueError) as e:
            if not is_of_values(e, self._driver):
                raise
            if self._alone:
                run(self._connection, "ROLLBACK TO SAVEPOINT batch_llm")
            else:
                self._connection.rollback()
            return type(e).__name__
        if self._alone:
            run(self._connection, "RELEASE SAVEPOINT batch_llm")
        else:
            self._connection.commit()
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
