"""Lines that are too many for memory, in a local temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType


class Spool:
    """Lines in the order in which they were written, each found again by its place."""

    def __init__(self) -> None:
        # Closed where the block around a spool ends.
        self._file = tempfile.TemporaryFile(prefix="batch-llm-spool-", buffering=1 << 16)  # noqa: SIM115
        self._end = 0
        self._at_end = True

    def add(self, line: bytes) -> int:
        """Append a line, with its 0x0A, and return its place."""
        place = self._end
        if not self._at_end:
            self._file.seek(place)
            self._at_end = True
        self._file.write(line)
        self._end += len(line)
        return place

    def read(self, place: int) -> bytes:
        """Return the line at a place."""
        self._at_end = False
        self._file.seek(place)
        line: bytes = self._file.readline()
        return line

    def __iter__(self) -> Iterator[bytes]:
        """Yield every line, in order. Lines may be read meanwhile, but not added."""
        place = 0
        while place < self._end:
            line = self.read(place)
            yield line
            place += len(line)

    def clear(self) -> None:
        """Forget every line."""
        self._file.seek(0)
        self._file.truncate()
        self._end, self._at_end = 0, True

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
