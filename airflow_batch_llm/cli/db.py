"""``batch-llm db``: make or check the ledger's tables."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from airflow_batch_llm.cli.exits import FAILED, NEEDS_MIGRATION, OK
from airflow_batch_llm.cli.target import add_target, find_target
from airflow_batch_llm.exceptions import BatchLLMError, LedgerSchemaError
from airflow_batch_llm.storage.engine import describe, make_engine
from airflow_batch_llm.storage.migrate import check, migrate


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``db migrate`` and ``db check`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser("db", help="make or check the ledger's tables")
    actions = parser.add_subparsers(dest="db_action", required=True, metavar="{migrate,check}")
    _add_action(actions, "migrate", "make the tables, or bring them to this version")
    _add_action(actions, "check", f"exit with {NEEDS_MIGRATION} where the tables are not of this version")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status: 0, 3 (needs migration) or 1 (any other error)."""
    try:
        url, schema = find_target(args, make=args.db_action == "migrate")
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
    add_target(parser)
