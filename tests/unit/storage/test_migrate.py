from __future__ import annotations

import logging
import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from airflow_batch_llm.cli import db
from airflow_batch_llm.exceptions import ConfigurationError, LedgerSchemaError
from airflow_batch_llm.storage import migrate as migrate_module
from airflow_batch_llm.storage.engine import make_engine, writing
from airflow_batch_llm.storage.migrate import (
    HEAD_REVISION,
    VERSION_TABLE,
    check,
    current_revision,
    migrate,
    open_default_sqlite,
)
from airflow_batch_llm.storage.schema import metadata

MIGRATIONS = Path(migrate_module.__file__).with_name("migrations")


def _url(tmp_path: Path) -> str:
    return f"sqlite+pysqlite:///{tmp_path}/ledger.db"


def test_the_head_known_to_workers_is_the_newest_script() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD_REVISION]


def test_the_migrations_make_the_tables_of_the_schema(tmp_path: Path) -> None:
    engine = make_engine(_url(tmp_path))
    migrate(engine)
    with engine.connect() as connection:
        # SQLite looks at no length, so none is changed there; PostgreSQL's types are compared elsewhere.
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": False}
        )
        assert compare_metadata(context, metadata) == []


def test_missing_tables_are_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(LedgerSchemaError, match="no tables yet.*batch-llm db migrate"):
        check(make_engine(_url(tmp_path)))


@pytest.mark.parametrize(("found", "says"), [("0000", "Run `batch-llm db migrate`"), ("9999", "newer")])
def test_another_revision_is_refused(tmp_path: Path, found: str, says: str) -> None:
    engine = make_engine(_url(tmp_path))
    migrate(engine)
    with writing(engine) as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{found}'"))
    with pytest.raises(LedgerSchemaError, match=says):
        check(engine)


def test_newer_tables_are_not_touched(tmp_path: Path) -> None:
    engine = make_engine(_url(tmp_path))
    migrate(engine)
    with writing(engine) as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(LedgerSchemaError, match="newer"):
        migrate(engine)
    with pytest.raises(LedgerSchemaError, match="newer"):
        open_default_sqlite(tmp_path / "ledger.db")
    assert current_revision(engine) == "9999"


def test_the_default_file_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "ledger.db"
    first = open_default_sqlite(path).namespace()
    again = open_default_sqlite(path)
    check(again.engine)
    assert again.namespace() == first
    with again.engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_a_folder_that_cannot_be_made_is_a_matter_of_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError):
        open_default_sqlite(tmp_path / "file" / "ledger.db")


def test_a_migration_that_fails_leaves_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(_url(tmp_path))
    with writing(engine) as connection:
        connection.execute(text("CREATE TABLE batch_llm_meta (in_the_way INTEGER)"))
    with pytest.raises(Exception, match="already exists"):
        migrate(engine)
    assert current_revision(engine) is None
    with engine.connect() as connection:
        names = (
            connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()
        )
    assert names == ["batch_llm_meta"]


def test_logging_and_the_current_folder_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alembic.ini").write_text(
        "[alembic]\nscript_location = elsewhere\n[loggers]\nkeys = broken\n"
    )
    monkeypatch.chdir(tmp_path)
    mine = logging.getLogger("some.library")
    root = logging.getLogger()
    before = (root.level, list(root.handlers), mine.disabled)
    migrate(make_engine(_url(tmp_path)))
    assert (root.level, list(root.handlers), mine.disabled) == before


def test_a_worker_checks_without_importing_alembic_or_airflow(tmp_path: Path) -> None:
    migrate(make_engine(_url(tmp_path)))
    program = (
        "import sys; from airflow_batch_llm.storage.migrate import open_default_sqlite, check\n"
        f"ledger = open_default_sqlite({str(tmp_path / 'ledger.db')!r})\n"
        "check(ledger.engine); ledger.namespace()\n"
        "sys.exit(bool({'alembic', 'airflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_four_processes_may_open_the_default_file_first_at_once(tmp_path: Path) -> None:
    program = (
        "from airflow_batch_llm.storage.migrate import open_default_sqlite\n"
        f"print(open_default_sqlite({str(tmp_path / 'ledger.db')!r}).namespace())"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(4)
    ]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert len(set(said)) == 1


# -- MySQL: no server here, but its limits are known ----------------------------------------------
def _key_bytes(column: object) -> int:
    type_ = column.type.dialect_impl(mysql.dialect())  # type: ignore[attr-defined]
    length = getattr(type_, "length", None)
    if length is None:
        return 8
    return int(length) * (1 if getattr(type_, "charset", None) == "ascii" else 4)


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_every_key_fits_the_index_limit_of_mysql(table) -> None:  # type: ignore[no-untyped-def]
    CreateTable(table).compile(dialect=mysql.dialect())
    for key in [table.primary_key, *table.indexes]:
        assert sum(_key_bytes(column) for column in key.columns) <= 3072


def test_ids_compare_byte_by_byte_on_mysql() -> None:
    letters = str(CreateTable(metadata.tables["batch_llm_dead_letter"]).compile(dialect=mysql.dialect()))
    assert "wire_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" in letters
    assert "custom_id LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" in letters


# -- the command -----------------------------------------------------------------------------------
def _run(*words: str) -> int:
    parser = ArgumentParser()
    db.add_parser(parser.add_subparsers())
    return db.run(parser.parse_args(["db", *words]))


def test_the_command_checks_migrates_and_checks_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = _url(tmp_path)
    assert _run("check", "--url", url) == 3
    assert "batch-llm db migrate" in capsys.readouterr().err
    assert _run("migrate", "--url", url) == 0
    assert _run("migrate", "--url", url) == 0
    assert _run("check", "--url", url) == 0


def test_the_command_says_what_is_wrong_with_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("check", "--url", "pass word") == 1
    said = capsys.readouterr()
    assert "BLLM-001" in said.err
    assert "pass word" not in said.err


def test_the_command_takes_one_target_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _run("check", "--url", "x", "--conn", "y")
