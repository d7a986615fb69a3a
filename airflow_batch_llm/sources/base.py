"""What every source does: rows, with their place and id, become drafts."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.declared import Context, Declared
from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.prompts import CompiledPrompt, UnrenderableRow
from airflow_batch_llm.sources.keys import KeyColumns
from airflow_batch_llm.sources.shaping import AS_THEY_ARE, CarriedColumns, RowOptions, redacted, sampled
from airflow_batch_llm.sources.storable import storable_row

__all__ = ["MAX_FAULTS", "ResolvedSource", "RowOptions", "RowReader", "Source", "listed"]

#: How many faulty lines an error lists.
MAX_FAULTS = 20

log = logging.getLogger("airflow_batch_llm.sources")

#: How many rows that cannot be made into requests the log names, by id and place.
_SHOWN_FAULTS = 3


class ResolvedSource(Protocol):
    """A source that can be read, any number of times; each reading opens it anew.

    ``native``: its bodies are the provider's own and no prompt is needed; ``endpoint`` then names the
    URL they are for (None for other sources).
    """

    @property
    def native(self) -> bool: ...
    @property
    def endpoint(self) -> str | None: ...
    @property
    def id_origin(self) -> str:
        """Say what the ids are made of and what a draft's ``line`` counts, for errors about ids."""
        ...

    def place_name(self, place: int) -> str:
        """Return how errors name the place that a draft's ``line`` counts."""
        ...

    def drafts(self, prompt: CompiledPrompt | None, options: RowOptions = AS_THEY_ARE) -> Iterator[Draft]:
        """Yield the rows as drafts, streaming.

        :raises SourceError: the source cannot be read as declared, or does not have what ``options`` name.
        :raises PromptError: the prompt does not fit the rows.
        """
        ...


class Source(Declared):
    """Where requests come from, as a DAG file declares it. ``key``: the columns that name a row."""

    key: tuple[str, ...] = ()

    @abstractmethod
    def resolve(self, context: Context) -> ResolvedSource:
        """Render the templated parts; nothing is read yet."""


class RowReader:
    """A resolved source of rows: subclasses yield ``(place from 1, row)``, this makes drafts of them.

    :param what: how errors name the source.
    :param place: how errors call a row's place: ``line`` or ``row``.
    """

    native = False
    endpoint: str | None = None
    #: Whether all rows have the same columns, so that the first one tells which there are.
    fixed_columns = False

    def __init__(self, key: Sequence[str], what: str, place: str = "row") -> None:
        self._key = KeyColumns(key)
        self._what = what
        self._place = place

    @property
    def id_origin(self) -> str:
        """Say what the ids are made of and what a draft's ``line`` counts, for errors about ids."""
        columns = self._key.columns
        named = f"column{'s' if len(columns) > 1 else ''} {', '.join(map(repr, columns))}"
        return f"ids are the key {named} of {self._what}, counted by {self._place}"

    @property
    def what(self) -> str:
        """How errors name the source."""
        return self._what

    def place_name(self, place: int) -> str:
        """Return how errors name a row's place."""
        return f"{self._place} {place}"

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield every row with its place, from 1."""
        raise NotImplementedError

    def needed_rows(self, columns: frozenset[str] | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield every row with its place, at least with these columns; None: with all there are."""
        return self.rows()

    def drafts(self, prompt: CompiledPrompt | None, options: RowOptions = AS_THEY_ARE) -> Iterator[Draft]:
        """Yield the rows as drafts.

        A row whose prompt cannot be encoded or rendered carries a fault, and the rest goes on. A key
        column that is NULL makes the id None, which the engine refuses with its place.
        """
        if prompt is None:
            raise SourceError(f"{self._what} yields rows and needs a prompt")
        options.check_key(self._key.columns, self._what)
        carried = CarriedColumns(options.carry)
        checked = False
        faults = 0
        for place, row in self.needed_rows(self._needed(prompt, options)):
            if not checked:
                self._key.check_columns(row, self._what)
                checked = True
            at = self.place_name(place)
            custom_id, key = self._key.of(row, f"{self._what}, {at}")
            if options.redact is not None:
                row = redacted(options.redact, row, self._key.columns, f"row {custom_id!r} ({at})")
            fixed = self.fixed_columns and options.redact is None
            carry = carried.of(row, f"{self._what}, {at}", fixed=fixed)
            draft = Draft(place, custom_id, None, row=storable_row(row), key=key, carry=carry)
            try:
                draft.body = prompt.body(row, f"row {custom_id!r} ({at})")
                # Only a body of its own names a model; it is sent with others of that model.
                draft.model = draft.body.get("model", "")
            except UnrenderableRow as e:
                draft.fault = (Verdict.BAD_REQUEST, e.fault)
                faults += 1
                if faults <= _SHOWN_FAULTS:
                    log.warning("%s; the row is not sent and becomes a dead letter (%s)", e.args[0], e.fault)
            yield from sampled(draft, options.samples)
        if faults > _SHOWN_FAULTS:
            log.warning("%s: %d rows in all cannot be made into requests", self._what, faults)
        carried.check(self._what)

    def _needed(self, prompt: CompiledPrompt, options: RowOptions) -> frozenset[str] | None:
        """Return the columns that decide what is sent and kept, None where that cannot be known."""
        read = prompt.reads
        if read is None or options.redact is not None:
            return None
        return read.union(self._key.columns, options.carry)


def listed(faults: Iterable[str], *, more: bool = False) -> str:
    """Join what is wrong with several lines into one message."""
    return "; ".join(faults) + ("; and more" if more else "")
