"""Rows of a plan that need no request of their own: answered by an earlier job, or like another row.

Both files are there only where they hold a line. Their sizes and digests stand in the plan's ``job.json``,
the digests in the plan's digest as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import msgspec

from airflow_batch_llm.core.files import encode_line, plan_path
from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.ports import WholeFile, Workspace
from airflow_batch_llm.core.tools import read_description

DUPLICATES, REUSED = "duplicates.jsonl", "reused.jsonl"

T = TypeVar("T")


class Duplicate(msgspec.Struct, omit_defaults=True):
    """One line of ``duplicates.jsonl``: a row whose request is the same as another's, which answers both.

    ``of`` is the wire id of that other request. It may have left the source; it is never itself a duplicate.
    """

    custom_id: str
    wire_id: str
    of: str
    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}


class Reused(msgspec.Struct, omit_defaults=True):
    """One line of ``reused.jsonl``: an answer that an earlier job bought, kept whole.

    ``usage`` is what that job was charged. ``job`` and ``batch`` say where it was read, ``answered_at`` when
    it was answered (seconds since the epoch).
    """

    custom_id: str
    wire_id: str
    output: Any
    model: str
    usage: dict[str, int]
    finish_reason: str
    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}
    hash: str = ""
    twin: str = ""
    job: str = ""
    batch: str = ""
    answered_at: float = 0.0


class ReusedIds(msgspec.Struct):
    """The part of a reused answer that says whose it is; the answer itself can be large."""

    wire_id: str
    custom_id: str = ""
    hash: str = ""
    twin: str = ""


_duplicates = msgspec.json.Decoder(Duplicate)
_reused = msgspec.json.Decoder(Reused)
_reused_ids = msgspec.json.Decoder(ReusedIds)


class PlanFile:
    """A further file of a plan on its way; there is none until its first line.

    :param stack: closes it.
    """

    def __init__(self, workspace: Workspace, root: str, plan_id: str, name: str, stack: ExitStack) -> None:
        self._workspace, self._path, self._stack = workspace, f"{plan_path(root, plan_id)}/{name}", stack
        self._file: WholeFile | None = None
        self._lines = 0

    def write(self, line: msgspec.Struct) -> None:
        """Append a line."""
        self.write_encoded(encode_line(line))

    def write_encoded(self, line: bytes) -> None:
        """Append a line that is encoded, with its 0x0A."""
        if self._file is None:
            self._file = self._stack.enter_context(self._workspace.writer(self._path))
        self._file.write(line)
        self._lines += 1

    def facts(self) -> dict[str, Any] | None:
        """Return what the plan says of it; None where there is none."""
        if self._file is None:
            return None
        return {"lines": self._lines, "bytes": self._file.size, "sha256": self._file.sha256}


def further_files(workspace: Workspace, root: str, plan_id: str) -> dict[str, dict[str, Any]]:
    """Return name -> lines, bytes, sha256 of the files that a pinned plan has beside its requests."""
    files: dict[str, dict[str, Any]] = read_description(workspace, root, plan_id).get("files", {})
    return files


def feed_digests(digest: Any, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the files a part of the plan's digest."""
    for name in sorted(files):
        digest.update(f"{name} {files[name]['sha256']}".encode())


def iter_duplicates(workspace: Workspace, root: str, plan_id: str) -> Iterator[Duplicate]:
    """Yield the rows of a plan that share another's answer, checked against the plan's digest."""
    return _iter_file(_duplicates, workspace, root, plan_id, DUPLICATES)


def iter_reused(workspace: Workspace, root: str, plan_id: str) -> Iterator[Reused]:
    """Yield the answers of earlier jobs that a plan holds, checked against the plan's digest."""
    return _iter_file(_reused, workspace, root, plan_id, REUSED)


def iter_reused_ids(workspace: Workspace, root: str, plan_id: str) -> Iterator[tuple[ReusedIds, bytes]]:
    """Yield whose they are, with their lines as they stand."""
    for line in _iter_lines(workspace, root, plan_id, REUSED):
        yield _reused_ids.decode(line), line


def decode_reused(line: bytes) -> Reused:
    """Decode one line."""
    return _reused.decode(line)


def _iter_file(
    decoder: msgspec.json.Decoder[T], workspace: Workspace, root: str, plan_id: str, name: str
) -> Iterator[T]:
    for line in _iter_lines(workspace, root, plan_id, name):
        yield decoder.decode(line)


def _iter_lines(workspace: Workspace, root: str, plan_id: str, name: str) -> Iterator[bytes]:
    facts = further_files(workspace, root, plan_id).get(name)
    if facts is None:
        return
    path = f"{plan_path(root, plan_id)}/{name}"
    with workspace.open_checked(path, facts["bytes"], facts["sha256"]) as file:
        for _, line in iter_lines(read_chunks(file)):
            yield line
