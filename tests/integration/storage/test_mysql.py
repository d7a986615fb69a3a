"""What MySQL and MariaDB do otherwise than the other databases."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import URL, text, update
from sqlalchemy.exc import DataError

from airflow_batch_llm.core.model import BatchState, JobKey
from airflow_batch_llm.exceptions import ConfigurationError, LedgerSchemaError, LedgerUnavailable
from airflow_batch_llm.storage.engine import make_engine, reading, writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import VERSION_TABLE, check, migrate
from airflow_batch_llm.storage.schema import job as job_table
from tests.integration.storage.ledgers import (
    FACTS,
    batch_in,
    letter,
    new_job,
    plan,
    running_job,
    some,
)
from tests.mariadb import execute, running_mariadb

WORDS = "Grüße, 日本, 🙂 \\ ' %s"


@pytest.fixture
def ledger(empty_mariadb: URL) -> SqlLedger:
    return SqlLedger(empty_mariadb)


@pytest.fixture(scope="session")
def odd_ledger() -> Iterator[SqlLedger]:
    """A ledger on a server whose settings are all unfit."""
    options = (
        "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES",
        "--default-storage-engine=MyISAM",
        "--character-set-server=latin1",
        "--default-time-zone=+05:30",
        "--transaction-isolation=SERIALIZABLE",
        "--max-allowed-packet=1M",
    )
    with running_mariadb(*options) as server:
        execute(server, "CREATE DATABASE ledger")
        url = server.set(database="ledger", query={**server.query, "charset": "utf8mb3"})
        migrate(make_engine(url))
        yield SqlLedger(url)


def test_the_settings_of_the_server_do_not_matter(odd_ledger: SqlLedger) -> None:
    key = JobKey(odd_ledger.namespace(), WORDS, WORDS, WORDS)
    job, _ = odd_ledger.create_job(key, **{**FACTS, "model": WORDS, "endpoint": WORDS}, seen={WORDS: WORDS})
    assert (job.key, job.model, job.endpoint, job.seen) == (key, WORDS, WORDS, {WORDS: WORDS})
    assert [found.job_id for found in odd_ledger.jobs(dag_id=WORDS)] == [job.job_id]
    job = some(odd_ledger.pin_plan(job, plan(batches=3)))
    odd_ledger.insert_dead_letters(letter(job, f"w{n:04}", WORDS * 100, message=WORDS) for n in range(1000))
    stored = list(odd_ledger.dead_letters(job.job_id))
    assert {(x.custom_id, x.message) for x in stored} == {(WORDS * 100, WORDS)} and len(stored) == 1000
    odd_ledger.add_event(job.job_id, "told", actor=WORDS, reason=WORDS)
    told = odd_ledger.events(job.job_id)[-1]
    assert (told.actor, told.reason) == (WORDS, WORDS)
    assert abs(odd_ledger.now() - time.time()) < 600
    with reading(odd_ledger.engine) as connection:
        engines = "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'ledger'"
        assert connection.execute(text(engines)).scalars().all() == ["InnoDB"]
        assert connection.execute(text("SELECT @@tx_isolation")).scalar() == "READ-COMMITTED"


def test_a_value_that_does_not_fit_is_refused_and_not_cut(odd_ledger: SqlLedger) -> None:
    key = JobKey(odd_ledger.namespace(), "d" * 251, "r", "t")
    with pytest.raises(DataError):
        odd_ledger.create_job(key, **FACTS, seen={})
    assert odd_ledger.get_job(key.job_id) is None


def test_an_update_that_changes_nothing_counts_as_done(ledger: SqlLedger) -> None:
    job = new_job(ledger)
    with writing(ledger.engine) as connection:
        same = update(job_table).where(job_table.c.job_id == job.job_id).values(version=job.version)
        assert connection.execute(same).rowcount == 1


def test_names_that_differ_in_case_or_accents_are_two(ledger: SqlLedger) -> None:
    for name in ("nightly", "Nightly", "nïghtly"):
        ledger.create_job(JobKey(ledger.namespace(), name, "r", "t"), **FACTS, seen={})
    assert [job.key.dag_id for job in ledger.jobs(dag_id="Nightly")] == ["Nightly"]
    (job,) = ledger.jobs(dag_id="nightly")
    assert ledger.jobs(prefix=job.job_id[:8]) == [job]
    assert ledger.jobs(prefix="ü") == ledger.jobs(prefix="%") == ledger.jobs(prefix="_") == []


def test_a_deadlock_is_unavailable_and_leaves_nothing(ledger: SqlLedger) -> None:
    jobs = [running_job(ledger, "one").job_id, running_job(ledger, "two").job_id]
    both_hold_one = threading.Barrier(2)
    ends: list[BaseException | None] = []

    def take(order: list[str]) -> None:
        try:
            with writing(ledger.engine) as connection:
                for job_id in order:
                    connection.execute(
                        update(job_table).where(job_table.c.job_id == job_id).values(model=order[0])
                    )
                    if job_id == order[0]:
                        both_hold_one.wait()
            ends.append(None)
        except LedgerUnavailable as e:
            ends.append(e)

    threads = [threading.Thread(target=take, args=(order,)) for order in (jobs, jobs[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (told,) = [end for end in ends if end is not None]
    assert "1213" in str(told) and ends.count(None) == 1
    assert len({some(ledger.get_job(job_id)).model for job_id in jobs}) == 1


def test_a_session_that_is_ended_is_unavailable(ledger: SqlLedger) -> None:
    with pytest.raises(LedgerUnavailable), writing(ledger.engine) as connection:
        connection.execute(text("KILL CONNECTION CONNECTION_ID()"))
    assert ledger.get_job("x") is None


def test_a_server_that_takes_no_writes_is_unavailable(mariadb_server: URL, ledger: SqlLedger) -> None:
    url = ledger.engine.url
    execute(
        mariadb_server,
        "CREATE OR REPLACE USER writer@localhost",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {url.database}.* TO writer@localhost",
    )
    ledger = SqlLedger(url.set(username="writer"))
    job = some(ledger.get_job(batch_in(ledger, BatchState.RECONCILED).job_id))
    execute(mariadb_server, "SET GLOBAL read_only = 1")
    try:
        with pytest.raises(LedgerUnavailable, match="read-only"):
            ledger.add_event(job.job_id, "x")
        assert ledger.get_job(job.job_id) == job
    finally:
        execute(mariadb_server, "SET GLOBAL read_only = 0")


def test_tables_and_columns_that_are_missing_are_a_fault_of_the_schema(
    mariadb_url: Callable[[], URL],
) -> None:
    engine = make_engine(mariadb_url())
    with pytest.raises(LedgerSchemaError, match="batch-llm db migrate"):
        SqlLedger(engine).get_job("x")
    migrate(engine)
    execute(engine.url, "ALTER TABLE batch_llm_job DROP COLUMN counts")
    with pytest.raises(LedgerSchemaError, match="batch-llm db migrate"):
        SqlLedger(engine).get_job("x")


@pytest.mark.parametrize(("version", "advice"), [("0000", "Run `batch-llm db migrate`"), ("9999", "newer")])
def test_an_older_or_newer_schema_is_refused(
    mariadb_url: Callable[[], URL], version: str, advice: str
) -> None:
    engine = make_engine(mariadb_url())
    migrate(engine)
    execute(engine.url, f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")
    with pytest.raises(LedgerSchemaError, match=advice):
        check(engine)


_CUT = """
import os, signal, sys
from sqlalchemy import event
from airflow_batch_llm.storage import migrate
left = int(sys.argv[2])
def count(connection, cursor, statement, *rest):
    global left
    if statement.lstrip().startswith(("CREATE", "DROP", "INSERT", "UPDATE")):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
from sqlalchemy import Engine
event.listen(Engine, "before_cursor_execute", count)
migrate.migrate(migrate.make_engine(sys.argv[1]))
"""


def test_a_migration_that_was_cut_anywhere_is_made_again(mariadb_url: Callable[[], URL]) -> None:
    url = mariadb_url()
    arguments = [sys.executable, "-c", _CUT, url.render_as_string(hide_password=False)]
    cuts = 0
    # Each time it dies one statement later, beginning with what the last one left.
    for statements in (1, 4, 9, 14):
        done = subprocess.run([*arguments, str(statements)], check=False)
        cuts += done.returncode == -signal.SIGKILL
        with pytest.raises(LedgerSchemaError):
            check(make_engine(url))
    assert cuts == 4
    migrate(make_engine(url))
    check(make_engine(url))
    assert batch_in(SqlLedger(url), BatchState.RECONCILED).state is BatchState.RECONCILED


def test_tables_that_hold_rows_are_never_made_anew(mariadb_url: Callable[[], URL]) -> None:
    engine = make_engine(mariadb_url())
    migrate(engine)
    job = new_job(SqlLedger(engine))
    execute(engine.url, f"DROP TABLE {VERSION_TABLE}")
    with pytest.raises(LedgerSchemaError, match="holds rows"):
        migrate(engine)
    assert SqlLedger(engine).get_job(job.job_id) == job


def test_migrations_of_two_databases_do_not_wait_for_each_other(mariadb_url: Callable[[], URL]) -> None:
    from airflow_batch_llm.storage.migrate import _mysql_lock

    one, other = make_engine(mariadb_url()), make_engine(mariadb_url())
    with _mysql_lock(one, None):
        migrate(other)
    check(other)


def test_other_drivers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="pymysql"):
        make_engine("mysql+mysqlconnector://me@host/name")
