"""``batch-llm db``: make or check the ledger's tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.exceptions import BatchLLMError, ConfigurationError, LedgerSchemaError
from airflow_batch_llm.storage.engine import describe, make_engine
from airflow_batch_llm.storage.migrate import check, migrate
from airflow_batch_llm.storage.urls import database_url

if TYPE_CHECKING:
    from sqlalchemy import URL

#: Exit statuses.
OK, FAILED, NEEDS_MIGRATION = 0, 1, 3


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``db migrate`` and ``db check`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser("db", help="make or check the ledger's tables")
    actions = parser.add_subparsers(dest="db_action", required=True, metavar="ACTION")
    _add_action(actions, "migrate", "make the tables, or bring them to this version")
    _add_action(actions, "check", f"exit with {NEEDS_MIGRATION} where the tables are not of this version")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status: 0, 3 (needs migration) or 1 (any other error)."""
    try:
        url, schema = _target(args)
        engine = make_engine(url)
        if args.db_action == "migrate":
            revision = migrate(engine, schema)
            print(f"The ledger ({describe(engine.url)}) is at schema {revision}.")
        else:
            check(engine, schema)
            print(f"The ledger ({describe(engine.url)}) fits this version.")
    except LedgerSchemaError as e:
        print(e, file=sys.stderr)
        return NEEDS_MIGRATION
    except BatchLLMError as e:
        print(e, file=sys.stderr)
        return FAILED
    return OK


def _add_action(actions: Any, name: str, what: str) -> None:
    parser = actions.add_parser(name, help=what, description=what)
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--url", help="database URL with its driver, such as postgresql+psycopg://user@host/name"
    )
    target.add_argument(
        "--conn",
        metavar="CONN_ID",
        help="Airflow connection of the ledger (default: [batch_llm] ledger_conn_id, else the SQLite file "
        "in AIRFLOW_HOME)",
    )
    parser.add_argument("--schema", help="schema that holds the tables (not with SQLite)")


def _target(args: argparse.Namespace) -> tuple[str | URL, str | None]:
    """Return the ledger that the arguments name, or else the one that tasks use."""
    if args.url is not None:
        return args.url, args.schema
    from airflow_batch_llm.hooks.settings import read_settings
    from airflow_batch_llm.hooks.state import default_ledger_path, ledger_url

    conn_id = args.conn or read_settings().ledger_conn_id
    if not conn_id:
        return _default_file(default_ledger_path(), make=args.db_action == "migrate"), args.schema
    url, schema = ledger_url(conn_id)
    return url, args.schema or schema


def _default_file(path: Path, *, make: bool) -> URL:
    """Return the URL of the SQLite file that serves where no connection is set.

    :param make: make its folder; without it a file that is not there is told, not made.
    """
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
