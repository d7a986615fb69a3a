"""``batch-llm db`` without a target works on the ledger that tasks use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.hooks.state import open_ledger


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a connection that ``[batch_llm] ledger_conn_id`` names."""
    file = tmp_path / "mine.db"
    monkeypatch.setenv("AIRFLOW_CONN_MY_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(file)}))
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__LEDGER_CONN_ID", "my_ledger")
    return file


def test_the_configured_ledger_is_migrated_and_checked(
    ledger_file: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "check"]) == 3
    assert "Run `batch-llm db migrate`" in capsys.readouterr().err
    assert main(["db", "migrate"]) == 0
    assert main(["db", "check"]) == 0
    assert str(ledger_file) in capsys.readouterr().out
    assert open_ledger().namespace()
    assert not (home / "batch_llm").exists()


def test_a_connection_on_the_line_goes_before_the_configured_one(
    ledger_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.db"
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "sqlite", "host": str(other)}))

    assert main(["db", "migrate", "--conn", "other"]) == 0
    assert other.exists() and not ledger_file.exists()


def test_without_a_configured_ledger_it_is_the_file_in_airflows_home(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "batch_llm" / "ledger.db"

    assert main(["db", "check"]) == 3
    assert str(file) in capsys.readouterr().err
    assert not home.exists(), "a check makes nothing"
    assert main(["db", "migrate"]) == 0
    assert main(["db", "check"]) == 0
    assert file.exists()
    assert open_ledger().namespace()


def test_a_home_that_cannot_be_made_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.write_text("a file")

    assert main(["db", "migrate"]) == 1
    assert "[BLLM-001]" in capsys.readouterr().err


def test_a_configured_connection_that_is_not_defined_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__LEDGER_CONN_ID", "nowhere")

    assert main(["db", "check"]) == 1
    assert "'nowhere' is not defined" in capsys.readouterr().err


def test_who_stops_reading_the_output_gets_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "airflow_batch_llm.cli.main", "db", "migrate"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*command, "--url", f"sqlite+pysqlite:///{tmp_path}/ledger.db"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
