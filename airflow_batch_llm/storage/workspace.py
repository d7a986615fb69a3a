"""Whole files under one folder of a local disk or an object store.

A file appears whole or not at all, so a reader never has to ask whether its writer has finished. The
base is handed in by the caller: a ``pathlib.Path``, a ``UPath`` or Airflow's ``ObjectStoragePath``.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import quote

from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.core.ports import FileInfo
from airflow_batch_llm.exceptions import WorkspaceError

#: Longest part of a path that stands as it is, in bytes. File systems stop at 255.
MAX_PART = 200
_KEPT = 120
_BLOCK = 1 << 20
_TEMPORARY = ".batch-llm-"
_LOCAL_PROTOCOLS = frozenset({"", "file", "local"})


class ObjectWorkspace:
    """The ``Workspace`` of ``core/ports.py``.

    :param base: folder that holds everything; made when the first file is written.
    """

    def __init__(self, base: Any) -> None:
        self._store = _store_of(base)
        self._address = str(base).rstrip("/")

    def job_root(self, key: JobKey) -> str:
        """Return the job's folder: ``{namespace}/{dag}/{run}/{task}/{map_index}``, each part quoted."""
        return "/".join(quote_part(str(part)) for part in key.parts)

    def url(self, path: str) -> str:
        """Return the full address of a file or folder, for people."""
        return f"{self._address}/{_checked(path)}"

    @contextmanager
    def writer(self, path: str) -> Iterator[WholeFileWriter]:
        """Open a file for writing; it appears when the block ends without an exception.

        :raises WorkspaceError: the file cannot be written. Nothing is left behind.
        """
        path = _checked(path)
        with _as_workspace_error("written", path):
            temporary, raw = self._store.begin(path)
        try:
            file = WholeFileWriter(raw, path)
            yield file
            with _as_workspace_error("written", path):
                raw.close()
                self._store.publish(temporary, path)
        finally:
            with suppress(OSError):  # a full disk makes closing fail, too; the first error is the one to tell
                raw.close()
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def put(self, path: str, data: bytes) -> FileInfo:
        """Write a small file whole."""
        with self.writer(path) as file:
            file.write(data)
        return FileInfo(size=file.size, sha256=file.sha256)

    def put_file(self, path: str, local: Path) -> FileInfo:
        """Copy a local file to ``path``, whole."""
        with open(local, "rb") as source, self.writer(path) as file:
            while block := source.read(_BLOCK):
                file.write(block)
        return FileInfo(size=file.size, sha256=file.sha256)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open for reading. :raises WorkspaceError: there is no such file."""
        file, _ = self._open(path)
        with file:
            yield file

    @contextmanager
    def open_checked(self, path: str, size: int, sha256: str) -> Iterator[BinaryIO]:
        """Open for reading a file whose size and digest are known. It cannot seek.

        :raises WorkspaceError: there is no such file or its size differs (on opening), or its digest
            differs (by the read that reaches the end). Who stops reading before the end is told nothing.
        """
        file, found = self._open(path)
        with file:
            if found != size:
                raise WorkspaceError(f"{self.url(path)} has {found} bytes; the ledger says {size}.")
            check = _DigestCheck(file, size, sha256, self.url(path))
            yield cast(BinaryIO, io.BufferedReader(check, _BLOCK))

    def exists(self, path: str) -> bool:
        """Say whether the file exists."""
        return self._store.size(_checked(path)) is not None

    def leftovers(self, path: str) -> list[str]:
        """Return the half-written files below a folder that processes which died have left.

        One that is being written at this moment looks the same. Object stores have none.
        """
        return sorted(filter(_is_temporary, self._store.files(_checked(path))))

    def list(self, path: str) -> list[str]:
        """Return the paths of all files below a folder, sorted; empty where there is none."""
        found = self._store.files(_checked(path))
        return sorted(file for file in found if not _is_temporary(file))

    def delete_tree(self, path: str) -> None:
        """Delete a file, or a folder and all below; nothing happens where there is neither."""
        self._store.delete_tree(_checked(path))

    def _open(self, path: str) -> tuple[BinaryIO, int]:
        path = _checked(path)
        with _as_workspace_error("read", path):
            size = self._store.size(path)
            if size is None:
                raise WorkspaceError(f"{self.url(path)} does not exist.")
            return self._store.open(path), size


def _is_temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_TEMPORARY)


def quote_part(part: str) -> str:
    """Quote any text into one path part: deterministic, and different texts stay different.

    Letters, digits, ``_``, ``-`` and single inner dots stand for themselves, all else is percent-quoted.
    What would be too long for a file name is cut and ends in ``~`` and a digest; ``~`` occurs nowhere else.
    """
    quoted = quote(part, safe="").replace("~", "%7E")
    quoted = re.sub(r"^\.|(?<=\.)\.", "%2E", quoted)
    if not quoted:
        return "~"
    if len(quoted) <= MAX_PART:
        return quoted
    return f"{quoted[:_KEPT]}~{hashlib.sha256(part.encode('utf-8')).hexdigest()}"


class WholeFileWriter:
    """A file being written: counts and digests what goes through it."""

    def __init__(self, raw: BinaryIO, path: str) -> None:
        self._raw = raw
        self._path = path
        self._digest = hashlib.sha256()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def sha256(self) -> str:
        """Digest of what was written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:
        """Append ``data`` and return its length. :raises WorkspaceError: the disk is full, say."""
        with _as_workspace_error("written", self._path):
            self._raw.write(data)
        self._digest.update(data)
        self._size += len(data)
        return len(data)


class _Store(Protocol):
    """Where the files are. Paths have been checked."""

    def begin(self, path: str) -> tuple[str, BinaryIO]: ...
    def publish(self, temporary: str, path: str) -> None: ...
    def open(self, path: str) -> BinaryIO: ...
    def size(self, path: str) -> int | None: ...
    def files(self, path: str) -> list[str]: ...
    def delete_tree(self, path: str) -> None: ...


class _LocalStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    def begin(self, path: str) -> tuple[str, BinaryIO]:
        folder = (self._root / path).parent
        _make_folders(folder)
        # Not tempfile: its files are readable by their owner only, and stay so after os.replace.
        temporary = str(folder / f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        return temporary, os.fdopen(handle, "wb", _BLOCK)

    def publish(self, temporary: str, path: str) -> None:
        target = self._root / path
        _sync(Path(temporary))
        os.replace(temporary, target)
        _sync(target.parent)

    def open(self, path: str) -> BinaryIO:
        return open(self._root / path, "rb")

    def size(self, path: str) -> int | None:
        target = self._root / path
        return target.stat().st_size if target.is_file() else None

    def files(self, path: str) -> list[str]:
        return [
            Path(folder, name).relative_to(self._root).as_posix()
            for folder, _, names in os.walk(self._root / path)
            for name in names
        ]

    def delete_tree(self, path: str) -> None:
        target = self._root / path
        with suppress(FileNotFoundError):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()


class _RemoteStore:
    """An fsspec file system. One put makes one object, whole, in every object store.

    Listings are read anew each time: other processes write the same folders.
    """

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")

    def begin(self, path: str) -> tuple[str, BinaryIO]:
        handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY)
        return temporary, os.fdopen(handle, "wb", _BLOCK)

    def publish(self, temporary: str, path: str) -> None:
        target = self._full(path)
        try:
            self._fs.put_file(temporary, target)
        except FileNotFoundError:  # a file system with real folders (sftp, hdfs)
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.put_file(temporary, target)

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(self._full(path), "rb"))

    def size(self, path: str) -> int | None:
        # Not fs.isfile(): it answers "no" to every failure, a broken network included.
        self._fs.invalidate_cache(self._fs._parent(self._full(path)))
        try:
            info = self._fs.info(self._full(path))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def files(self, path: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._full(path))
        except FileNotFoundError:
            return []
        start = len(self._fs._strip_protocol(self._root).rstrip("/")) + 1
        return [file[start:] for file in found]

    def delete_tree(self, path: str) -> None:
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.rm(self._full(path), recursive=True)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"


class _DigestCheck(io.RawIOBase):
    """Reads a file and compares its digest when the last byte has come, before handing that out."""

    def __init__(self, file: BinaryIO, size: int, sha256: str, url: str) -> None:
        self._file = file
        self._left = size
        self._expected = sha256
        self._digest = hashlib.sha256()
        self._url = url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._file.read(len(view))
        self._digest.update(data)
        self._left -= len(data)
        ended = self._left == 0 or not data
        if self._left < 0 or (ended and (self._left or self._digest.hexdigest() != self._expected)):
            raise WorkspaceError(f"{self._url} is not what the ledger says it is: its SHA-256 differs.")
        view[: len(data)] = data
        return len(data)


def _store_of(base: Any) -> _Store:
    if isinstance(base, str | Path):
        return _LocalStore(Path(base))
    if base.protocol in _LOCAL_PROTOCOLS:
        return _LocalStore(Path(base.path))
    return _RemoteStore(base.fs, str(base.path))


def _checked(path: str) -> str:
    """Refuse a path that leaves the base folder."""
    parts = path.rstrip("/").split("/")
    if not all(parts) or "." in parts or ".." in parts or "\\" in path or "\x00" in path:
        raise WorkspaceError(f"{path!r} is not a path inside of the workspace.")
    return "/".join(parts)


@contextmanager
def _as_workspace_error(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise WorkspaceError(f"{path} cannot be {what}: {e.strerror or type(e).__name__}.") from e


def _make_folders(folder: Path) -> None:
    """Make a folder and those above it, each entry as durable as the files will be."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    """Bring a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
