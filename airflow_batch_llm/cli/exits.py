"""Exit statuses of the commands on jobs, and how errors become them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from airflow_batch_llm.core.by_hand import Declined, NotYet
from airflow_batch_llm.exceptions import BatchLLMError, LedgerSchemaError

OK, FAILED, NEEDS_MIGRATION, NOT_FOUND, AMBIGUOUS, WRONG_STATE, UNFINISHED = 0, 1, 3, 4, 5, 6, 7

_MEANINGS = {
    OK: "done",
    FAILED: "the ledger, the workspace, a connection or its provider cannot be reached or used",
    2: "wrong arguments",
    NEEDS_MIGRATION: "the ledger's tables are missing or of another version",
    NOT_FOUND: "no such job, batch, letter or hold",
    AMBIGUOUS: "several jobs begin like that",
    WRONG_STATE: "not possible as things stand; nothing was changed",
    UNFINISHED: "done in part; run it again",
}


class Stopped(Exception):
    """A command ends here.

    :param status: exit status.
    :param message: what is told on standard error.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def epilog(*statuses: int) -> str:
    """Return the end of a command's help: its exit statuses, those of every command included."""
    known = sorted({OK, FAILED, 2, NEEDS_MIGRATION, *statuses})
    return "exit status: " + "; ".join(f"{status} {_MEANINGS[status]}" for status in known)


def exit_status(work: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Run a command; tell its error in one line and return the exit status."""
    try:
        work(args)
    except Stopped as e:
        print(f"batch-llm: {e}", file=sys.stderr)
        return e.status
    except Declined as e:
        print(f"batch-llm: {e}", file=sys.stderr)
        return WRONG_STATE
    except NotYet as e:
        print(f"batch-llm: {e}", file=sys.stderr)
        return UNFINISHED
    except LedgerSchemaError as e:
        print(f"batch-llm: {e}", file=sys.stderr)
        return NEEDS_MIGRATION
    except BatchLLMError as e:
        print(f"batch-llm: {e}", file=sys.stderr)
        return FAILED
    return OK
