"""Rows that a function returns, called when the source is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_batch_llm.declared import Context, names
from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.import_paths import path_of
from airflow_batch_llm.sources.base import RowReader, Source
from airflow_batch_llm.sources.rows import RowsSource

_WANTED = "return rows (a list or an iterator of dicts), or the path of a file with rows"


class FunctionSource(Source):
    """Rows of a function, as ``@task.batch_llm_rows`` makes them.

    :param function: the function. The running task calls it, with its arguments.
    :param key: the columns that name a row.
    """

    def __init__(self, function: Callable[..., Any], *, key: str | Sequence[str]) -> None:
        self.function = function
        self.key = names(key, "key")

    def serialize(self) -> dict[str, Any]:
        """Return the function's name and the key."""
        return {"type": "function", "function": path_of(self.function), "key": list(self.key)}

    def resolve(self, context: Context) -> FunctionReader:
        """Return the rows to come; the function is not called yet."""
        task = context["task"]
        name = getattr(self.function, "__name__", "the function")
        return FunctionReader(lambda: task.call_function(context), name, self.key, context)


class FunctionReader(RowReader):
    """Rows of a function that is called when they are read."""

    def __init__(self, call: Callable[[], Any], name: str, key: Sequence[str], context: Context) -> None:
        super().__init__(key, f"the result of {name}()")
        self._call = call
        self._name = name
        self._context = context

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Call the function and yield its rows, one at a time where it is a generator.

        :raises SourceError: it returns something else than rows or a reference to a file.
        """
        with _without_loop():
            found = self._call()
        if isinstance(found, (str, Mapping)) or hasattr(found, "__fspath__") or hasattr(found, "joinpath"):
            yield from self._rows_of_file(found if isinstance(found, Mapping) else str(found))
            return
        if not isinstance(found, Iterable) or isinstance(found, (bytes, bytearray)):
            raise SourceError(f"{self._name}() returned a {type(found).__name__}; {_WANTED}")
        for place, row in enumerate(_stepped(found), 1):
            if not isinstance(row, Mapping):
                raise SourceError(
                    f"{self._name}(): row {place} is a {type(row).__name__}, not a dict; {_WANTED}"
                )
            # A copy: a generator may change one dict all the time, and rows are staged many at once.
            yield place, dict(row)

    def _rows_of_file(self, reference: str | Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        source = RowsSource(reference, key=self._key.columns).resolve(self._context)
        assert isinstance(source, RowReader)
        yield from source.rows()


def _stepped(rows: Iterable[Any]) -> Iterator[Any]:
    iterator = iter(rows)
    while True:
        with _without_loop():
            try:
                row = next(iterator)
            except StopIteration:
                return
        yield row


@contextmanager
def _without_loop() -> Iterator[None]:
    """Let the function run as in any task: the engine's event loop, which reads the rows, is out of sight.

    Without it ``asyncio.run`` and what rests on it (async hooks called from plain code) would refuse.
    """
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
