"""``batch-llm dead-letters discard``: give rows up for good."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from airflow_batch_llm.cli.exits import NOT_FOUND, WRONG_STATE, Stopped
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import plain, print_json
from airflow_batch_llm.cli.steps import clear
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.model import Job, LetterState
from airflow_batch_llm.storage.ledger import SqlLedger


def add_discard(actions: Any) -> None:
    """Add ``dead-letters discard``."""
    parser = add_command(
        actions,
        "discard",
        "give rows up: their open letters count no more",
        decides=True,
        description="Turn open dead letters into discarded ones: they count no more when the run's state is "
        "decided, and no re-drive sends them. All of those named, or none.",
    )
    add_choice(parser, ids=True)


def add_choice(parser: argparse.ArgumentParser, *, ids: bool) -> None:
    """Add which letters are meant: ``--id``, ``--code`` or ``--all``."""
    which = parser.add_mutually_exclusive_group(required=True)
    if ids:
        which.add_argument(
            "--id", action="append", metavar="CUSTOM_ID", help="of this row; may be given several times"
        )
    which.add_argument("--code", action="append", help="with this code; may be given several times")
    which.add_argument("--all", action="store_true", help="every open letter of the job")


def discard(args: argparse.Namespace) -> None:
    """Discard the letters and say how many they were."""
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    chosen = _by_id(ledger, job, args.id) if args.id else _by_code(ledger, job, args.code)
    moved = ledger.move_dead_letters(
        job.job_id,
        chosen,
        to=LetterState.DISCARDED,
        expect=[LetterState.OPEN],
        actor=actor_of(args),
        reason=args.reason,
    )
    if not moved:
        raise Stopped(WRONG_STATE, f"job {job.job_id} has no such open letter")
    then = f"To have the state of the run decided anew, {clear(job, 'dead_letter')}."
    if args.json:
        print_json({"job_id": job.job_id, "discarded": moved, "next": then})
        return
    print(f"{moved} dead letters of job {job.job_id} are discarded. {plain(then)}")


def _by_id(ledger: SqlLedger, job: Job, custom_ids: Iterable[str]) -> list[str]:
    """Return the wire ids of the rows' open letters. :raises Stopped: one has none."""
    found = []
    for custom_id in custom_ids:
        letters = ledger.find_dead_letters(job_id=job.job_id, custom_id=custom_id, states=[LetterState.OPEN])
        if not letters:
            raise Stopped(NOT_FOUND, f"job {job.job_id} has no open dead letter of custom id {custom_id!r}")
        found += [letter.wire_id for letter in letters]
    return found


def _by_code(ledger: SqlLedger, job: Job, codes: list[str] | None) -> Iterable[str]:
    return (
        letter.wire_id
        for letter in ledger.dead_letters(job.job_id, states=[LetterState.OPEN])
        if codes is None or letter.code in codes
    )
