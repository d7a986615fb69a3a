"""Results downloaded as a person does it, beside the machine, and handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_batch_llm.core.by_hand import HandedIn, hand_in
from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.handed_files import HandedFile
from airflow_batch_llm.core.model import Batch
from tests.job_bench import Bench

#: No download ever comes to its end.
CUT = {"calls": [{"on": "download", "fault": "cut", "at": 0.6}]}
#: The provider does not know its batches any more.
FORGOTTEN = {"calls": [{"on": on, "fault": "error", "status": 404} for on in ("retrieve", "download")]}


def download(
    job: Bench, batch: Batch, folder: Path, *, then: dict[str, Any] | None = None
) -> list[HandedFile]:
    """Fetch a batch's result files with the connection of somebody whose downloads work.

    :param then: the scenario that is in force again afterwards.
    """
    job.server.set_scenario({})

    async def fetch() -> list[HandedFile]:
        backend = job.backend(job.server)
        try:
            remote = await backend.retrieve(batch.provider_batch_id)
            files = [HandedFile(file.kind, folder / f"{batch.batch_id}-{file.kind}") for file in remote.files]
            for file, handed in zip(remote.files, files, strict=True):
                await backend.download(remote, file, handed.local)
            return files
        finally:
            await backend.aclose()

    files = asyncio.run(fetch())
    job.server.set_scenario(then or {})
    return files


def hands_in(batch: Batch, files: list[HandedFile], **said: Any) -> Callable[[Engine], Any]:
    """Return what hands files in, for :meth:`Bench.call`."""

    async def act(engine: Engine) -> HandedIn:
        job = engine.tools.ledger.get_job(batch.job_id)
        current = engine.tools.ledger.get_batch(batch.batch_id)
        assert job is not None and current is not None
        who = {"actor": "ann", "reason": "from the console"}
        return await hand_in(engine.tools, job, current, files, **who, **said)

    return act


def keep_lines(file: HandedFile, lines: slice) -> None:
    """Keep some lines of a file only."""
    kept = file.local.read_bytes().splitlines(keepends=True)[lines]
    file.local.write_bytes(b"".join(kept))
