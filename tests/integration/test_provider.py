"""Airflow finds the package as a provider, shows its form, and tests its connections."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf

from airflow_batch_llm import __version__
from airflow_batch_llm.backends import find_provider, providers
from airflow_batch_llm.cli.doctor_checks import State, check_connection
from airflow_batch_llm.get_provider_info import get_provider_info
from airflow_batch_llm.hooks.batch_llm import BatchLLMHook
from airflow_batch_llm.hooks.settings import Settings
from tests.local_server import LocalServer

KEY = "the-key-of-this-server"


@dataclass(frozen=True)
class Way:
    """One way to reach a provider: a type of connection, and what its extra says.

    :param face: which protocol of the local server its address is that of.
    """

    conn_type: str
    face: str
    extra: dict[str, str] = field(default_factory=dict)

    def define(self, monkeypatch: pytest.MonkeyPatch, root: Callable[[str], str], password: str) -> None:
        """Make it connection ``llm_test``; ``root`` says where a protocol is."""
        fields = {"conn_type": self.conn_type, "host": root(self.face), "password": password}
        monkeypatch.setenv("AIRFLOW_CONN_LLM_TEST", json.dumps({**fields, "extra": self.extra}))


PROTOCOLS = ("openai", "azure", "anthropic", "gemini", "mistral")
WAYS = (
    *(
        Way("batch_llm", name, {"dialect": name})
        for name in ("openai", "azure", "anthropic", "gemini", "mistral")
    ),
    Way("batch_llm", "openai", {"dialect": "generic"}),
    Way("openai", "openai"),
    Way("openai", "azure", {"api_type": "azure", "api_version": "2024-10-21"}),
    Way("anthropic", "anthropic"),
    Way("pydanticai", "openai", {"model": "openai:m-1"}),
    Way("pydanticai", "anthropic", {"model": "anthropic:m-1"}),
    Way("pydanticai", "gemini", {"model": "google:m-1"}),
    Way("pydanticai", "mistral", {"model": "mistral:m-1"}),
    Way("pydanticai_azure", "azure", {"model": "azure:m-1"}),
)
every_way = pytest.mark.parametrize(
    "way", WAYS, ids=lambda way: f"{way.conn_type} {' '.join(way.extra.values())}"
)


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
    for name, shown in form.extra_fields.items():
        assert shown["schema"]["title"] == declared[name]["label"]
        assert shown["description"]


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


@every_way
def test_a_good_connection_passes(server: LocalServer, monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    way.define(monkeypatch, server.url_of, KEY)

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert passed, message
    assert message
    assert KEY not in message


@every_way
def test_a_wrong_key_fails_and_is_not_repeated_to_the_reader(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    way.define(monkeypatch, server.url_of, "a-wrong-key")

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert not passed
    assert "BLLM-020" in message
    assert "a-wrong-key" not in message


@every_way
def test_an_address_where_nobody_listens_fails(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    way.define(monkeypatch, lambda face: "http://127.0.0.1:9", KEY)

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert not passed
    assert "BLLM-022" in message


@every_way
def test_an_address_that_is_not_the_providers_fails(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    way.define(monkeypatch, lambda face: f"{server.url_of('openai').removesuffix('/v1')}/nothing/here", KEY)

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert not passed
    assert "BLLM-0" in message and KEY not in message


@every_way
def test_doctor_says_whose_connection_it_is_and_whether_its_key_works(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    way.define(monkeypatch, server.url_of, KEY)
    found = {finding.check: finding for finding in check_connection("llm_test")}
    way.define(monkeypatch, server.url_of, "a-wrong-key")
    wrong = {finding.check: finding for finding in check_connection("llm_test")}

    row = find_provider(BatchLLMHook("llm_test").account().provider)
    assert row.protocol == way.face
    assert f"type {way.conn_type}, dialect {row.name}, " in found["connection"].found
    assert found["key"].state is State.OK and wrong["key"].state is State.FAULT
    assert wrong["key"].code == "BLLM-020"
    assert row.tested in found["protocol"].found
    assert found["protocol"].state is (State.OK if row.marks_batches else State.LOOK)
    assert not [x for x in (*found.values(), *wrong.values()) if KEY in x.found or "a-wrong-key" in x.found]


def test_a_connection_that_cannot_be_used_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "http", "http://127.0.0.1:9/v1", KEY)

    passed, message = BatchLLMHook("llm_test").test_connection()

    assert not passed
    assert "accepted are batch_llm, openai" in message


@every_way
def test_a_trigger_reaches_the_provider_through_the_same_connection(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    way.define(monkeypatch, server.url_of, KEY)

    async def look() -> list[Any]:
        backend = await BatchLLMHook("llm_test").amake_backend()
        try:
            return await backend.list_recent(stop_at=lambda _: False)
        finally:
            await backend.aclose()

    assert asyncio.run(look()) == []
