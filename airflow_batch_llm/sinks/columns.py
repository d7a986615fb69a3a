"""Which columns an answer fills, and with what values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.core.drafts import Answer, AnswerSchema, LandingInfo
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, MODERATIONS
from airflow_batch_llm.exceptions import SinkError
from airflow_batch_llm.sinks.kinds import (
    BOOLEAN,
    INTEGER,
    JSON,
    NUMBER,
    TEXT,
    VECTOR,
    kind_of_values,
    kind_of_vectors,
    kind_of_versions,
    object_kinds,
)

CUSTOM_ID = "_custom_id"
LANDED_AT = "_landed_at"

#: Bookkeeping columns in their order, with their kinds. ``_landed_at`` follows them.
BOOKKEEPING = {
    CUSTOM_ID: TEXT,
    "_model": TEXT,
    "_job_id": TEXT,
    "_run_id": TEXT,
    "_job_created_at": NUMBER,
    "_revision": INTEGER,
    "_round": INTEGER,
}
#: What names a row of a table that is only added to.
JOB_AND_ID = ("_job_id", CUSTOM_ID)

#: The column of an answer that is not taken apart.
OUTPUT = "output"

_MODERATION = {"flagged": BOOLEAN, "categories": JSON, "category_scores": JSON}


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a sink.

    :param key: the answer's key column -> the table's column; without those that ``constants`` fills.
    :param unique: the table's columns that are unique together.
    :param outputs: the answer's property -> the table's column.
    :param whole: the output is one value in one column, not an object taken apart.
    :param kinds: table column -> kind, as far as known before the first answer (key and carried columns
        are not).
    :param constants: table column -> the value that all of the job's rows have there.
    :param carried: carried source column -> table column.
    :param version: the table's column that holds the version of the source row, None for none.
    """

    key: Mapping[str, str]
    unique: tuple[str, ...]
    outputs: Mapping[str, str]
    whole: bool
    kinds: Mapping[str, str]
    constants: Mapping[str, Any]
    carried: Mapping[str, str]
    version: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns in the order of :meth:`values`, ``_landed_at`` last."""
        key = [column for column in self.key.values() if column not in BOOKKEEPING]
        return (
            *self.constants,
            *key,
            *self.outputs.values(),
            *self.carried.values(),
            *BOOKKEEPING,
            LANDED_AT,
        )

    def values(self, answer: Answer, info: LandingInfo, landed_at: Any) -> tuple[Any, ...]:
        """Return an answer's values, in the order of :attr:`columns`.

        :raises SinkError: the answer lacks a key column.
        """
        key = []
        for name, column in self.key.items():
            if column in BOOKKEEPING:
                continue
            if name not in answer.key:
                raise SinkError(
                    f"answer {answer.custom_id!r} has no key column {name!r}; it has: {sorted(answer.key)}. "
                    "The sink's key must be among the source's key columns"
                )
            key.append(answer.key[name])
        if self.whole:
            outputs: Iterable[Any] = (answer.output,)
        else:
            output = answer.output if isinstance(answer.output, Mapping) else {}
            outputs = map(output.get, self.outputs)
        return (
            *self.constants.values(),
            *key,
            *outputs,
            *map(answer.carry.get, self.carried),
            answer.custom_id,
            answer.model,
            info.job_id,
            info.key.run_id,
            info.created_at,
            info.revision,
            answer.round,
            landed_at,
        )

    def kinds_with(self, first: Sequence[Answer]) -> dict[str, str]:
        """Return the kinds of all columns but ``_landed_at``, with what the first answers show."""
        shown: dict[str, list[Any]] = {
            column: [answer.key.get(name) for answer in first]
            for name, column in self.key.items()
            if column not in BOOKKEEPING
        }
        shown |= {
            column: [answer.carry.get(name) for answer in first] for name, column in self.carried.items()
        }
        kinds = {column: kind_of_values([value]) for column, value in self.constants.items()}
        kinds |= {column: kind_of_values(values) for column, values in shown.items()}
        if self.version in shown:
            kinds[self.version] = kind_of_versions(shown[self.version])
        kinds |= self.kinds
        for column, kind in kinds.items():
            if kind == VECTOR:
                kinds[column] = kind_of_vectors(answer.output for answer in first)
        return {column: kinds[column] for column in self.columns if column != LANDED_AT}


def layout(
    key: Mapping[str, str],
    columns: Mapping[str, str] | None = None,
    schema: AnswerSchema | None = None,
    *,
    endpoint: str = CHAT,
    carry: Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
    unique: Sequence[str] | None = None,
    version: str | None = None,
) -> Layout:
    """Return the columns of a sink.

    :param key: key column -> table column.
    :param columns: properties of the answer, and carried columns that change their names -> table column.
        Where it names a property, only those it names are written. None for all.
    :param carry: source columns that stand beside the answers.
    :param constants: table column -> value that all rows have there.
    :param unique: the table's columns that are unique together; None for the key.
    :param version: the source column that holds the version of a source row.
    :raises SinkError: a property is not in the schema, two values go to the same column, or the version is
        not written.
    """
    constants = constants or {}
    known, whole = _known_outputs(schema, endpoint)
    wanted = {name: name for name in known} if columns is None else dict(columns)
    own_key = {name: column for name, column in key.items() if column not in constants}
    renamed = {name: wanted.pop(name) for name in carry if name not in known and name in wanted}
    outputs = wanted or {name: name for name in known}
    unknown = sorted(set(outputs) - set(known))
    if unknown:
        raise SinkError(
            f"the answers have no {', '.join(map(repr, unknown))}; they have: {', '.join(known)}"
            + (f"; carried are: {', '.join(carry)}" if carry else "")
        )
    carried = {name: renamed.get(name, name) for name in carry if name not in own_key}
    kinds = {column: known[name] for name, column in outputs.items()} | BOOKKEEPING
    key_only = [column for column in own_key.values() if column not in BOOKKEEPING]
    _check_distinct([*constants, *key_only, *outputs.values(), *carried.values()])
    return Layout(
        own_key,
        tuple(dict.fromkeys(unique if unique is not None else key.values())),
        outputs,
        whole,
        kinds,
        constants,
        carried,
        _version_column(version, own_key | carried),
    )


def _known_outputs(schema: AnswerSchema | None, endpoint: str) -> tuple[dict[str, str], bool]:
    """Return property -> kind, and whether the answer goes to one column."""
    if endpoint == EMBEDDINGS:
        return {OUTPUT: VECTOR}, True
    if endpoint == MODERATIONS:
        return dict(_MODERATION), False
    properties = object_kinds(schema)
    return ({OUTPUT: TEXT}, True) if properties is None else (properties, False)


def _check_distinct(own: Sequence[str]) -> None:
    targets = [*own, *BOOKKEEPING, LANDED_AT]
    twice = sorted({column for column in targets if targets.count(column) > 1})
    if twice:
        raise SinkError(
            f"two values go to the column {', '.join(map(repr, twice))}; "
            "rename one with columns={property: column}"
        )


def _version_column(version: str | None, source: Mapping[str, str]) -> str | None:
    if version is None:
        return None
    if version not in source:
        raise SinkError(
            f"the version column {version!r} is neither carried nor a key column: pass carry=[{version!r}] "
            "to the job, and let the source return it"
        )
    return source[version]
