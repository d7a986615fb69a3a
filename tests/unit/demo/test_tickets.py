"""The shipped tickets and the scenario that makes some of them fail."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_batch_llm.server.scenario import Scenario, parse_scenario
from example_dags.demo.__main__ import HERE, INTERVAL
from example_dags.demo.warehouse import load_tickets

FIRST_NIGHT = datetime(2026, 1, 14, 2, tzinfo=UTC)
#: As in ``nightly_ticket_labels``.
MAX_DEAD = 0.1


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    database = tmp_path / "warehouse.db"
    assert load_tickets(database) == 200
    return database


@pytest.fixture
def scenario() -> Scenario:
    return parse_scenario((HERE / "scenario.json").read_bytes())


def select(database: Path, statement: str, *values: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement, values).fetchall()


def bodies(database: Path, start: datetime, end: datetime) -> list[str]:
    statement = "SELECT body FROM tickets WHERE updated_at >= ? AND updated_at < ?"
    return [body for (body,) in select(database, statement, start.isoformat(), end.isoformat())]


def test_each_of_three_nights_finds_tickets_and_none_is_outside(warehouse: Path) -> None:
    nights = [FIRST_NIGHT + timedelta(days=n) for n in range(3)]
    counts = [len(bodies(warehouse, night, night + timedelta(days=1))) for night in nights]
    assert min(counts) >= 60
    assert sum(counts) == 200


def test_no_two_tickets_share_their_id_or_their_text(warehouse: Path) -> None:
    (counts,) = select(warehouse, "SELECT count(DISTINCT id), count(DISTINCT body) FROM tickets")
    assert counts == (200, 200)


def test_tickets_hold_what_breaks_naive_readers(warehouse: Path) -> None:
    found = {body for (body,) in select(warehouse, "SELECT body FROM tickets")}
    for part in ("\n", '"', ",", "😍", "é", "。"):
        assert any(part in body for body in found), part


def test_times_can_be_moved(tmp_path: Path) -> None:
    database = tmp_path / "later.db"
    load_tickets(database, later_by=timedelta(days=300))
    assert bodies(database, *INTERVAL) == []
    assert len(bodies(database, FIRST_NIGHT + timedelta(days=300), INTERVAL[1] + timedelta(days=301))) == 200


def test_a_warehouse_is_never_overwritten(warehouse: Path) -> None:
    with pytest.raises(FileExistsError):
        load_tickets(warehouse)


def test_each_ticket_singled_out_by_the_scenario_is_one_of_the_night(
    warehouse: Path, scenario: Scenario
) -> None:
    texts = bodies(warehouse, *INTERVAL)
    phrases = [rule.match.contains for rule in scenario.rows if rule.match.contains is not None]
    assert phrases
    for phrase in phrases:
        assert sum(phrase in text for text in texts) == 1, phrase


def test_the_scenario_kills_some_tickets_but_fewer_than_the_dag_allows(
    warehouse: Path, scenario: Scenario
) -> None:
    for_good = [rule for rule in scenario.rows if rule.times is None]
    assert all(rule.match.contains is not None for rule in for_good)
    assert 0 < len(for_good) / len(bodies(warehouse, *INTERVAL)) < MAX_DEAD
