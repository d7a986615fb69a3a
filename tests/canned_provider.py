"""A provider inside of the test's process: takes any batch and ends it at once with the files it is told.

Stands before the real backend of a bench, whose decoder and encoder are used as they are; nothing goes over
HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, ResultFile
from airflow_batch_llm.core.ports import CreateOrder
from tests.replay_provider import answer, as_lines

#: Where a bench's own backend would look for its server; nobody asks it.
NOWHERE: Any = SimpleNamespace(url_of=lambda protocol: "http://127.0.0.1:9/v1", api_key="k")

Files = Sequence[tuple[str, bytes]]


@dataclass
class CannedProvider:
    """Keeps its batches for all processes of a bench.

    :param script: what each batch in turn brings: wire ids -> (kind, bytes) of its files. Batches after
        the last are answered in full.
    """

    script: Iterable[Callable[[list[str]], Files]] = ()
    sent: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._script = iter(self.script)
        self._uploads: dict[str, list[str]] = {}
        self._batches: dict[str, tuple[RemoteBatch, dict[str, bytes]]] = {}
        self._backend: Any = None

    def around(self, backend: Any) -> CannedProvider:
        """Stand before the real backend of one process."""
        self._backend = backend
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def upload(self, local: Path, name: str) -> str:
        file_id = f"file-{len(self._uploads)}"
        self._uploads[file_id] = [json.loads(line)["custom_id"] for line in local.read_bytes().splitlines()]
        return file_id

    async def create(self, order: CreateOrder) -> RemoteBatch:
        wire_ids = self._uploads[order.input_file_id]
        self.sent.append(wire_ids)
        made = next(self._script, full)(wire_ids)
        number = f"batch-{len(self._batches)}"
        names = [f"{number}-{place}" for place in range(len(made))]
        found = tuple(ResultFile(kind, name) for name, (kind, _) in zip(names, made, strict=True))
        remote = RemoteBatch(number, RemoteStatus.DONE, "completed", found, metadata=dict(order.metadata))
        self._batches[number] = remote, dict(zip(names, [data for _, data in made], strict=True))
        return remote

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        return self._batches[batch_id][0]

    async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
        local.write_bytes(self._batches[batch.id][1][file.file_id])

    async def list_recent(self, **bounds: Any) -> list[RemoteBatch]:
        return [remote for remote, _ in self._batches.values()]

    async def delete_file(self, file_id: str) -> None:
        return


def full(wire_ids: list[str]) -> Files:
    """Answer every request."""
    return [("output", as_lines(*map(answer, wire_ids)))]
