"""Jobs at a real server on a real ledger, and the command that purges them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.integration.cli.conftest import (
    Address,
    address,
    command,
    migrated_postgres,
    migrated_sqlite,
    postgres_server,
    postgres_url,
    provider,
)
from tests.integration.engine.conftest import airflow_db, bench, running_server, server
from tests.integration.storage.conftest import ledger
from tests.job_bench import Bench

__all__ = [
    "Address",
    "address",
    "airflow_db",
    "bench",
    "command",
    "ledger",
    "migrated_postgres",
    "migrated_sqlite",
    "postgres_server",
    "postgres_url",
    "provider",
    "running_server",
    "server",
]

#: Says who purges and why.
WHO = ("--reason", "the contract ended", "--actor", "ann")


def files_with(folder: Path, *texts: str) -> dict[str, set[str]]:
    """Return path -> which of the texts it holds, of all files below a folder, hidden ones included."""
    found: dict[str, set[str]] = {}
    for base, _, names in os.walk(folder):
        for name in names:
            data = Path(base, name).read_bytes()
            held = {text for text in texts if text.encode() in data}
            if held:
                found[Path(base, name).relative_to(folder).as_posix()] = held
    return found


def ledger_texts(job: Bench) -> str:
    """Return everything that the ledger says, as one text."""
    from sqlalchemy import select

    from airflow_batch_llm.storage.engine import reading
    from airflow_batch_llm.storage.schema import metadata

    with reading(job.ledger.engine) as connection:
        return "\n".join(
            str(tuple(row)) for table in metadata.sorted_tables for row in connection.execute(select(table))
        )


def outcomes_of(job: Bench) -> list[tuple[str, str, str]]:
    """Return (wire id, verdict, code) of every outcome that the ledger names."""
    from airflow_batch_llm.core.files import iter_outcomes

    root = job.workspace.job_root(job.key)
    return [
        (outcome.wire_id, outcome.verdict.value, outcome.code)
        for batch in job.batches()
        if batch.outcomes_sha256 is not None
        for outcome in iter_outcomes(job.workspace, root, batch)
    ]


def aged(jobs: Iterable[Bench], days: float) -> None:
    """Let jobs have been made and settled some days earlier."""
    for job in jobs:
        with job.ledger.engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE batch_llm_job SET settled_at = settled_at - {days * 86400}, "
                f"created_at = created_at - {days * 86400} WHERE job_id = '{job.key.job_id}'"
            )


Make = Callable[..., Bench]
