"""Parquet files, read in small record batches, so that memory does not grow with file or row group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from airflow_batch_llm.exceptions import ConfigurationError, SourceError
from airflow_batch_llm.sources.locations import open_location, readable

#: Bytes that are read ahead, over all columns of a file, and within which the read-ahead of one column stays.
_READ_AHEAD = 32 << 20
_COLUMN_READ_AHEAD = (64 << 10, 4 << 20)
#: Size of the rows that are made at a time, in bytes as the file tells them, and their largest number. Values
#: that repeat are told once, so the number bounds what many rows with one long text may need.
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 256


@contextmanager
def open_parquet(path: str, conn_id: str | None = None) -> Iterator[ParquetRows]:
    """Open a Parquet file: its footer is read, nothing else.

    :raises ConfigurationError: pyarrow is not installed.
    :raises SourceError: there is no such file, or it is not a whole Parquet file. Other storage errors pass
        through, now and on reading: they may go away.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            f"{path} is a Parquet file, and pyarrow, which reads it, is not installed: "
            "pip install 'airflow-batch-llm[parquet]'"
        ) from None
    # Columns lie apart: what a file system reads ahead by itself would be thrown away at every turn.
    with readable(path), open_location(path, conn_id, cache_type="none") as file:
        yield ParquetRows(_Watched(file), path)


class ParquetRows:
    """The rows of an open Parquet file.

    :raises SourceError: it is not a whole Parquet file, or two of its columns have one name.
    """

    def __init__(self, file: _Watched, path: str) -> None:
        from pyarrow.parquet import read_metadata

        self._file, self._path = file, path
        with self._mended("is not a Parquet file, or not a whole one"):
            self._metadata = read_metadata(file)
            schema = self._metadata.schema.to_arrow_schema()
        self.columns: list[str] = schema.names
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if twice:
            raise SourceError(f"{path} has two columns {', '.join(map(repr, twice))}")

    def rows(self, columns: frozenset[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows, numbered from 1, with these columns; with all where it lacks one, or for None.

        :raises SourceError: a part of the file is broken, or holds what Python cannot.
        """
        wanted = None if columns is None or not columns.issubset(self.columns) else columns
        kept = [name for name in self.columns if wanted is None or name in wanted]
        number = 0
        for batch in self._batches(None if wanted is None else kept):
            values = [self._values(batch.column(name), name, number) for name in kept]
            for row in zip(*values, strict=True):
                number += 1
                yield number, dict(zip(kept, row, strict=True))

    def _batches(self, columns: list[str] | None) -> Iterator[Any]:
        from pyarrow.parquet import ParquetFile

        with self._mended("cannot be read"):
            low, high = _COLUMN_READ_AHEAD
            opened = ParquetFile(
                self._file,
                metadata=self._metadata,
                buffer_size=min(max(_READ_AHEAD // max(len(columns or self.columns), 1), low), high),
                pre_buffer=False,
                coerce_int96_timestamp_unit="us",
            )
            batches = opened.iter_batches(self._batch_rows(columns), columns=columns, use_threads=False)
        read = 0
        while True:
            with self._mended(f"cannot be read after row {read}"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
            read += batch.num_rows

    def _batch_rows(self, columns: list[str] | None) -> int:
        """Return how many rows are made at a time."""
        size = 0
        for group in map(self._metadata.row_group, range(self._metadata.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                if columns is None or chunk.path_in_schema.split(".")[0] in columns:
                    size += chunk.total_uncompressed_size
        average = size // max(self._metadata.num_rows, 1)
        return min(max(_BATCH_BYTES // max(average, 1), 1), _BATCH_ROWS)

    def _values(self, column: Any, name: str, before: int) -> list[Any]:
        """Return a column's values as Python's own.

        :param before: rows of the file before it.
        """
        from pyarrow import ArrowException

        try:
            return _python_values(column)
        except (ArrowException, ValueError, OverflowError):
            pass
        for place in range(len(column)):
            try:
                _python_values(column.slice(place, 1))
            except UnicodeDecodeError:
                fault = "is not UTF-8"
            except (ArrowException, ValueError, OverflowError):
                fault = f"is a {column.type} that Python cannot hold"
            else:
                continue
            raise SourceError(f"{self._path}, row {before + place + 1}: the value of column {name!r} {fault}")
        raise SourceError(f"{self._path}: column {name!r} cannot be read after row {before}")

    @contextmanager
    def _mended(self, fault: str) -> Iterator[None]:
        """Turn an error about the file's content into one of this package; the storage's own pass through."""
        from pyarrow import ArrowException

        try:
            yield
        except (ArrowException, OSError, ValueError) as e:
            if self._file.error is not None:
                raise self._file.error from e
        else:
            return
        raise SourceError(f"{self._path} {fault}")


def _python_values(column: Any) -> list[Any]:
    kind = _in_microseconds(column.type)
    if kind != column.type:
        column = column.cast(kind, safe=False)
    values: list[Any] = column.to_pylist()
    return [_with_dicts(value, kind) for value in values] if _has_map(kind) else values


def _in_microseconds(kind: Any) -> Any:
    """Return a type with microseconds in place of nanoseconds: what Python's own dates and times hold."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    return kind


def _has_map(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _with_dicts(value: Any, kind: Any) -> Any:
    """Return a value with dicts in place of the lists of pairs that maps come as; the last of a name wins."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        return {name: _with_dicts(item, kind.item_type) for name, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [_with_dicts(item, kind.value_type) for item in value]
    return value


class _Watched:
    """A file that remembers that the storage failed: pyarrow's errors do not always tell whose they are."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: Exception | None = None
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes."""
        try:
            return self._file.read(size)
        except Exception as e:
            self.error = e
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to another place."""
        try:
            return self._file.seek(offset, whence)
        except Exception as e:
            self.error = e
            raise

    def tell(self) -> int:
        """Return the place."""
        return self._file.tell()

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that places can be gone to."""
        return True

    def flush(self) -> None:
        """Do nothing: it is read only."""

    def close(self) -> None:
        """Leave the file to who opened it."""
        self.closed = True
