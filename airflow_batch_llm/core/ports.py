"""What the engine needs from outside beside the ledger: a workspace, a backend, an index. Protocols only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from airflow_batch_llm.core.model import (
    JobKey,
    RemoteBatch,
    RequestTemplate,
    ResultFile,
    Row,
)


class Workspace(Protocol):
    """Whole files under one base folder. Paths are relative, with forward slashes.

    A file appears whole or not at all. Locally: a temporary file in the same folder, fsync,
    ``os.replace``; remotely: a local temporary file and one put.
    """

    def job_root(self, key: JobKey) -> str:
        """Return the job's folder, each part of the key quoted so that it is one path part."""
        ...

    def url(self, path: str) -> str:
        """Return the full address of a file or folder, for people."""
        ...

    def writer(self, path: str) -> AbstractContextManager[WholeFile]:
        """Open a file for writing; it appears when the block ends without an exception."""
        ...

    def put(self, path: str, data: bytes) -> FileInfo:
        """Write a small file whole."""
        ...

    def put_file(self, path: str, local: Path) -> FileInfo:
        """Copy a local file to ``path``, whole."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open for reading. :raises WorkspaceError: there is no such file."""
        ...

    def open_checked(self, path: str, size: int, sha256: str) -> AbstractContextManager[BinaryIO]:
        """Open for reading.

        :raises WorkspaceError: size or digest differ (told when the end is reached).
        """
        ...

    def exists(self, path: str) -> bool:
        """Say whether the file exists."""
        ...

    def leftovers(self, path: str) -> list[str]:
        """Return the half-written files below a folder that processes which died have left."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the paths of all files below a folder, sorted; empty where there is none."""
        ...

    def delete_tree(self, path: str) -> None:
        """Delete a file, or a folder and all below; nothing happens where there is neither."""
        ...


class WholeFile(Protocol):
    """A file being written: counts and digests what goes through it."""

    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    def write(self, data: bytes) -> int: ...


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Size in bytes and SHA-256 (hex) of a file as written."""

    size: int
    sha256: str


LineEncoder = Callable[[str, bytes], bytes]
"""(wire id, body as in ``requests.jsonl``) -> the upload's line, with its 0x0A. Pure and fast.

:raises Refused: the body lacks or holds something this protocol cannot send.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch may hold at this provider.

    :param max_inputs: texts that the requests of an embeddings batch may ask for together; None: no bound.
    :param creates_per_hour: batches that may be created in an hour; what a plan has more is sent later.
    """

    max_requests: int
    max_bytes: int
    max_line_bytes: int
    window_seconds: float
    one_model_per_batch: bool = True
    max_inputs: int | None = None
    creates_per_hour: int | None = None

    def allow(self, size: int, inputs: int) -> bool:
        """Say whether a request of ``size`` bytes and so many texts can be sent, alone if need be."""
        within = size <= self.max_line_bytes and size <= self.max_bytes
        return within and (self.max_inputs is None or inputs <= self.max_inputs)


#: Bytes a second at which a create call that carries its requests gets away, at the least.
_LEAST_SPEED = 500_000.0


def carrying_seconds(lines: Path | None) -> float:
    """Return how much longer a create call may take because ``lines`` go along with it."""
    return lines.stat().st_size / _LEAST_SPEED if lines is not None else 0.0


@dataclass(frozen=True, slots=True)
class CreateOrder:
    """One create call.

    :param input_file_id: the upload; "" where the requests go along with the call.
    :param lines: the encoded requests, where there is no upload; the file lives until the call returns.
    :param requests: how many requests the batch has.
    """

    template: RequestTemplate
    input_file_id: str
    metadata: Mapping[str, str]
    display_name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    lines: Path | None = None
    requests: int = 0


class Backend(Protocol):
    """One provider's wire protocol. Async; safe calls retry inside, the create call never does.

    Every call may raise AuthError, AccountError, RateLimited, Unreachable, Refused, NotFound.
    """

    provider: str
    #: Which server it speaks to: host, port and path, no credentials. Two servers may call a model the same.
    address: str
    #: A short name for the account: no secret, the same as long as the key is. "" where there is no key, or
    #: one that is short-lived.
    account: str
    limits: Limits
    #: Seconds after which a create call is given up, beside those that its requests take on the way
    #: (:func:`carrying_seconds`); a lease is longer.
    create_timeout: float
    #: Whether :meth:`list_recent` can be called. Where not, batches are looked at one by one.
    lists_batches: bool
    #: Whether the requests go along with the create call, so that nothing is uploaded before.
    inline: bool
    #: Whether a batch shows the token that it was created with (metadata, a name). Where not, :meth:`find`
    #: and :meth:`find_origin` cannot be called: a lost batch is known by time, count and wire ids, which
    #: :meth:`list_since` and the results tell.
    marks_batches: bool

    @property
    def files_expire(self) -> bool:
        """Whether uploads and results disappear at the provider by themselves."""
        ...

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        """Return the encoder for a batch. :raises Refused: the template asks what the protocol lacks."""
        ...

    async def upload(self, local: Path, name: str) -> str:
        """Send the encoded file and return its id. Repeating it costs an orphan file, no money.

        :raises LinesRefused: the provider checked the file and refuses some of its lines.
        """
        ...

    async def ready(self, file_id: str, *, waited: float = 0.0) -> float | None:
        """Return None where an upload can be used, else in how many seconds to ask again.

        :param waited: seconds since it was uploaded, by the ledger's clock: the provider's may differ.
        :raises NotFound: the upload is gone.
        :raises Refused: the provider could not read it.
        """
        ...

    async def create(self, order: CreateOrder) -> RemoteBatch:
        """Create the batch: exactly one request on the wire.

        :raises InDoubt: time-out, reset or 5xx: it may have taken effect.
        :raises LinesRefused: the provider checked the requests and refuses some; nothing was created.
        """
        ...

    async def find(
        self, token: str, *, created_after: float | None = None, upload: str | None = None
    ) -> list[RemoteBatch]:
        """Return the batches whose metadata token is ``token``, looking at those created since.

        :param upload: id of the upload they were made of, which is no other batch's: one that shows no token
            although it was given one is known by it.
        """
        ...

    async def find_origin(self, origin: str) -> list[RemoteBatch]:
        """Return the batches of a job whose ledger was lost (metadata origin)."""
        ...

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """:raises NotFound: the provider denies the batch."""
        ...

    async def list_recent(
        self, *, stop_at: Callable[[RemoteBatch], bool], max_pages: int = 10
    ) -> list[RemoteBatch]:
        """Return batches newest first, page by page, until ``stop_at`` says so or the pages end."""
        ...

    async def list_since(self, oldest: float) -> list[RemoteBatch]:
        """Return every batch created since ``oldest`` (seconds since the epoch), and those that tell no time.

        :raises InDoubt: the list did not come to an end, so that one may be missing.
        """
        ...

    async def cancel(self, batch_id: str) -> RemoteBatch:
        """Ask for cancellation; on a batch that has already ended, return it as it is."""
        ...

    async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
        """Fetch a result file whole.

        :raises TransferError: it did not arrive whole.
        :raises NotFound: it is gone.
        """
        ...

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; one that is gone already is fine."""
        ...

    def decode(self, line: bytes) -> Row:
        """Decode one result line. Never raises: a line that cannot be read is ``unknown``."""
        ...

    async def probe(self) -> str:
        """Make the cheapest authenticated call; return a sentence for the connection test."""
        ...

    async def aclose(self) -> None: ...


class RowIndex(Protocol):
    """Text key -> (number, number, bytes) for one pass over a job, outside of memory."""

    def insert(self, items: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        """Insert where the key is new; return ``(key, a refused, a standing)`` of the others."""
        ...

    def update(self, items: Iterable[tuple[str, int, int]], *, where_a: Sequence[int]) -> None: ...
    def put(self, items: Iterable[tuple[str, int, int, bytes | None]], *, unless_a: int) -> None: ...
    def get(self, key: str) -> tuple[int, int, bytes | None] | None: ...
    def keys(self, *, a: int, b: int | None = None) -> Iterator[str]: ...
    def counts(self) -> dict[int, int]: ...
    def __enter__(self) -> RowIndex: ...
    def __exit__(self, *error: Any) -> None: ...
