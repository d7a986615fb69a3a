"""Who answers in the demo, and which DAG asks it."""

from __future__ import annotations

import csv
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

#: The kind of every ticket of the demo's night as a person sees it: ``id,kind``.
KNOWN_KINDS = Path(__file__).with_name("known_kinds.csv")


@dataclass(frozen=True)
class DemoModel:
    """One of them.

    :param name: as the batch server's list of models has it.
    :param about: what its labels are worth.
    :param submit_task: the submitting task of the DAG.
    :param table: where the DAG's answers land.
    :param arguments: of ``batch-llm serve``.
    :param start_timeout: seconds that the server may take to start.
    :param run_timeout: seconds that one DAG run may take.
    """

    name: str
    about: str
    dag_id: str
    submit_task: str
    table: str
    arguments: tuple[str, ...] = ()
    start_timeout: float = 30.0
    run_timeout: float = 240.0


MODELS = {
    "simulated": DemoModel(
        "simulated",
        "no model at all: its labels mean nothing",
        "nightly_ticket_labels",
        "label_tickets.submit",
        "ticket_labels",
    ),
    "local": DemoModel(
        "gemma3-270m",
        "a very small real model, by llama.cpp on this machine",
        "few_shot_ticket_kinds",
        "sort_tickets.submit",
        "ticket_kinds",
        arguments=("--local-model", "--local-context", "2048"),
        start_timeout=180.0,
        run_timeout=900.0,
    ),
}


@dataclass(frozen=True)
class Agreement:
    """How many answers are what a person says.

    :param compared: tickets that have both.
    :param commonest: the kind that the person gives most of them, and how many have it.
    """

    compared: int
    agreed: int
    commonest: tuple[str, int]

    def __str__(self) -> str:
        kind, count = self.commonest
        return f"{self.agreed} of {self.compared} (saying {kind!r} of every ticket would agree with {count})"


def known_kinds() -> dict[str, str]:
    """Return ticket -> kind as a person sees it."""
    with KNOWN_KINDS.open(newline="", encoding="utf-8") as file:
        return {row["id"]: row["kind"] for row in csv.DictReader(file)}


def agreement(warehouse: Path) -> Agreement | None:
    """Compare table ``ticket_kinds`` with the known kinds; None where no ticket has both."""
    with closing(sqlite3.connect(f"file:{warehouse}?mode=ro", uri=True, timeout=30)) as connection:
        said = dict(connection.execute("SELECT id, kind FROM ticket_kinds").fetchall())
    known = {ticket: kind for ticket, kind in known_kinds().items() if ticket in said}
    if not known:
        return None
    agreed = sum(said[ticket] == kind for ticket, kind in known.items())
    return Agreement(len(known), agreed, Counter(known.values()).most_common(1)[0])
