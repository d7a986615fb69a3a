"""Files that DAG authors name: a local path or any address that Airflow's object storage reaches."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from airflow_batch_llm.exceptions import SourceError


@contextmanager
def open_location(path: str, conn_id: str | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading as it is.

    :param path: a local path, or an address with a scheme (``s3://bucket/key``).
    :param conn_id: the Airflow connection of the storage, None for its default.
    """
    with ExitStack() as stack:
        if "://" not in path and conn_id is None:
            yield stack.enter_context(Path(path).open("rb"))
        else:
            from airflow.sdk import ObjectStoragePath

            yield cast("BinaryIO", stack.enter_context(ObjectStoragePath(path, conn_id=conn_id).open("rb")))


@contextmanager
def open_input(path: str, conn_id: str | None = None) -> Iterator[BinaryIO]:
    """Open a source file for reading, unpacked where its name ends in ``.gz``.

    :raises SourceError: there is no such file, it may not be read, or its compression is broken. Other
        storage errors pass through: they may go away.
    """
    try:
        with open_location(path, conn_id) as file:
            if not path.endswith(".gz"):
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("BinaryIO", unpacked)
    except FileNotFoundError:
        raise SourceError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise SourceError(f"{path} is a folder, not a file") from None
    except PermissionError:
        raise SourceError(f"{path} may not be read") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise SourceError(f"{path} is not a whole gzip file") from None
