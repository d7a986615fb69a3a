from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, insert, inspect, text

from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.exceptions import LedgerSchemaError, LedgerUnavailable
from airflow_batch_llm.storage import migrate as migrate_module
from airflow_batch_llm.storage.engine import make_engine, writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import HEAD_REVISION, VERSION_TABLE, check, migrate
from airflow_batch_llm.storage.schema import batch, metadata
from airflow_batch_llm.storage.workspace import ObjectWorkspace
from tests.mariadb import execute

_MIGRATE = """
import sys
from airflow_batch_llm.storage import migrate as migrate_module
from airflow_batch_llm.storage.engine import make_engine, writing
from airflow_batch_llm.storage.migrate import migrate
print(migrate(make_engine(sys.argv[1]), sys.argv[2] or None))
"""


def test_processes_that_migrate_at_once_all_succeed(empty_address: tuple[URL, str | None]) -> None:
    url, schema = empty_address
    arguments = [url.render_as_string(hide_password=False), schema or ""]
    with pytest.raises(LedgerSchemaError, match="batch-llm db migrate"):
        check(make_engine(url), schema)
    started = [
        subprocess.Popen([sys.executable, "-c", _MIGRATE, *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [process.communicate()[0].strip() for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert set(said) == {HEAD_REVISION}
    check(make_engine(url), schema)


def test_the_tables_are_in_the_schema_asked_for(empty_address: tuple[URL, str | None]) -> None:
    url, schema = empty_address
    engine = make_engine(url)
    migrate(engine, schema)
    with engine.connect() as connection:
        found = set(inspect(connection).get_table_names(schema=schema))
        default = set(inspect(connection).get_table_names()) if schema else set()
    assert found == {table.name for table in metadata.sorted_tables} | {VERSION_TABLE}
    assert default == set()


def test_the_migrations_make_what_the_schema_says_on_postgresql(postgres_url: Callable[[], URL]) -> None:
    engine = make_engine(postgres_url())
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_ledger_of_the_version_before_keeps_its_batches(
    cut: bool, empty_address: tuple[URL, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a migration was cut after its first column, as MySQL keeps that."""
    url, schema = empty_address
    engine = make_engine(url)
    if schema and engine.dialect.name == "mariadb":  # a database of its own, that tests share
        execute(url, f"DROP DATABASE IF EXISTS `{schema}`")
    with monkeypatch.context() as before:
        before.setattr(migrate_module, "HEAD_REVISION", "0003")
        assert migrate(engine, schema) == "0003"
    job, ledger = JobKey("n", "d", "r", "t"), SqlLedger(engine, schema=schema)
    columns = {c.name: _SOME.get(c.name, 1) for c in batch.c if not c.nullable} | {"job_id": job.job_id}
    with writing(ledger.engine) as connection:
        connection.execute(insert(batch).values(**columns))
        if cut and engine.dialect.name in ("mysql", "mariadb"):
            place = f"`{schema}`." if schema else ""
            connection.execute(text(f"ALTER TABLE {place}batch_llm_batch ADD COLUMN provisional BOOL"))
    with pytest.raises(LedgerSchemaError, match="batch-llm db migrate"):
        check(engine, schema)
    migrate(engine, schema)
    check(engine, schema)
    (kept,) = ledger.batches(job.job_id)
    assert not kept.provisional and kept.not_ours == () and kept.place is None and kept.batch_id == "b"


_SOME = {
    "batch_id": "b",
    "kind": "primary",
    "state": "planned",
    **dict.fromkeys(["conn_id", "provider", "model", "plan_id", "path", "sha256"], "x"),
    **dict.fromkeys(["overrides", "counts"], "{}"),
    "files": "[]",
}


def test_a_login_that_may_not_connect_is_told_without_its_password(postgres_url: Callable[[], URL]) -> None:
    url = postgres_url().set(username="nobody", password="s3cr3t")
    with pytest.raises(LedgerUnavailable) as caught:
        check(make_engine(url))
    assert "s3cr3t" not in str(caught.value)


def test_a_server_that_ends_our_session_is_unavailable(postgres_url: Callable[[], URL]) -> None:
    engine = make_engine(postgres_url())
    migrate(engine)
    ledger = SqlLedger(engine)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    with pytest.raises(LedgerUnavailable), writing(ledger.engine) as connection:
        connection.execute(text(end))
    assert ledger.get_job("x") is None


def test_a_workspace_takes_a_path_of_airflow(tmp_path: Path) -> None:
    from airflow.sdk import ObjectStoragePath

    workspace = ObjectWorkspace(ObjectStoragePath(f"file://{tmp_path}/base"))
    root = workspace.job_root(JobKey("n", "d", "manual__2026-01-01T00:00:00+00:00", "t"))
    with pytest.raises(ZeroDivisionError), workspace.writer(f"{root}/half") as file:
        file.write(b"half")
        1 / 0  # noqa: B018
    workspace.put(f"{root}/job.json", b"{}")
    assert workspace.list(root) == [f"{root}/job.json"]
    assert (tmp_path / "base" / root / "job.json").read_bytes() == b"{}"
    assert workspace.url(root).startswith("file:///")
