"""What comes in from the caller and what goes out to the caller, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
    """

    line: int
    custom_id: Any
    body: dict[str, Any] | None
    row: Mapping[str, Any] | None = None
    key: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    fault: tuple[Verdict, str] | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """One line of ``results/<revision>/part-….jsonl``.

    ``output`` is the validated object of a structured job, else the text (or the protocol's non-text
    answer); ``usage`` counts tokens: input, output, cached, cache_write, reasoning. ``origin`` is
    ``paid`` (later also ``reused``, ``duplicate``).
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


@dataclass(frozen=True, slots=True)
class LandingInfo:
    """What a sink may write beside the answers.

    ``created_at``: when the job was created, seconds since the epoch; of two jobs that answer the same key
    the later one stands.
    """

    key: JobKey
    job_id: str
    revision: int
    created_at: float = 0.0


class ResolvedSink(Protocol):
    """Where answers go. Landing the same answers twice changes nothing."""

    def check(self) -> None:
        """Fail early, before money is spent. :raises SinkError: the table or a column is missing."""
        ...

    def land(self, answers: Iterable[Answer], info: LandingInfo) -> int:
        """Write the answers (streamed) and return how many rows were written."""
        ...
