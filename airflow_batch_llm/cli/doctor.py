"""``batch-llm doctor --conn X``: is everything there that a job needs, and if not, what to do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.cli.doctor_checks import (
    Finding,
    State,
    check_clock,
    check_connection,
    check_ledger,
    check_waiting,
    check_workspace,
)
from airflow_batch_llm.cli.doctor_live import check_live
from airflow_batch_llm.cli.exits import FAILED, OK
from airflow_batch_llm.cli.printing import add_json, logs_apart, plain, positive, print_json
from airflow_batch_llm.cli.target import add_target

if TYPE_CHECKING:
    from airflow_batch_llm.storage.ledger import SqlLedger
    from airflow_batch_llm.storage.workspace import ObjectWorkspace

DESCRIPTION = (
    "Check the ledger, the workspace, the connection and its key, the clocks, and what waits for a person. "
    "With --live also send three small requests as a job of their own (DAG id `doctor`), wait for the "
    "answers, and cancel a second one. Never prints a key, a prompt or an answer."
)


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``doctor`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="check everything that a job needs",
        description=DESCRIPTION,
        epilog="exit status: 0 no fault was found; 1 there are faults; 2 wrong arguments",
    )
    parser.add_argument(
        "--conn", dest="llm_conn", required=True, metavar="CONN_ID", help="Airflow connection of the provider"
    )
    live = parser.add_argument_group("live")
    live.add_argument("--live", action="store_true", help="send five small requests; they are paid for")
    live.add_argument(
        "--max-usd", type=_usd, metavar="USD", help="what they may cost; needed where no price is known"
    )
    live.add_argument("--model", help="ask this model (default: the connection's)")
    live.add_argument(
        "--wait",
        type=positive,
        default=60,
        metavar="MINUTES",
        help="bound for the answers; what runs longer is cancelled (default: %(default)s)",
    )
    add_json(parser)
    add_target(parser, "--ledger-conn")
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, print what was found and return the exit status."""
    with logs_apart():
        findings = list(_findings(args))
    if args.json:
        print_json([finding.facts() for finding in findings])
    else:
        for finding in findings:
            print(f"{finding.state.value:<8}{finding.check:<13}{plain(finding.found)}")
            if finding.do:
                print(f"{'':<21}{plain(finding.do)}")
    return FAILED if any(finding.state is State.FAULT for finding in findings) else OK


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    ledger: SqlLedger | None
    workspace: ObjectWorkspace | None
    found, ledger = check_ledger(args)
    yield found
    found, workspace = check_workspace(ledger)
    yield found
    account, key, *more = check_connection(args.llm_conn)
    yield from (account, key, *more)
    if ledger is None:
        for check in ("clock", "waiting"):
            yield Finding(check, State.SKIPPED, "there is no ledger to look into")
    else:
        yield check_clock(ledger)
        yield from check_waiting(ledger, args.llm_conn)
    if not args.live:
        return
    if ledger is None or workspace is None or key.state is not State.OK:
        yield Finding("live", State.SKIPPED, "nothing is sent before the faults above are mended")
    else:
        yield from check_live(ledger, workspace, args)


def _usd(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value
