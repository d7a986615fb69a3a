"""Who answers in the demo, and how many of the real model's kinds are those of a person."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from example_dags.demo.__main__ import DAGS, INTERVAL
from example_dags.demo.models import MODELS, agreement, known_kinds
from example_dags.demo.warehouse import load_tickets
from example_dags.labels import TicketKind


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    path = tmp_path / "warehouse.db"
    load_tickets(path)
    return path


def land(warehouse: Path, kinds: Sequence[tuple[str, str]]) -> None:
    with closing(sqlite3.connect(warehouse)) as connection, connection:
        connection.execute("CREATE TABLE ticket_kinds (id TEXT PRIMARY KEY, kind TEXT)")
        connection.executemany("INSERT INTO ticket_kinds VALUES (?, ?)", kinds)


def test_every_ticket_of_the_night_has_a_known_kind_that_the_model_may_say(warehouse: Path) -> None:
    with closing(sqlite3.connect(warehouse)) as connection:
        night = connection.execute(
            "SELECT id FROM tickets WHERE updated_at >= ? AND updated_at < ?",
            tuple(moment.isoformat() for moment in INTERVAL),
        ).fetchall()
    known = known_kinds()
    assert {ticket for (ticket,) in night} == known.keys()
    assert set(known.values()) == set(get_args(TicketKind.model_fields["kind"].annotation))


def test_agreement_counts_tickets_that_have_both(warehouse: Path) -> None:
    known = list(known_kinds().items())
    wrong = [(ticket, "praise" if kind != "praise" else "billing") for ticket, kind in known[3:5]]
    land(warehouse, [*known[:3], *wrong, ("T-unknown", "praise")])
    found = agreement(warehouse)
    assert found is not None
    assert (found.compared, found.agreed) == (5, 3)
    assert str(found).startswith("3 of 5 (saying ")


def test_nothing_to_compare_is_told_as_nothing(warehouse: Path) -> None:
    land(warehouse, [])
    assert agreement(warehouse) is None


def test_every_model_has_a_dag_file_of_its_own() -> None:
    assert {"simulated", "local"} == MODELS.keys()
    assert all((DAGS / f"{model.dag_id}.py").is_file() for model in MODELS.values())
