"""Files that DAG authors name: a local path or any address that Airflow's object storage reaches."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from airflow_batch_llm.exceptions import SourceError

_WILDCARDS = frozenset("*?[")
#: What Spark, Hive and their like put before the names of files and folders that hold no rows.
_HIDDEN = ("_", ".")


@contextmanager
def open_location(path: str, conn_id: str | None = None, **options: Any) -> Iterator[BinaryIO]:
    """Open a file for reading as it is.

    :param path: a local path, or an address with a scheme (``s3://bucket/key``).
    :param conn_id: the Airflow connection of the storage, None for its default.
    :param options: what the file system of an address is told about the reading, if it knows of it.
    """
    with ExitStack() as stack:
        if _is_local(path, conn_id):
            yield stack.enter_context(Path(path).open("rb"))
        else:
            from airflow.sdk import ObjectStoragePath

            location = ObjectStoragePath(path, conn_id=conn_id)
            try:
                opened = location.open("rb", **options)
            except TypeError:
                opened = location.open("rb")
            yield cast("BinaryIO", stack.enter_context(opened))


@contextmanager
def open_input(path: str, conn_id: str | None = None) -> Iterator[BinaryIO]:
    """Open a source file for reading, unpacked where its name ends in ``.gz``.

    :raises SourceError: there is no such file, it may not be read, or its compression is broken. Other
        storage errors pass through: they may go away.
    """
    try:
        with readable(path), open_location(path, conn_id) as file:
            if not path.endswith(".gz"):
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("BinaryIO", unpacked)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise SourceError(f"{path} is not a whole gzip file") from None


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn what a storage says about a path that cannot be read into an error of this package.

    :raises SourceError: there is no such file, or it may not be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise SourceError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise SourceError(f"{path} is a folder, not a file") from None
    except PermissionError:
        raise SourceError(f"{path} may not be read") from None


def has_wildcards(path: str) -> bool:
    """Say whether a path may stand for several files."""
    return not _WILDCARDS.isdisjoint(path)


def matching_files(pattern: str, conn_id: str | None = None) -> list[str]:
    """Return the files that a pattern stands for, sorted by name.

    A pattern that is the name of a file stands for that file. ``*`` and ``?`` stay within a folder, ``**``
    reaches into all folders below. Folders are left out, and so is what begins with ``_`` or ``.``
    (``_SUCCESS``, ``.part-0.crc``) where the pattern does not say so.

    :raises SourceError: the storage may not be read.
    """
    with readable(pattern):
        if _is_local(pattern, conn_id):
            return _matching_local(pattern)
        from airflow.sdk import ObjectStoragePath

        if "://" not in pattern:
            pattern = os.path.abspath(pattern)
        location = ObjectStoragePath(pattern, conn_id=conn_id)
        path = str(location.path)
        # The address keeps what stands before the file system's own path: scheme, connection.
        before = pattern.removesuffix(path.lstrip("/"))
        return [before + name.lstrip("/") for name in _matching(location.fs, path)]


def _matching_local(pattern: str) -> list[str]:
    from fsspec.implementations.local import LocalFileSystem

    pattern = os.path.abspath(pattern)
    # Looked at first: the file system would take a folder that may not be listed for an empty one.
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(_fixed_folder(pattern)):
        pass
    return _matching(LocalFileSystem(), pattern)


def _matching(files: Any, pattern: str) -> list[str]:
    # A listing that this process made before may be older than the files.
    files.invalidate_cache()
    if files.isfile(pattern):
        return [pattern]
    found = files.glob(pattern, detail=True)
    return sorted(
        name
        for name, info in found.items()
        if info.get("type") != "directory" and not name.endswith("/") and not _is_hidden(name, pattern)
    )


def _is_hidden(name: str, pattern: str) -> bool:
    wanted = pattern.split("/")
    fixed = len(_fixed_folder(pattern).split("/"))
    return any(
        part.startswith(_HIDDEN)
        and part not in wanted
        and not any(other.startswith(part[0]) for other in wanted[fixed:])
        for part in name.split("/")[fixed:]
    )


def _fixed_folder(pattern: str) -> str:
    """Return the folder in which looking for a pattern begins."""
    parts = pattern.split("/")
    return "/".join(parts[: next(place for place, part in enumerate(parts) if has_wildcards(part))])


def _is_local(path: str, conn_id: str | None) -> bool:
    return "://" not in path and conn_id is None
