"""Fault points around everything a task touches: each ledger write, each request, each file."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from airflow_batch_llm.core.drafts import Answer, LandingInfo
from airflow_batch_llm.storage.workspace import ObjectWorkspace
from tests.chaos.landing import LandingTable
from tests.chaos.processes import Teller
from tests.chaos.protocols import ASK_FOR_UPLOADS

Fault = Callable[[str], None]

#: Fault points of the harness's own, beside those registered in the engine.
LEDGER_POINTS = ("ledger.before_write", "ledger.after_write")
REQUEST_POINTS = ("request.before", "request.after")
FILE_POINTS = ("workspace.before_write", "workspace.half_written", "workspace.after_write")
SINK_POINTS = ("sink.half_landed",)
OWN_POINTS = (*LEDGER_POINTS, *REQUEST_POINTS, *FILE_POINTS, *SINK_POINTS)

_READS = frozenset(
    (
        *("engine", "schema", "namespace", "namespace_made_at", "now", "get_job", "jobs", "batches"),
        *("get_batch", "dead_letters", "find_dead_letters", "count_dead_letters", "events"),
        *("holds", "get_hold", "find_answers", "batches_at_provider", "in_doubt_alike"),
    )
)
_CALLS = frozenset(
    (
        *("upload", "ready", "create", "find", "find_origin", "retrieve", "list_recent", "list_since"),
        *("cancel", "download", "delete_file", "probe"),
    )
)


class WatchedLedger:
    """A ledger with a fault point before and after each write.

    :param tell: hears of each plan that was pinned, before anything else can happen.
    """

    def __init__(self, ledger: Any, fault: Fault, tell: Teller) -> None:
        self._ledger, self._fault, self._tell = ledger, fault, tell

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if name in _READS or not callable(found):
            return found

        def write(*args: Any, **kwargs: Any) -> Any:
            self._fault("ledger.before_write")
            result = found(*args, **kwargs)
            if name == "pin_plan" and result is not None:
                self._tell.tell("pinned")
            self._fault("ledger.after_write")
            return result

        return write


class WatchedBackend:
    """A backend with a fault point before and after each request.

    :param through: makes the same backend for another address.
    """

    def __init__(self, backend: Any, fault: Fault, through: Callable[[str], Any]) -> None:
        self._backend, self._fault, self._through = backend, fault, through
        self.reset_next_upload = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name not in _CALLS or (name == "ready" and self._backend.provider not in ASK_FOR_UPLOADS):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._fault("request.before")
            if name == "upload" and self.reset_next_upload:
                self.reset_next_upload = False
                with resetting_port() as url:
                    other = self._through(url)
                    try:
                        return await other.upload(*args, **kwargs)
                    finally:
                        await other.aclose()
            result = await found(*args, **kwargs)
            self._fault("request.after")
            return result

        return call


@contextmanager
def resetting_port() -> Iterator[str]:
    """Give the address of a port that resets each connection in the middle of the request's body."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    got = b""
                    while b"\r\n\r\n" not in got and (data := connection.recv(256)):
                        got += data
                    # No lingering: what is closed with bytes unread, or so, is reset.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()


class BreakableWorkspace(ObjectWorkspace):
    """A workspace whose writes meet fault points: before, with half of a file on the disk, after."""

    def __init__(self, base: Any, fault: Fault) -> None:
        super().__init__(base)
        self._store = _BreakableStore(self._store, fault)


class _BreakableStore:
    def __init__(self, store: Any, fault: Fault) -> None:
        self._real, self._fault = store, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin(self, path: str) -> tuple[str, BinaryIO]:
        self._fault("workspace.before_write")
        temporary, raw = self._real.begin(path)
        return temporary, _HalfWritten(raw, self._fault)  # type: ignore[return-value]

    def publish(self, temporary: str, path: str) -> None:
        self._real.publish(temporary, path)
        self._fault("workspace.after_write")


class _HalfWritten:
    """A file whose every write is met by its fault point when half of the bytes are on the disk."""

    def __init__(self, raw: BinaryIO, fault: Fault) -> None:
        self._raw, self._fault = raw, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def write(self, data: bytes) -> int:
        half = len(data) // 2
        self._raw.write(data[:half])
        self._raw.flush()
        self._fault("workspace.half_written")
        self._raw.write(data[half:])
        return len(data)


def disk_fault(which: str) -> OSError:
    """Return what a full (``full``) or a broken (``broken``) disk raises."""
    number = errno.ENOSPC if which == "full" else errno.EIO
    return OSError(number, os.strerror(number))


class ChaosSink:
    """Lands in a table without any unique key, so that landing twice would show.

    As :class:`~airflow_batch_llm.sinks.SqlSink`: what a later revision has landed stands.

    :param path: SQLite file.
    """

    each_round = False
    deletes_withdrawn = False

    def __init__(self, path: Path, fault: Fault) -> None:
        self._table, self._fault = LandingTable(path), fault

    def check(self) -> None:
        """There is nothing to check."""

    def land(self, answers: Iterable[Answer], info: LandingInfo) -> int:
        """Replace what the job landed before, in one transaction."""
        return self._table.replace(
            info.job_id, info.revision, list(answers), lambda: self._fault("sink.half_landed")
        )
