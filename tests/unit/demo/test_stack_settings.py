"""What the stack's components are told, without starting them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from example_dags.demo.rest import wait_for
from example_dags.demo.stack import AirflowStack


def test_airflow_settings_of_the_caller_do_not_leak_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgresql://elsewhere/real")
    monkeypatch.setenv("AIRFLOW_HOME", "/elsewhere")
    env = AirflowStack(tmp_path / "home", tmp_path).env
    assert env["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert env["AIRFLOW_HOME"] == str(tmp_path / "home")
    assert "AIRFLOW_CONN_WAREHOUSE" not in env


def test_settings_given_to_the_stack_win(tmp_path: Path) -> None:
    stack = AirflowStack(tmp_path / "home", tmp_path, env={"AIRFLOW__CORE__PARALLELISM": "2"})
    assert stack.env["AIRFLOW__CORE__PARALLELISM"] == "2"


def test_given_folders_come_before_the_import_path_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    stack = AirflowStack(tmp_path / "home", tmp_path, pythonpath=[tmp_path / "ours"])
    assert stack.env["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "ours"), "/theirs"])


def test_two_stacks_share_no_port_and_no_key(tmp_path: Path) -> None:
    one, two = AirflowStack(tmp_path / "1", tmp_path), AirflowStack(tmp_path / "2", tmp_path)
    for name in ("AIRFLOW__API__PORT", "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET"):
        assert one.env[name] != two.env[name]


def test_waiting_in_vain_says_for_what_and_what_was_seen() -> None:
    with pytest.raises(TimeoutError, match=r"in vain for the moon\. only clouds"):
        wait_for(lambda: None, "the moon", 0.0, detail=lambda: "only clouds")
