"""``batch-llm events JOB``: what happened to a job, in order, and who did it."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

import msgspec

from airflow_batch_llm.cli.exits import exit_status
from airflow_batch_llm.cli.parsers import add_command
from airflow_batch_llm.cli.printing import code_only, print_json, print_table, when
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.model import MACHINE, Event

#: Where reasons of the machine's events hold words of the provider: its codes and states, which are short
#: tokens unless it writes a text there.
_PROVIDER_SAID = {
    "ended": re.compile(r"status (?P<said>.*)", re.DOTALL),
    "submitting_left": re.compile(r"(?P<said>.*)", re.DOTALL),
    "put_back": re.compile(r"(?P<said>.*) \(file .*, provider batch .*\)", re.DOTALL),
    "halted": re.compile(r"BLLM-\d+: batch \S+: (?P<said>.*)", re.DOTALL),
    "upload_refused": re.compile(r"(?P<said>.*)", re.DOTALL),
    "lines_refused": re.compile(r"(?P<said>.*)", re.DOTALL),
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``events`` to the command line."""
    return add_command(subparsers, "events", "list what happened to a job, in order")


def run(args: argparse.Namespace) -> int:
    """Print the events and return the exit status."""
    return exit_status(_list, args)


def _list(args: argparse.Namespace) -> None:
    ledger = open_target(args)
    events = [_without_texts(event) for event in ledger.events(find_job(ledger, args.job).job_id)]
    if args.json:
        print_json(msgspec.to_builtins(events))
        return
    rows = [(when(e.time), e.actor, e.action, e.batch_id, e.reason) for e in events]
    print_table(("TIME", "ACTOR", "ACTION", "BATCH", "REASON"), rows)


def _without_texts(event: Event) -> Event:
    """Return the event without what the provider may have quoted of a prompt."""
    pattern = _PROVIDER_SAID.get(event.action) if event.actor == MACHINE else None
    found = pattern.fullmatch(event.reason) if pattern is not None else None
    if found is None:
        return event
    start, end = found.span("said")
    said = code_only(found["said"]) or ""
    return replace(event, reason=event.reason[:start] + said + event.reason[end:])
