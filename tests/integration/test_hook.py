"""From connections and settings to a backend, a ledger and a workspace."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Connection, task

from airflow_batch_llm.exceptions import ConfigurationError, LedgerSchemaError, LocalStateError
from airflow_batch_llm.hooks.batch_llm import BatchLLMHook, connection_defaults
from airflow_batch_llm.hooks.state import connection_url, ledger_url, open_ledger, open_workspace
from airflow_batch_llm.storage.engine import make_engine
from airflow_batch_llm.storage.migrate import migrate

KEY = "sk-a-key-that-must-not-show"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    return tmp_path


def define(monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))


def setting(monkeypatch: pytest.MonkeyPatch, option: str, value: str) -> None:
    monkeypatch.setenv(f"AIRFLOW__BATCH_LLM__{option.upper()}", value)


# -- connections -----------------------------------------------------------------------------------


def test_a_connection_of_our_type_gives_provider_address_model_and_limits() -> None:
    account = connection_defaults(
        Connection(
            conn_id="llm", conn_type="batch_llm", host="https://gateway.example/v1", password=KEY,
            extra=json.dumps(
                {"dialect": "generic", "model": "m-1", "max_requests": "100", "max_bytes": 5000, "timeout": 7}
            ),
        )
    )  # fmt: skip

    assert (account.provider, account.base_url, account.api_key) == (
        "generic", "https://gateway.example/v1", KEY,
    )  # fmt: skip
    assert account.model == "m-1"
    assert dict(account.options) == {"max_requests": 100, "max_bytes": 5000, "timeout_seconds": 7.0}


def test_an_empty_form_is_the_provider_with_its_own_address_and_limits() -> None:
    empty = {"dialect": "", "model": "", "max_requests": "", "timeout": None, "organization": ""}
    account = connection_defaults(
        Connection(conn_id="llm", conn_type="batch_llm", password=KEY, extra=json.dumps(empty))
    )

    assert (account.provider, account.base_url, account.model, dict(account.options)) == (
        "openai",
        None,
        None,
        {},
    )


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        (f"batch-llm://:{KEY}@https%3A%2F%2Fgateway.example%2Fv1/", "https://gateway.example/v1"),
        (f"batch-llm://http://:{KEY}@127.0.0.1:8765/v1", "http://127.0.0.1:8765/v1"),
    ],
)
def test_a_connection_may_be_written_as_one_uri(uri: str, url: str) -> None:
    connection = Connection(conn_id="llm", uri=uri)

    assert connection_defaults(connection).base_url == url


def test_an_openai_connection_is_read_as_its_own_hook_reads_it() -> None:
    client = {
        "api_key": KEY,
        "base_url": "https://proxy.example/v1",
        "organization": "org-1",
        "timeout": 30,
        "default_headers": {"x-team": "search"},
        "max_retries": 5,
    }
    account = connection_defaults(
        Connection(
            conn_id="openai_default", conn_type="openai", host="https://ignored.example", password="ignored",
            extra=json.dumps({"openai_client_kwargs": client}),
        )
    )  # fmt: skip

    assert account.api_key == KEY
    assert account.base_url == "https://proxy.example/v1"
    assert dict(account.options) == {
        "organization": "org-1",
        "timeout_seconds": 30.0,
        "headers": {"x-team": "search"},
    }


def test_both_hooks_send_the_same_key_to_the_same_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.openai.hooks.openai import OpenAIHook

    define(monkeypatch, "shared", conn_type="openai", host="https://proxy.example/v1", password=KEY)
    theirs = OpenAIHook(conn_id="shared").get_conn()
    ours = BatchLLMHook("shared").account()

    assert ours.api_key == theirs.api_key
    assert str(theirs.base_url).rstrip("/") == ours.base_url


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"conn_type": "http", "password": KEY}, "accepted are batch_llm, openai"),
        ({"conn_type": "batch_llm"}, "no API key"),
        ({"conn_type": "batch_llm", "password": "  "}, "no API key"),
        ({"conn_type": "openai"}, "no API key"),
        ({"conn_type": "batch_llm", "password": KEY, "host": "api.example"}, "base URL"),
        ({"conn_type": "batch_llm", "password": KEY, "host": "http://[::1"}, "base URL"),
        ({"conn_type": "batch_llm", "password": KEY, "host": "http://a:notaport/"}, "base URL"),
        ({"conn_type": "batch_llm", "password": KEY, "extra": '{"dialect": "acme"}'}, "acme"),
        ({"conn_type": "batch_llm", "password": KEY, "extra": '{"dialect": "generic"}'}, "base URL"),
        ({"conn_type": "batch_llm", "password": KEY, "extra": '{"max_requests": 0}'}, "max_requests"),
        ({"conn_type": "batch_llm", "password": KEY, "extra": '{"timeout": "soon"}'}, "timeout"),
        ({"conn_type": "openai", "password": KEY, "extra": '{"openai_client_kwargs": "x"}'}, "client_kwargs"),
        ({"conn_type": "openai", "extra": '{"auth_type": "workload_identity"}'}, "workload_identity"),
    ],
)
def test_a_connection_that_cannot_work_is_refused_and_its_key_not_shown(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], said: str
) -> None:
    define(monkeypatch, "llm", **fields)

    with pytest.raises(ConfigurationError) as refused:
        BatchLLMHook("llm").make_backend()

    assert "'llm'" in str(refused.value) or said == "acme"
    assert said in str(refused.value)
    assert KEY not in str(refused.value)


def test_an_unknown_connection_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'nowhere' is not defined"):
        BatchLLMHook("nowhere").make_backend()
    with pytest.raises(ConfigurationError, match="'nowhere' is not defined"):
        asyncio.run(BatchLLMHook("nowhere").amake_backend())


def test_the_key_is_not_in_the_accounts_text(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "llm", conn_type="batch_llm", password=KEY)

    assert KEY not in repr(BatchLLMHook("llm").account())


@pytest.mark.parametrize("conn_type", ["batch_llm", "openai"])
def test_tasks_and_triggers_get_the_same_backend(monkeypatch: pytest.MonkeyPatch, conn_type: str) -> None:
    define(monkeypatch, "llm", conn_type=conn_type, password=KEY, extra='{"max_requests": 12}')
    hook = BatchLLMHook("llm")

    async def both() -> tuple[Any, Any]:
        return hook.make_backend(), await hook.amake_backend()

    in_task, in_trigger = asyncio.run(both())

    assert type(in_task) is type(in_trigger)
    assert in_task.limits == in_trigger.limits
    assert in_task.limits.max_requests == 12


def test_the_time_for_creating_a_batch_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "llm", conn_type="batch_llm", password=KEY)
    setting(monkeypatch, "create_timeout", "33")

    backend: Any = BatchLLMHook("llm").make_backend()

    assert backend.create_timeout == 33


# -- ledger ----------------------------------------------------------------------------------------


def test_with_nothing_set_the_ledger_is_a_file_in_airflows_home_that_makes_itself(home: Path) -> None:
    ledger = open_ledger()

    assert (home / "batch_llm" / "ledger.db").is_file()
    assert len(ledger.namespace()) == 12
    assert open_ledger().namespace() == ledger.namespace()


@pytest.mark.parametrize(
    "executor",
    [
        "LocalExecutor",
        "airflow.executors.local_executor.LocalExecutor",
        "mine:LocalExecutor",
        "tests.integration.local_kind.PatientLocalExecutor",
    ],
)
def test_local_state_serves_executors_that_run_tasks_here(
    monkeypatch: pytest.MonkeyPatch, home: Path, executor: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)

    open_ledger()
    open_workspace()


@pytest.mark.parametrize(
    "executor",
    [
        "CeleryExecutor",
        "KubernetesExecutor",
        "LocalExecutor,CeleryExecutor",
        "LocalExecutor, far:airflow.providers.celery.executors.celery_executor.CeleryExecutor",
        "LocalExecutor;team1=KubernetesExecutor",
        "no.such.module.Executor",
    ],
)
def test_local_state_is_refused_where_tasks_may_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, home: Path, executor: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    define(monkeypatch, "ledger", conn_type="sqlite", host=str(home / "mine.db"))

    with pytest.raises(LocalStateError, match="ledger_conn_id"):
        open_ledger()
    with pytest.raises(LocalStateError, match="workspace"):
        open_workspace()
    setting(monkeypatch, "ledger_conn_id", "ledger")
    with pytest.raises(LocalStateError, match="ledger_conn_id"):
        open_ledger()
    setting(monkeypatch, "workspace", f"file://{home}/mine")
    with pytest.raises(LocalStateError, match="workspace"):
        open_workspace()
    assert not list(home.iterdir())


def test_local_state_is_allowed_where_the_disk_is_said_to_be_shared(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    setting(monkeypatch, "allow_local_state", "True")

    open_ledger()
    open_workspace()


def test_a_ledger_of_ones_own_is_only_checked_until_somebody_migrates_it(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    define(monkeypatch, "ledger", conn_type="sqlite", host=str(home / "mine.db"))
    setting(monkeypatch, "ledger_conn_id", "ledger")

    with pytest.raises(LedgerSchemaError, match="batch-llm db migrate"):
        open_ledger()
    migrate(make_engine(ledger_url("ledger")[0]))
    assert len(open_ledger().namespace()) == 12


def test_the_command_finds_a_ledger_connection_that_airflows_database_holds(
    airflow_db: None, airflow_home: Path, tmp_path: Path
) -> None:
    from airflow.models.connection import Connection as StoredConnection
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(
            StoredConnection(conn_id="stored_ledger", conn_type="sqlite", host=f"{tmp_path}/stored.db")
        )
    command = [sys.executable, "-m", "airflow_batch_llm.cli.main", "db", "migrate", "--conn", "stored_ledger"]

    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "stored.db").is_file()


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        (
            {"conn_type": "postgres", "host": "db", "port": 5433, "login": "u", "password": "p@/",
             "schema": "led", "extra": '{"sslmode": "require", "cursor": "dictcursor"}'},
            "postgresql+psycopg://u:p%40%2F@db:5433/led?sslmode=require",
        ),
        (
            {"conn_type": "mysql", "host": "db", "login": "u", "schema": "led",
             "extra": '{"ssl_ca": "/ca.pem", "charset": "latin1", "cursor": "dictcursor"}'},
            "mysql+pymysql://u@db/led?ssl_ca=%2Fca.pem",
        ),
        ({"conn_type": "mariadb", "host": "db", "schema": "led"}, "mariadb+pymysql://db/led"),
        ({"conn_type": "sqlite", "host": "/data/led.db"}, "sqlite+pysqlite:////data/led.db"),
    ],
)  # fmt: skip
def test_a_ledgers_url_names_its_driver(fields: dict[str, Any], url: str) -> None:
    found = connection_url(Connection(conn_id="ledger", **fields))

    assert found.render_as_string(hide_password=False) == url


def test_a_ledgers_schema_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "ledger", conn_type="postgres", host="db", schema="led")
    setting(monkeypatch, "ledger_schema", "batch")

    assert ledger_url("ledger")[1] == "batch"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"conn_type": "snowflake", "schema": "x"}, "snowflake"),
        ({"conn_type": "postgres", "host": "db"}, "database"),
        ({"conn_type": "sqlite", "host": "led.db"}, "absolute"),
        ({"conn_type": "sqlite"}, "absolute"),
    ],
)
def test_a_connection_that_cannot_hold_a_ledger_is_refused(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], said: str
) -> None:
    define(monkeypatch, "ledger", **fields)
    setting(monkeypatch, "ledger_conn_id", "ledger")

    with pytest.raises(ConfigurationError, match=said):
        open_ledger()


# -- workspace -------------------------------------------------------------------------------------


def test_with_nothing_set_the_workspace_is_a_folder_in_airflows_home(home: Path) -> None:
    open_workspace().put("a/b.txt", b"whole")

    assert (home / "batch_llm" / "workspace" / "a" / "b.txt").read_bytes() == b"whole"


@pytest.mark.parametrize("form", ["file://{}/its own", "{}/its own"])
def test_the_workspace_may_be_any_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str) -> None:
    setting(monkeypatch, "workspace", form.format(tmp_path))

    open_workspace().put("x", b"1")

    assert (tmp_path / "its own" / "x").read_bytes() == b"1"


def test_the_workspace_may_be_an_object_store_under_any_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.io import attach
    from fsspec.implementations.memory import MemoryFileSystem

    attach(protocol="memory", fs=MemoryFileSystem())
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    setting(monkeypatch, "workspace", "memory://batch-llm-tests/base")

    workspace = open_workspace()
    workspace.put("x", b"1")

    assert workspace.exists("x")
    assert workspace.url("x") == "memory://batch-llm-tests/base/x"


@pytest.mark.parametrize("address", ["some/folder", "s3://bucket/base", "no-such-store://bucket"])
def test_a_workspace_that_cannot_be_reached_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    setting(monkeypatch, "workspace", address)

    with pytest.raises(ConfigurationError, match="workspace"):
        open_workspace()


# -- in a task -------------------------------------------------------------------------------------


def test_a_task_finds_account_ledger_and_workspace(
    monkeypatch: pytest.MonkeyPatch, home: Path, sync_dag: Callable[[DAG], DAG]
) -> None:
    define(monkeypatch, "llm", conn_type="openai", host="http://127.0.0.1:1/v1", password=KEY)

    with DAG("finds_its_state", schedule=None) as dag:

        @task
        def look() -> dict[str, str | None]:
            open_workspace().put("seen", b"1")
            return {"namespace": open_ledger().namespace(), "url": BatchLLMHook("llm").account().base_url}

        look()

    run = sync_dag(dag).test()

    assert run.state == "success"
    assert (home / "batch_llm" / "workspace" / "seen").is_file()
    assert run.get_task_instance("look").xcom_pull(task_ids="look") == {
        "namespace": open_ledger().namespace(),
        "url": "http://127.0.0.1:1/v1",
    }
