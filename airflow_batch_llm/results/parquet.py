"""Answers as Parquet files and Arrow tables. Needs pyarrow (extra ``parquet``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.drafts import Answer, ResultsFormat
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.results import layout
from airflow_batch_llm.results.layout import Column, getter, layout_of
from airflow_batch_llm.sinks.kinds import object_kinds

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_batch_llm.core.drafts import AnswerSchema

#: What ``results_formats`` can name. JSON lines are always written.
FORMATS = ("jsonl", "parquet")

#: A row group ends after so many rows, or when its texts and vectors come to about so many bytes.
_GROUP_ROWS = 5000
_GROUP_BYTES = 16 << 20


def results_formats(names: Sequence[str], schema: AnswerSchema | None) -> tuple[ResultsFormat, ...]:
    """Return the forms in which answers are published beside JSON lines.

    :param names: ``jsonl`` and ``parquet``.
    :param schema: the output schema, None for free text and what is no text.
    :raises ConfigurationError: another name, or a library that a form needs is not installed.
    """
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise ConfigurationError(
            f"results_formats names {unknown[0]!r}; there are {', '.join(map(repr, FORMATS))}"
        )
    if "parquet" not in names:
        return ()
    load_pyarrow("results_formats names 'parquet', which")
    return (ParquetResults(object_kinds(schema)),)


def load_pyarrow(what: str) -> Any:
    """Import pyarrow.

    :param what: what needs it, as the error's first words.
    :raises ConfigurationError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise ConfigurationError(
            f"{what} needs pyarrow, which is not installed here: pip install 'airflow-batch-llm[parquet]'"
        ) from None
    return pyarrow


class ParquetResults:
    """The form ``parquet``: one file for each part, all with the same columns.

    :param properties: property -> kind of structured answers, each a column; None where the answer is one
        column.
    :param columns: as :meth:`fitted` found them.
    """

    suffix = ".parquet"

    def __init__(
        self, properties: Mapping[str, str] | None = None, columns: Sequence[Column] | None = None
    ) -> None:
        self._properties = properties
        self._columns = list(columns) if columns is not None else None

    def fitted(self, answers: Iterable[Answer]) -> ParquetResults:
        """Return the form for a publication that holds these answers: the columns fit all of them."""
        return ParquetResults(self._properties, layout_of(answers, self._properties).columns())

    def open(self, local: Path) -> ParquetPart:
        """Begin a local file."""
        columns = self._columns if self._columns is not None else layout_of((), self._properties).columns()
        return ParquetPart(local, columns)


class ParquetPart:
    """A Parquet file being written, a row group at a time."""

    def __init__(self, local: Path, columns: Sequence[Column]) -> None:
        load_pyarrow("a Parquet file")
        import pyarrow.parquet as pq

        self._group = _Group(columns)
        self._writer = pq.ParquetWriter(local, self._group.schema, compression="snappy")

    def write(self, answer: Answer) -> None:
        """Add an answer."""
        self._group.add(answer)
        if self._group.full:
            self._writer.write_table(self._group.take())

    def close(self) -> None:
        """Write what is left and finish the file."""
        try:
            if self._group.rows:
                self._writer.write_table(self._group.take())
        finally:
            self._writer.close()


def drop_rows(before: Path, after: Path, custom_ids: Collection[str]) -> None:
    """Copy a Parquet file of answers without the rows that have these custom ids."""
    pa = load_pyarrow("a Parquet file of the results")
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    gone = pa.array(sorted(custom_ids), pa.string())
    with pq.ParquetFile(before) as file, pq.ParquetWriter(after, file.schema_arrow) as writer:
        for batch in file.iter_batches(_GROUP_ROWS):
            kept = batch.filter(pc.invert(pc.is_in(batch.column("custom_id"), value_set=gone)))
            if kept.num_rows:
                writer.write_batch(kept)


def arrow_table(answers: Iterable[Answer], columns: Sequence[Column]) -> pa.Table:
    """Return answers as one table, with the columns and types of a Parquet file."""
    pa = load_pyarrow("an Arrow table")
    group, tables = _Group(columns), []
    for answer in answers:
        group.add(answer)
        if group.full:
            tables.append(group.take())
    tables.append(group.take())
    return pa.concat_tables(tables)


class _Group:
    """Rows as columns, until there are enough of them for a row group."""

    def __init__(self, columns: Sequence[Column]) -> None:
        import pyarrow as pa

        types = {
            layout.TEXT: pa.string(),
            layout.INTEGER: pa.int64(),
            layout.NUMBER: pa.float64(),
            layout.BOOLEAN: pa.bool_(),
            layout.VECTOR: pa.list_(pa.float32()),
        }
        self.schema = pa.schema([pa.field(column.name, types[column.kind]) for column in columns])
        self._getters: list[Callable[[Answer], Any]] = [getter(column) for column in columns]
        self._values: list[list[Any]] = [[] for _ in columns]
        self._bytes = 0
        self.rows = 0

    def add(self, answer: Answer) -> None:
        for values, get in zip(self._values, self._getters, strict=True):
            value = get(answer)
            values.append(value)
            if type(value) is str:
                self._bytes += len(value)
            elif type(value) is list:
                self._bytes += 4 * len(value)
        self.rows += 1

    @property
    def full(self) -> bool:
        return self.rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES

    def take(self) -> pa.Table:
        import pyarrow as pa

        arrays = [pa.array(v, field.type) for v, field in zip(self._values, self.schema, strict=True)]
        self._values = [[] for _ in self._values]
        self._bytes = self.rows = 0
        return pa.table(arrays, schema=self.schema)
