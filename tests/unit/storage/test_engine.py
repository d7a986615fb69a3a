from __future__ import annotations

import socket
import sqlite3
import traceback
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from airflow_batch_llm.exceptions import ConfigurationError, LedgerSchemaError, LedgerUnavailable
from airflow_batch_llm.storage.engine import make_engine
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import migrate, open_default_sqlite

SECRET = "s3cr3t/+@:%"


def _closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+psycopg2"])
def test_a_database_that_does_not_answer_is_unavailable_and_its_password_is_told_nowhere(driver: str) -> None:
    url = URL.create(driver, "me", SECRET, "127.0.0.1", _closed_port(), "ledger")
    with pytest.raises(LedgerUnavailable) as caught:
        SqlLedger(url).get_job("x")
    told = "".join(traceback.format_exception(caught.value))
    assert not caught.value.deterministic
    assert "s3cr3t" not in told


def test_a_text_that_is_no_url_is_refused_without_quoting_it() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_engine(f"me {SECRET} nonsense")
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite+pysqlite:///:memory:"])
def test_a_ledger_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="file"):
        SqlLedger(url)


def test_an_sqlite_ledger_has_no_schema(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        SqlLedger(f"sqlite+pysqlite:///{tmp_path}/l.db", schema="other")


def test_an_absent_driver_is_told_by_name() -> None:
    with pytest.raises(ConfigurationError, match="oracledb"):
        make_engine("oracle+oracledb://me@host/name")


def test_a_ledger_without_tables_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(LedgerSchemaError, match="batch-llm db migrate"):
        SqlLedger(f"sqlite+pysqlite:///{tmp_path}/l.db").namespace()


def test_a_file_that_another_process_keeps_locked_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    open_default_sqlite(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(LedgerUnavailable, match="locked"):
            SqlLedger(f"sqlite+pysqlite:///{path}?timeout=0").add_event("j", "x")
    finally:
        blocker.close()


def test_reading_goes_on_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    open_default_sqlite(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        assert SqlLedger(f"sqlite+pysqlite:///{path}?timeout=0").get_job("j") is None
    finally:
        blocker.close()


def test_an_engine_from_elsewhere_gives_its_url_only(tmp_path: Path) -> None:
    theirs = create_engine(f"sqlite+pysqlite:///{tmp_path}/l.db")
    ledger = SqlLedger(theirs)
    migrate(theirs)
    assert isinstance(ledger.engine.pool, NullPool)
    ledger.add_event("j", "looked")
    assert [event.action for event in ledger.events("j")] == ["looked"]
