"""Airflow finds the package as a provider, shows its form, and tests its connections."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf

from airflow_batch_llm import __version__
from airflow_batch_llm.backends import providers
from airflow_batch_llm.get_provider_info import get_provider_info
from airflow_batch_llm.hooks.batch_llm import BatchLLMHook
from airflow_batch_llm.hooks.settings import Settings
from tests.local_server import LocalServer

KEY = "the-key-of-this-server"
TYPES = ("batch_llm", "openai")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server"), api_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def form() -> Any:
    """What the API serves to the connection form."""
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    return next(meta for meta in HookMetaService.hook_meta_data() if meta.connection_type == "batch_llm")


def define(monkeypatch: pytest.MonkeyPatch, conn_type: str, host: str, password: str) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_LLM_TEST", json.dumps({"conn_type": conn_type, "host": host, "password": password})
    )


def test_airflow_lists_the_provider(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    listed = {row["package_name"]: row for row in json.loads(done.stdout)}

    assert listed["airflow-batch-llm"]["version"] == __version__
    assert "batch" in listed["airflow-batch-llm"]["description"]
    assert "Traceback" not in done.stderr


def test_the_form_asks_for_what_an_account_needs_and_hides_the_rest(form: Any) -> None:
    assert form.hook_name == "LLM batch API"
    assert form.standard_fields.host.title == "Base URL"
    assert form.standard_fields.password.title == "API key"
    for hidden in (form.standard_fields.url_schema, form.standard_fields.login, form.standard_fields.port):
        assert hidden.hidden


def test_the_form_has_every_field_with_its_schema(form: Any) -> None:
    declared = get_provider_info()["connection-types"][0]["conn-fields"]

    assert set(form.extra_fields) == set(declared)
    assert form.extra_fields["dialect"]["schema"]["enum"] == list(providers())
    assert form.extra_fields["dialect"]["value"] == "openai"
    assert form.extra_fields["max_requests"]["schema"]["minimum"] == 1
    for name, field in form.extra_fields.items():
        assert field["schema"]["title"] == declared[name]["label"]
        assert field["description"]


def test_what_the_form_stores_is_what_the_hook_reads(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {
        "dialect": "generic", "model": "m-1", "max_requests": 10, "max_bytes": 1000, "max_line_bytes": 100,
        "organization": "org", "project": "proj", "timeout": 5, "completion_window": "24h",
        "api_version": "2025-04-01-preview",
        "auth": "key", "inline": True, "betas": "one-1",
    }  # fmt: skip
    assert set(samples) == set(form.extra_fields)
    stored = {"conn_type": "batch_llm", "host": "http://localhost:1/v1", "password": KEY, "extra": samples}
    monkeypatch.setenv("AIRFLOW_CONN_LLM_TEST", json.dumps(stored))

    account = BatchLLMHook("llm_test").account()

    assert (account.provider, account.model) == ("generic", "m-1")
    assert dict(account.options) == {
        "max_requests": 10, "max_bytes": 1000, "max_line_bytes": 100,
        "organization": "org", "project": "proj", "timeout_seconds": 5.0,
        "completion_window": "24h", "api_version": "2025-04-01-preview", "auth": "key", "inline": True,
        "betas": ("one-1",),
    }  # fmt: skip


def test_airflow_knows_the_settings_and_their_defaults() -> None:
    from airflow.configuration import retrieve_configuration_description

    section = retrieve_configuration_description(include_providers=True)["batch_llm"]["options"]

    assert set(section) == set(Settings.model_fields)
    assert conf.getfloat("batch_llm", "first_poll_delay") == 10
    assert conf.getboolean("batch_llm", "allow_local_state") is False


def test_airflow_gives_our_hook_for_our_connection_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection

    define(monkeypatch, "batch_llm", "http://127.0.0.1:1/v1", KEY)

    hook = Connection.get("llm_test").get_hook()

    assert isinstance(hook, BatchLLMHook)
    assert hook.llm_conn_id == "llm_test"


def test_airflows_own_connection_test_goes_through(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.connection import Connection

    define(monkeypatch, "batch_llm", server.url, KEY)
    stored = Connection(conn_id="llm_test", conn_type="batch_llm", host=server.url, password=KEY)

    passed, message = stored.test_connection()

    assert passed, message


@pytest.mark.parametrize("conn_type", TYPES)
def test_a_good_connection_passes(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    define(monkeypatch, conn_type, server.url, KEY)

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert passed
    assert message
    assert KEY not in message


@pytest.mark.parametrize("conn_type", TYPES)
def test_a_wrong_key_fails_and_is_not_repeated_to_the_reader(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    define(monkeypatch, conn_type, server.url, "a-wrong-key")

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert not passed
    assert "BLLM-020" in message
    assert "a-wrong-key" not in message


@pytest.mark.parametrize("conn_type", TYPES)
def test_an_address_where_nobody_listens_fails(monkeypatch: pytest.MonkeyPatch, conn_type: str) -> None:
    define(monkeypatch, conn_type, "http://127.0.0.1:9/v1", KEY)

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert not passed
    assert "BLLM-022" in message


def test_a_connection_that_cannot_be_used_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "http", "http://127.0.0.1:9/v1", KEY)

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert not passed
    assert "accepted are batch_llm, openai" in message


@pytest.mark.parametrize("conn_type", TYPES)
def test_a_trigger_reaches_the_provider_through_the_same_connection(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    define(monkeypatch, conn_type, server.url, KEY)

    async def look() -> list[Any]:
        backend = await BatchLLMHook("llm_test").amake_backend()
        try:
            return await backend.list_recent(stop_at=lambda _: False)
        finally:
            await backend.aclose()

    assert asyncio.run(look()) == []
