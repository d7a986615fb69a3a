"""The seams of the server: line formats (dialects), who answers (upstreams), and plain values between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_batch_llm.server.scenario import RowRule

if TYPE_CHECKING:
    from airflow_batch_llm.server.batches import StoredBatch


@dataclass(frozen=True, slots=True)
class Request:
    """One line of a batch. ``line`` counts from 1.

    :param body: the request in OpenAI's form, which all that answers understands; another protocol's line
        format translates it, and the reply back.
    :param refused: what is answered in place of asking anybody, where the line format itself says no.
    :param kept: what the line format needs again for the row; nobody else looks at it.
    """

    line: int
    custom_id: str
    model: str
    body: bytes
    refused: Reply | None = None
    kept: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered to one request. ``status`` 0: nothing came back in time."""

    status: int
    body: bytes = b""
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a batch fails validation. ``line`` counts from 1; None: the fault is not in a line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineChecker(Protocol):
    """Checks the lines of one file in order; keeps no more than a digest of each id."""

    @property
    def model(self) -> str | None:
        """The one model of the lines so far; None where they name none."""
        ...

    def check(self, number: int, line: bytes) -> LineError | None:
        """Return what is wrong with a line (without its 0x0A), if anything is."""
        ...


class Dialect(Protocol):
    """One provider's line format: what requests and results look like in files.

    ``one_file``: rows that failed or were not executed stand in the output file too.
    """

    name: str
    one_file: bool

    def checker(self, endpoint: str, unknown_models: Sequence[str]) -> LineChecker:
        """Return a checker for one file."""
        ...

    def read(self, batch: StoredBatch, number: int, line: bytes) -> Request:
        """Read a line that was checked."""
        ...

    def row(self, batch: StoredBatch, row_id: str, request: Request, reply: Reply) -> bytes:
        """Return the result line of a request that was executed, well or not."""
        ...

    def unexecuted(self, batch: StoredBatch, row_id: str, custom_id: str | None, code: str) -> bytes:
        """Return the line of a row not executed: ``batch_expired``, ``batch_cancelled``."""
        ...

    def with_custom_id(self, line: bytes, custom_id: str | None) -> bytes:
        """Return a result line under another id."""
        ...


class Endpoint(Protocol):
    """One kind of request: knows its prompt, and what its bodies look like when a scenario spoils them."""

    #: How many of its answers are held at once.
    piece: int
    #: The faults of a scenario that its answers can be spoiled with.
    spoils: frozenset[str]

    def prompt(self, body: bytes) -> str:
        """Return the text that is asked; empty where the body cannot be read."""
        ...

    def spoil(self, reply: Reply, rule: RowRule) -> Reply:
        """Return a good reply made bad, as one of the faults that leave a row in the output file."""
        ...


class Upstream(Protocol):
    """Who answers requests."""

    #: How many requests are best handed over at once.
    piece: int

    def answer(self, endpoint: str, requests: Sequence[Request], created: int) -> list[Reply]:
        """Answer all, in order. Never raises for a request; a reply says what went wrong.

        :param created: unix seconds for the bodies.
        """
        ...

    def models(self) -> list[dict[str, Any]]:
        """Return the models that can be asked for, as ``/v1/models`` shows them."""
        ...

    def close(self) -> None: ...
