"""What is known of each request while its batch is judged, and what its answers say."""

from __future__ import annotations

import contextlib
from typing import Any, BinaryIO

import msgspec

from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Asked, Attempt, Row, Usage
from airflow_batch_llm.core.verdicts import WORDED, Verdict

#: Characters of a row's words that stand beside its outcome, where it did not land; all are in the raw files.
_TEXT_LIMIT = 2000


class Slot(msgspec.Struct, gc=False):
    """What is known of one request while its batch is judged.

    The first three fields are those of a line of ``requests.jsonl``. Kept out of garbage collection: a
    batch holds tens of thousands, and none refers to another.
    """

    custom_id: str
    wire_id: str
    history: tuple[Attempt, ...] = ()
    verdict: Verdict | None = None
    code: str = ""
    message: str = ""
    usage: Usage = Usage()
    words: tuple[int, int] | None = None

    def asked(self) -> Asked | None:
        """Return what was asked, where it was read."""
        return None

    def judge(self, row: Row, judge: Judge) -> tuple[Verdict, str, str]:
        """Return verdict, code and message of a row that answers the request."""
        return judge.check(row, self.asked())

    def note(self, row: Row, judged: tuple[Verdict, str, str], words: Words) -> None:
        """Take over what a row says."""
        self.verdict, self.code, self.message = judged
        self.usage, self.words = row.usage, None
        if self.verdict is Verdict.OK:
            self.message = ""
        elif self.verdict in WORDED:
            self.words = words.keep(row)


class AskedSlot(Slot, gc=False):
    """A slot for judges that look at what was asked; only for them so much is kept of each request."""

    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}

    def asked(self) -> Asked:
        """Return what was asked."""
        return Asked(self.custom_id, self.key, self.carry)


class _Texts(msgspec.Struct, gc=False):
    """The part of a body for embeddings that says how many vectors it asks for."""

    input: Any = None

    @property
    def number(self) -> int:
        """How many texts; a list of tokens is one."""
        several = isinstance(self.input, list) and not all(isinstance(one, int) for one in self.input)
        return len(self.input) if several else 1


class VectorsSlot(AskedSlot, gc=False):
    """A slot of a request for embeddings: an answer has a vector for each of its texts."""

    body: _Texts | None = None
    wanted: int = 1

    def __post_init__(self) -> None:
        if self.body is not None:
            self.wanted, self.body = self.body.number, None  # the texts need not be kept

    def judge(self, row: Row, judge: Judge) -> tuple[Verdict, str, str]:
        """Return verdict, code and message; vectors too few or too many may be those of other texts."""
        vectors = row.output if isinstance(row.output, list) else []
        found = len(vectors) if vectors and isinstance(vectors[0], list) else 1
        if row.verdict is Verdict.OK and found != self.wanted:
            return Verdict.SERVER_ERROR, "vector_count", f"{found} vectors for {self.wanted} texts"
        return super().judge(row, judge)


class Words:
    """What rows that did not land say, in a file: where every row of a batch is one, memory stays small."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0

    def keep(self, row: Row) -> tuple[int, int] | None:
        """Write down the first characters of what a row says; returns their place."""
        text = row.text
        if text is None and row.output is not None:
            with contextlib.suppress(ValueError):
                text = dumps(row.output).decode("utf-8")
        data = (text or "")[:_TEXT_LIMIT].encode("utf-8", "replace")
        if not data:
            return None
        self._file.seek(self._end)
        self._file.write(data)
        place = (self._end, len(data))
        self._end += len(data)
        return place

    def read(self, place: tuple[int, int] | None) -> str:
        """Return what was written down."""
        if place is None:
            return ""
        self._file.seek(place[0])
        return self._file.read(place[1]).decode("utf-8")


plain_slots = msgspec.json.Decoder(Slot)
asked_slots = msgspec.json.Decoder(AskedSlot)
vectors_slots = msgspec.json.Decoder(VectorsSlot)
