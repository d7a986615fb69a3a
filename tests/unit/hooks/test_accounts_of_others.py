"""Connections that people already have for other packages, taken as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.hooks.account import Account, read_account

KEY = "a-secret-that-must-not-show"
AZURE = "https://team.openai.azure.com"
JSON = dict[str, Any]


def account(conn_type: str, *, host: str = "", password: str = KEY, **extra: Any) -> Account:
    connection = Connection(
        conn_id="llm", conn_type=conn_type, host=host, password=password, extra=json.dumps(extra)
    )
    return read_account(connection, extra)


def refusal(conn_type: str, **fields: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        account(conn_type, **fields)
    assert KEY not in repr(caught.value)
    assert "'llm'" in str(caught.value)
    return str(caught.value)


# -- openai ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "extra", "options"),
    [
        (f"{AZURE}/openai/v1", {}, {}),
        ("https://team.cognitiveservices.azure.com/openai/v1/", {}, {}),
        ("https://team.services.ai.azure.com/openai/v1", {}, {}),
        (f"{AZURE}/openai/v1", {"openai_client_kwargs": {"default_query": {"api-version": "preview"}}}, {}),
        (
            AZURE,
            {"openai_client_kwargs": {"default_query": {"api-version": "2024-10-21"}}},
            {"api_version": "2024-10-21"},
        ),
        (
            "https://gateway.example",
            {"api_type": "azure", "api_version": "2024-10-21"},
            {"api_version": "2024-10-21"},
        ),
        (AZURE, {"api_type": "azure_ad"}, {"auth": "bearer"}),
        ("", {"azure_endpoint": AZURE, "api_version": "v1"}, {}),
    ],
)
def test_an_openai_connection_to_azure_is_one_to_azure(host: str, extra: JSON, options: JSON) -> None:
    found = account("openai", host=host, **extra)

    assert found.provider == "azure"
    assert found.base_url == (host or AZURE)
    assert found.api_key == KEY
    assert dict(found.options) == options


def test_an_entra_token_for_azure_is_sent_as_a_token() -> None:
    client = {"azure_endpoint": AZURE, "azure_ad_token": "a-token", "api_version": "2025-04-01-preview"}

    found = account("openai", password="", openai_client_kwargs=client)

    assert (found.provider, found.base_url, found.api_key) == ("azure", AZURE, "a-token")
    assert dict(found.options) == {"auth": "bearer", "api_version": "2025-04-01-preview"}


def test_what_only_looks_like_azure_is_not_taken_for_it() -> None:
    for host in (
        "https://openai.azure.com.example/v1",
        "https://example.com/.openai.azure.com",
        "https://[::1",
    ):
        connection = Connection(conn_id="llm", conn_type="openai", host=host, password=KEY)
        try:
            assert read_account(connection, {}).provider == "openai"
        except ConfigurationError as error:
            assert "base URL" in str(error)


def test_an_openai_connection_may_name_the_provider_that_its_address_is_of() -> None:
    found = account("openai", host="http://box:8000/v1", dialect="generic")

    assert (found.provider, found.base_url) == ("generic", "http://box:8000/v1")


# -- anthropic -------------------------------------------------------------------------------------
def test_an_anthropic_connection_is_read_as_its_own_hook_reads_it() -> None:
    client = {
        "api_key": KEY,
        "base_url": "https://gateway.example/anthropic",
        "timeout": 30,
        "max_retries": 5,
        "default_headers": {
            "x-team": "search",
            "anthropic-beta": "one-1, two-2",
            "Anthropic-Version": "2023-06-01",
        },
    }
    found = account(
        "anthropic",
        host="https://ignored.example",
        password="ignored",
        model="claude-sonnet-4-6",
        max_requests=100,
        anthropic_client_kwargs=client,
    )

    assert (found.provider, found.base_url) == ("anthropic", "https://gateway.example/anthropic")
    assert (found.api_key, found.model) == (KEY, "claude-sonnet-4-6")
    assert dict(found.options) == {
        "max_requests": 100,
        "timeout_seconds": 30.0,
        "headers": {"x-team": "search"},
        "betas": ("one-1", "two-2"),
        "api_version": "2023-06-01",
    }


def test_an_anthropic_connection_with_only_a_key_is_enough() -> None:
    found = account("anthropic", platform="", anthropic_client_kwargs="", workload_identity=None)

    assert (found.provider, found.base_url, found.api_key, found.model) == ("anthropic", None, KEY, None)
    assert dict(found.options) == {}


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        ("bedrock", "Amazon Bedrock"),
        ("vertex", "Google Vertex AI"),
        ("foundry", "Microsoft Foundry"),
        ("aws", "Claude Platform on AWS"),
        ("Bedrock", "Amazon Bedrock"),
        ("elsewhere", "elsewhere"),
    ],
)
def test_anthropic_models_elsewhere_are_refused_by_the_platforms_name(platform: str, name: str) -> None:
    assert name in refusal("anthropic", platform=platform, resource="r", aws_region="eu-west-1")


def test_a_federated_identity_is_refused_by_its_name() -> None:
    identity = {"identity_token_file": "/t", "federation_rule_id": "r", "organization_id": "o"}

    assert "workload_identity" in refusal("anthropic", password="", workload_identity=identity)


def test_without_a_key_the_environment_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    assert "no API key" in refusal("anthropic", password="")


# -- pydanticai ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("named", "provider", "model"),
    [
        ("openai:gpt-5", "openai", "gpt-5"),
        ("openai-chat:gpt-5", "openai", "gpt-5"),
        ("openai-responses:gpt-5", "openai", "gpt-5"),
        ("anthropic:claude-sonnet-4-6", "anthropic", "claude-sonnet-4-6"),
        ("google:gemini-2.5-flash", "gemini", "gemini-2.5-flash"),
        ("google-gla:gemini-2.5-flash", "gemini", "gemini-2.5-flash"),
        ("mistral:mistral-small-latest", "mistral", "mistral-small-latest"),
        ("groq:llama-3.3-70b-versatile", "groq", "llama-3.3-70b-versatile"),
        ("openai:ft:gpt-5-mini:team::1", "openai", "ft:gpt-5-mini:team::1"),
        ("openai:", "openai", None),
    ],
)
def test_a_pydanticai_connections_model_says_whose_it_is(
    named: str, provider: str, model: str | None
) -> None:
    found = account("pydanticai", model=named, fallback_conn_ids=["other"])

    assert (found.provider, found.model, found.base_url, found.api_key) == (provider, model, None, KEY)
    assert dict(found.options) == {}


@pytest.mark.parametrize(
    ("named", "host", "provider", "url"),
    [
        ("openai:gpt-5", "https://proxy.example/v1", "openai", "https://proxy.example/v1"),
        ("openai:gpt-5", f"{AZURE}/openai/v1", "azure", f"{AZURE}/openai/v1"),
        ("anthropic:m", "https://gateway.example", "anthropic", "https://gateway.example"),
        ("groq:m", "https://api.groq.com", "groq", "https://api.groq.com/openai/v1"),
        ("groq:m", "https://gateway.example/groq/v1", "groq", "https://gateway.example/groq/v1"),
    ],
)
def test_its_host_is_where_the_provider_is(named: str, host: str, provider: str, url: str) -> None:
    found = account("pydanticai", host=host, model=named)

    assert (found.provider, found.base_url) == (provider, url)


@pytest.mark.parametrize(
    ("extra", "model", "options"),
    [
        ({"model": "azure:gpt-5"}, "gpt-5", {}),
        ({"model": "gpt-5"}, "gpt-5", {}),
        ({}, None, {}),
        ({"model": "ft:gpt-5", "api_version": "2024-10-21"}, "ft:gpt-5", {"api_version": "2024-10-21"}),
    ],
)
def test_common_ais_azure_type_is_azure(extra: JSON, model: str | None, options: JSON) -> None:
    found = account("pydanticai_azure", host=AZURE, **extra)

    assert (found.provider, found.base_url, found.model) == ("azure", AZURE, model)
    assert dict(found.options) == options


def test_common_ais_vertex_type_can_be_the_gemini_api() -> None:
    found = account("pydanticai_vertex", password="", model="google:gemini-2.5-flash", api_key=KEY)

    assert (found.provider, found.model, found.api_key) == ("gemini", "gemini-2.5-flash", KEY)


@pytest.mark.parametrize("named", ["cohere:command-r", "ollama:llama3", "gateway/openai:gpt-5", "gpt-5", ""])
def test_a_model_of_nobody_or_of_somebody_else_is_answered_with_those_that_are_spoken_to(named: str) -> None:
    told = refusal("pydanticai", model=named)

    assert named.partition(":")[0] in told or ":" not in named
    for known in ("openai", "anthropic", "google", "mistral", "groq"):
        assert known in told
    assert "batch_llm" in told


def test_a_pydanticai_connection_may_say_in_our_words_what_its_server_speaks() -> None:
    found = account("pydanticai", host="http://box:8000/v1", model="vllm:qwen", dialect="generic")

    assert (found.provider, found.base_url, found.model) == ("generic", "http://box:8000/v1", "qwen")


@pytest.mark.parametrize("named", ["openai:gpt-5", "anthropic:claude-sonnet-4-6"])
def test_both_hooks_send_the_same_key_to_the_same_address(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not among the tests' own packages: it brings a whole framework along.
    hooks = pytest.importorskip("airflow.providers.common.ai.hooks.pydantic_ai")
    stored = {"conn_type": "pydanticai", "host": "https://proxy.example/v1", "password": KEY}
    monkeypatch.setenv("AIRFLOW_CONN_LLM", json.dumps({**stored, "extra": {"model": named}}))
    theirs: Any = hooks.PydanticAIHook("llm").get_conn()

    ours = account("pydanticai", host="https://proxy.example/v1", model=named)

    assert theirs.model_name == ours.model
    assert theirs.client.api_key == ours.api_key
    assert str(theirs.client.base_url).rstrip("/") == ours.base_url
