"""What comes in from the caller and what goes out to the caller, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.core.verdicts import Verdict


@dataclass(slots=True)
class Draft:
    """One source row on its way to becoming a request. Nothing in it has been checked yet.

    :param line: place in the source, from 1 (file line, or row number).
    :param custom_id: the caller's id as found; the engine refuses what is not a non-empty string.
    :param body: caller-level body (dict), None where ``fault`` says why there is none.
    :param row: the source row for ``rows.jsonl``; None for ready-made requests (the body is the row).
    :param key: the source's key columns, for the sink.
    :param model: the model a ready-made request names, "" otherwise.
    :param fault: verdict and short code of a row that cannot be sent; it dies, the others go on.
    :param carry: source columns that stand beside the answer, as JSON types.
    :param sample: which of several answers to the same row this asks for, from 1; 0 where there is one.
    """

    line: int
    custom_id: Any
    body: dict[str, Any] | None
    row: Mapping[str, Any] | None = None
    key: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    fault: tuple[Verdict, str] | None = None
    carry: dict[str, Any] = field(default_factory=dict)
    sample: int = 0


class Answer(msgspec.Struct, omit_defaults=True):
    """One line of ``results/<revision>/part-….jsonl``.

    ``output`` is the validated object of a structured job, else the text (or the protocol's non-text
    answer); ``usage`` counts tokens: input, output, cached, cache_write, reasoning. ``origin`` is
    ``paid``, ``reused`` (bought by an earlier job) or ``duplicate`` (answered for an identical request).
    """

    custom_id: str
    wire_id: str
    output: Any
    model: str
    usage: dict[str, int]
    finish_reason: str
    round: int
    origin: str = "paid"
    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}


class AnswerMismatch(ValueError):
    """An answer that does not fit its schema. Quotes nothing of the answer.

    :param where: field paths of the schema's own names and kinds of faults, as
        ``$.labels[*].stars: maximum``; at most 200 characters.
    :param code: ``not_json`` or ``schema_mismatch``.
    """

    def __init__(self, where: str, code: str = "schema_mismatch") -> None:
        super().__init__(where)
        self.where = where
        self.code = code


class AnswerSchema(Protocol):
    """How the text of a structured answer is checked."""

    @property
    def json_schema(self) -> Mapping[str, Any]: ...
    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides what :meth:`parse` accepts."""
        ...

    def parse(self, text: str) -> Any:
        """Return the answer as plain JSON types.

        :raises ValueError: it does not fit the schema; an :class:`AnswerMismatch` says where.
        """
        ...

    def read(self, text: str) -> Any:
        """Return an answer that :meth:`parse` has accepted, checked no further than reading it takes.

        :raises ValueError: it cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class LandingInfo:
    """What a sink may write beside the answers.

    :param created_at: when the job was created, seconds since the epoch; of two jobs that answer the same
        key the later one stands.
    :param final: False while rows of the revision are still pending (after a round, or in a halted job).
    :param rows: rows of the revision.
    :param answered: those that have an answer.
    :param dead: those that have failed for good.
    :param empty_is_content: that there are no rows is what is to land, where it takes the place of others.
    """

    key: JobKey
    job_id: str
    revision: int
    created_at: float = 0.0
    final: bool = True
    rows: int = 0
    answered: int = 0
    dead: int = 0
    empty_is_content: bool = False


class ResolvedSink(Protocol):
    """Where answers go. Landing the same answers twice changes nothing.

    ``each_round``: answers land after every round, not only when the job settles. ``deletes_withdrawn``:
    rows that left the source are taken out again.
    """

    @property
    def each_round(self) -> bool: ...
    @property
    def deletes_withdrawn(self) -> bool: ...

    def check(self) -> None:
        """Fail early, before money is spent. :raises SinkError: the table or a column is missing."""
        ...

    def land(self, answers: Iterable[Answer], info: LandingInfo) -> int:
        """Write the answers (streamed) and return how many rows were written."""
        ...

    def withdraw(self, members: Callable[[Sequence[str]], set[str]], info: LandingInfo) -> int:
        """Delete what this job landed for rows that are no longer in the revision; returns how many.

        :param members: says which of some custom_ids are in the revision.
        """
        ...


class ResultsWriter(Protocol):
    """A results file on its way."""

    def write(self, answer: Answer) -> None: ...
    def close(self) -> None:
        """Finish the file."""
        ...


class ResultsFormat(Protocol):
    """A further form in which answers are published, beside JSON lines: one more file for each part.

    ``suffix`` ends the file's name (``.parquet``).
    """

    @property
    def suffix(self) -> str: ...
    def fitted(self, answers: Iterable[Answer]) -> ResultsFormat:
        """Return the form for a publication that holds these answers: all its files have the same columns."""
        ...

    def open(self, local: Path) -> ResultsWriter:
        """Begin a local file."""
        ...
