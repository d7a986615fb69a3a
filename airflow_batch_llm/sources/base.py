"""What every source does: rows, with their place and id, become drafts."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.declared import Context, Declared
from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.prompts import CompiledPrompt, UnrenderableRow
from airflow_batch_llm.sources.keys import KeyColumns

#: How many faulty lines an error lists.
MAX_FAULTS = 20

#: How deeply a row may be nested: less than what Python and the JSON library can walk.
MAX_DEPTH = 200

_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_SCALARS = frozenset({int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class RowOptions:
    """What a task asks of the rows of any source.

    :param carry: columns that stand beside the answers.
    :param samples: answers asked for each row; from 2 on ``sample`` (1, 2 …) is a further key column.
    :param redact: changes a row before anything of it is rendered or kept.
    """

    carry: tuple[str, ...] = ()
    samples: int = 1
    redact: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


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

    def drafts(self, prompt: CompiledPrompt | None) -> Iterator[Draft]:
        """Yield the rows as drafts, streaming.

        :raises SourceError: the source cannot be read as declared.
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

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield every row with its place, from 1."""
        raise NotImplementedError

    def drafts(self, prompt: CompiledPrompt | None) -> Iterator[Draft]:
        """Yield the rows as drafts.

        A row whose prompt cannot be encoded or rendered carries a fault, and the rest goes on. A key
        column that is NULL makes the id None, which the engine refuses with its place.
        """
        if prompt is None:
            raise SourceError(f"{self._what} yields rows and needs a prompt")
        checked = False
        for place, row in self.rows():
            if not checked:
                self._key.check_columns(row, self._what)
                checked = True
            custom_id, key = self._key.of(row, f"{self._what}, {self._place} {place}")
            draft = Draft(line=place, custom_id=custom_id, body=None, row=storable_row(row), key=key)
            try:
                draft.body = prompt.body(row, f"row {custom_id!r} ({self._place} {place})")
            except UnrenderableRow as e:
                draft.fault = (Verdict.BAD_REQUEST, e.fault)
            yield draft


def storable_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row as ``rows.jsonl`` keeps it: JSON types, and text that UTF-8 can encode.

    Half a surrogate pair becomes U+FFFD, bytes become base64, dates ISO 8601, decimals and all other
    types their text; what is nested deeper than 200 levels becomes null, as numbers that are not finite
    do on writing. Prompts see the row as it was.
    """
    for name, value in row.items():
        kind = type(value)
        if kind is str:
            if not value.isascii() and _HALF_SURROGATE.search(value):
                break
        elif kind not in _JSON_SCALARS:
            break
        if not name.isascii() and _HALF_SURROGATE.search(name):
            break
    else:
        return row
    return {_whole_text(str(name)): _storable(value) for name, value in row.items()}


def _storable(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _whole_text(value)
    if isinstance(value, (Mapping, list, tuple)):
        if depth == MAX_DEPTH:
            return None
        if isinstance(value, Mapping):
            return {_whole_text(str(k)): _storable(v, depth + 1) for k, v in value.items()}
        return [_storable(v, depth + 1) for v in value]
    try:
        dumps(value)
    except ValueError:
        return _whole_text(str(value))
    return value


def _whole_text(text: str) -> str:
    return _HALF_SURROGATE.sub("�", text)


def has_half_surrogate(value: Any) -> bool:
    """Say whether a text anywhere in ``value``, names included, holds half a surrogate pair."""
    if isinstance(value, str):
        return not value.isascii() and _HALF_SURROGATE.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_half_surrogate(k) or has_half_surrogate(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return any(has_half_surrogate(v) for v in value)
    return False


def nested_deeper_than(value: Any, limit: int) -> bool:
    """Say whether lists and objects are nested deeper than ``limit`` levels."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return any(isinstance(value, (dict, list)) for value in level)


def listed(faults: Iterable[str], *, more: bool = False) -> str:
    """Join what is wrong with several lines into one message."""
    return "; ".join(faults) + ("; and more" if more else "")
