"""Which ledger a command works on, and which job in it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.cli.exits import AMBIGUOUS, NOT_FOUND, Stopped
from airflow_batch_llm.cli.printing import logs_apart
from airflow_batch_llm.core.model import Batch, Job
from airflow_batch_llm.exceptions import ConfigurationError, LedgerSchemaError
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import check
from airflow_batch_llm.storage.urls import database_url

if TYPE_CHECKING:
    from sqlalchemy import URL

#: Fewest characters of a job id that name it.
SHORTEST_PREFIX = 6


def add_target(parser: argparse.ArgumentParser, conn: str = "--conn") -> None:
    """Add ``--url``, ``--conn`` and ``--schema``.

    :param conn: the option's name where ``--conn`` means something else.
    """
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--url", help="database URL with its driver, such as postgresql+psycopg://user@host/name"
    )
    target.add_argument(
        conn,
        dest="conn",
        metavar="CONN_ID",
        help="Airflow connection of the ledger (default: [batch_llm] ledger_conn_id, else the SQLite file "
        "in AIRFLOW_HOME)",
    )
    parser.add_argument("--schema", help="schema that holds the tables (not with SQLite)")


def add_job(parser: argparse._ActionsContainer, **how: Any) -> None:
    """Add ``JOB``."""
    parser.add_argument(
        "job",
        metavar="JOB",
        help=f"id of the job as batch-llm jobs prints it, or its first {SHORTEST_PREFIX} or more characters",
        **how,
    )


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add ``BATCH``."""
    parser.add_argument(
        "batch",
        metavar="BATCH",
        help="id of a batch of the job as show prints it, or what follows the job's id",
    )


def find_target(args: argparse.Namespace, *, make: bool) -> tuple[str | URL, str | None]:
    """Return the ledger that the arguments name, or else the one that tasks use.

    :param make: make the folder of the default SQLite file; without it a file that is not there is told.
    :raises ConfigurationError: the connection cannot be used.
    :raises LedgerSchemaError: there is no such file.
    """
    if args.url is not None:
        return args.url, args.schema
    with logs_apart():
        return _configured_target(args, make=make)


def _configured_target(args: argparse.Namespace, *, make: bool) -> tuple[str | URL, str | None]:
    from airflow_batch_llm.hooks.settings import read_settings
    from airflow_batch_llm.hooks.state import default_ledger_path, ledger_url

    conn_id = args.conn or read_settings().ledger_conn_id
    if not conn_id:
        return _default_file(default_ledger_path(), make=make), args.schema
    url, schema = ledger_url(conn_id)
    return url, args.schema or schema


def open_target(args: argparse.Namespace) -> SqlLedger:
    """Open the ledger and see that its tables fit; makes and migrates nothing.

    :raises BatchLLMError: it cannot be opened.
    """
    url, schema = find_target(args, make=False)
    ledger = SqlLedger(url, schema=schema)
    check(ledger.engine, schema)
    return ledger


def find_job(ledger: SqlLedger, wanted: str) -> Job:
    """Return the job of this id, or of this beginning of an id.

    :raises Stopped: none, or several.
    """
    wanted = wanted.lower()
    found = ledger.jobs(prefix=wanted, limit=2) if len(wanted) >= SHORTEST_PREFIX else []
    if not found:
        short = f"; at least {SHORTEST_PREFIX} characters are needed" if len(wanted) < SHORTEST_PREFIX else ""
        raise Stopped(NOT_FOUND, f"no job {wanted!r} in this ledger{short}")
    if len(found) > 1:
        raise Stopped(AMBIGUOUS, f"several jobs begin with {wanted!r}; give more of the id")
    return found[0]


def find_batch(ledger: SqlLedger, job: Job, wanted: str) -> Batch:
    """Return the batch of the job. :raises Stopped: there is none."""
    for batch in ledger.batches(job.job_id):
        if wanted in (batch.batch_id, batch.batch_id.removeprefix(f"{job.job_id}-")):
            return batch
    raise Stopped(NOT_FOUND, f"job {job.job_id} has no batch {wanted!r}; batch-llm show lists them")


def _default_file(path: Path, *, make: bool) -> URL:
    if make:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigurationError(
                f"the ledger's folder {path.parent} cannot be made: {e.strerror}"
            ) from None
    elif not path.exists():
        raise LedgerSchemaError(f"The ledger ({path}) is not there yet; it is made by the first task.")
    return database_url("sqlite", path=str(path))
