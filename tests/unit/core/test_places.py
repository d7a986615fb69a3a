"""When an address, or an account, is another one: told by table."""

from __future__ import annotations

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.model import Place
from airflow_batch_llm.core.places import place_at, what_moved


def place(provider: str, url: str, key: str = "k-1", **options: object) -> Place:
    return place_at(make_backend(provider, base_url=url, api_key=key, options=options))


@pytest.mark.parametrize(
    ("provider", "one", "other"),
    [
        ("openai", "https://api.openai.com/v1", " HTTPS://API.OpenAI.com:443/v1/ "),
        ("generic", "http://proxy:4000/v1", "http://proxy:4000"),
        ("generic", "http://proxy/llm/v1", "http://proxy:80//llm/v1/"),
        ("generic", "http://proxy/v1", "https://proxy/v1"),
        ("generic", "https://proxy.internal/v1", "https://proxy.internal./v1"),
        ("anthropic", "https://api.anthropic.com", "https://api.anthropic.com/v1/"),
        ("gemini", "https://host/gemini", "https://host/gemini/v1beta"),
        ("mistral", "https://api.mistral.ai", "https://api.mistral.ai/v1"),
        ("azure", "https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1/"),
    ],
)
def test_the_same_server_written_otherwise_is_the_same(provider: str, one: str, other: str) -> None:
    assert what_moved(place(provider, one), place(provider, other)) is None
    assert what_moved(place(provider, other), place(provider, one)) is None


def test_both_ways_to_speak_to_an_azure_resource_lead_to_the_same_batches() -> None:
    url = "https://r.openai.azure.com"
    assert what_moved(place("azure", url), place("azure", url, api_version="2025-03-01-preview")) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://proxy-a:4000/v1", "http://proxy-b:4000/v1"),
        ("http://proxy:4000/v1", "http://proxy:4001/v1"),
        ("http://proxy/team-a/v1", "http://proxy/team-b/v1"),
        ("http://proxy/Team/v1", "http://proxy/team/v1"),
        ("http://proxy/openai/v1", "http://proxy/v1"),
    ],
)
def test_another_host_port_or_path_is_told_with_both_addresses(one: str, other: str) -> None:
    before, now = place("generic", one), place("generic", other)
    assert what_moved(before, now) == f"its address was {before.address!r} and is {now.address!r}"


URL = "https://host/v1"


@pytest.mark.parametrize("provider", ["openai", "azure", "anthropic", "gemini", "mistral"])
def test_another_key_is_another_account_and_is_not_named(provider: str) -> None:
    before, now = place(provider, URL, "sk-first"), place(provider, URL, "sk-second")
    told = what_moved(before, now)
    assert told is not None and "another key" in told and "sk-" not in told
    assert "sk-" not in before.account and len(before.account) == 8
    assert what_moved(before, place(provider, URL, " sk-first ")) is None


@pytest.mark.parametrize(
    "options",
    [{"project": "p-2"}, {"organization": "o-2"}, {"headers": {"openai-PROJECT": "p-2"}}],
)
def test_another_project_or_organization_is_another_account(options: dict[str, object]) -> None:
    assert what_moved(place("openai", URL), place("openai", URL, **options)) is not None


def test_what_tells_no_accounts_apart_changes_nothing() -> None:
    plain = place("openai", URL)
    assert what_moved(plain, place("openai", URL, headers={"x-trace": "on"}, max_requests=3)) is None
    assert (
        what_moved(place("openai", URL, project="p"), place("openai", URL, headers={"OpenAI-Project": "p"}))
        is None
    )


def test_tokens_that_change_by_the_hour_and_calls_without_a_key_tell_nothing() -> None:
    token = place("azure", URL, "token-1", auth="bearer")
    assert token.account == place("generic", URL, "").account == ""
    assert what_moved(token, place("azure", URL, "token-2", auth="bearer")) is None
    assert what_moved(token, place("azure", URL, "key")) is None


def test_of_a_batch_from_before_nothing_is_known() -> None:
    assert what_moved(None, place("openai", URL)) is None
