"""A database that hangs does not hang the task: what takes too long is a ledger that does not answer."""

from __future__ import annotations

import pytest
from pytest_mock import MockerFixture
from sqlalchemy import URL, text, update

from airflow_batch_llm.exceptions import LedgerUnavailable
from airflow_batch_llm.storage import engine as engines
from airflow_batch_llm.storage.engine import writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import check, migrate
from airflow_batch_llm.storage.schema import batch, job
from tests.integration.storage.ledgers import actions, new_job

pytestmark = pytest.mark.parametrize("address", ["postgresql", "psycopg2", "mysql"], indirect=True)

Address = tuple[URL, str | None]
SLEEP = {"postgresql": "SELECT pg_sleep(1000)", "mysql": "SELECT SLEEP(1000)"}


def _impatient(mocker: MockerFixture, address: Address, what: str) -> SqlLedger:
    mocker.patch.object(engines, what, 1)
    return SqlLedger(address[0], schema=address[1])


def test_a_row_that_stays_locked_is_waited_for_in_bounded_time(
    ledger: SqlLedger, address: Address, mocker: MockerFixture
) -> None:
    found = new_job(ledger)
    with writing(ledger.engine) as blocker:
        blocker.execute(update(job).values(model="other"))
        with pytest.raises(LedgerUnavailable):
            _impatient(mocker, address, "LOCK_SECONDS").mark_seen(found, {"a": 1})
    assert ledger.mark_seen(found, {"a": 1}) is not None
    assert actions(ledger, found.job_id) == ["job_created", "seen_marked"]


def test_a_table_that_stays_locked_is_waited_for_in_bounded_time(
    ledger: SqlLedger, address: Address, mocker: MockerFixture
) -> None:
    lock = "LOCK TABLES batch_llm_batch WRITE"
    if ledger.engine.dialect.name == "postgresql":
        lock = f"LOCK TABLE {_name(address)} IN ACCESS EXCLUSIVE MODE"
    with writing(ledger.engine) as blocker:
        blocker.execute(text(lock))
        with pytest.raises(LedgerUnavailable):
            _impatient(mocker, address, "LOCK_SECONDS").get_batch("x")
    assert ledger.get_batch("x") is None


def test_a_statement_that_takes_too_long_is_ended(
    ledger: SqlLedger, address: Address, mocker: MockerFixture
) -> None:
    impatient = _impatient(mocker, address, "STATEMENT_SECONDS")
    with pytest.raises(LedgerUnavailable), writing(impatient.engine) as connection:
        connection.execute(text(SLEEP[ledger.engine.dialect.name]))


def test_a_migration_takes_the_time_it_needs(address: Address, mocker: MockerFixture) -> None:
    """With limits this short not even the first look would come through."""
    mocker.patch.object(engines, "_limit_transactions", side_effect=AssertionError)
    mocker.patch.object(engines, "_mysql_limits", side_effect=AssertionError)
    engine = engines.make_engine(address[0], limited=False)
    assert migrate(engine, address[1])
    mocker.stopall()
    check(engines.make_engine(address[0]), address[1])


def _name(address: Address) -> str:
    return f'"{address[1]}".{batch.name}' if address[1] else batch.name
