"""An option that would do nothing at a provider is refused there, by its name."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend, providers
from airflow_batch_llm.backends.options import COMMON, IN_CODE, PARTICULAR, BackendOptions
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.get_provider_info import get_provider_info

#: A value of each option that only some take, and what stands for not giving it.
VALUES: dict[str, Any] = {
    "organization": "org-1", "project": "p-1", "input_expiry_seconds": 1_500_000,
    "output_expiry_seconds": 1_500_000, "completion_window": "24h", "api_version": "v1", "betas": ("b-1",),
    "auth": "bearer", "inline": True,
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "organization": None, "project": "", "input_expiry_seconds": 0, "output_expiry_seconds": 0,
    "completion_window": None, "api_version": None, "betas": (), "auth": None, "inline": False,
}  # fmt: skip
COMMON_VALUES: dict[str, Any] = {
    "headers": {"x-a": "1"}, "max_requests": 3, "max_bytes": 5_000, "max_line_bytes": 100,
    "connect_timeout_seconds": 1.0, "timeout_seconds": 2.0, "transfer_timeout_seconds": 3.0,
    "create_timeout_seconds": 4.0, "max_retries": 0, "retry_budget_seconds": 0.0,
}  # fmt: skip
KNOWN_VERSIONS = {
    "azure": ("v1", "preview", "Latest", "2024-10-21", "2025-04-01-preview", "2031-01-01-preview"),
    "anthropic": ("2023-06-01", "2026-10-21", "2031-01-01"),
    "gemini": ("v1", "v1beta", "v1alpha", "v1beta2", "v2", "v3alpha1"),
}
NO_VERSIONS = {
    "azure": ("v", "2024", "2024-10", "20241021", "1.0", "beta", "2024-10-21-", "v1beta"),
    "anthropic": ("v1", "2023-6-1", "latest", "2023-06-01-preview"),
    "gemini": ("1", "beta", "v", "2024-10-21", "v1beta-2", "latest"),
}


def made(provider: str, **options: Any) -> Any:
    return make_backend(provider, base_url="http://host:1/v1", api_key="k", options=options)


def test_every_option_is_common_or_has_its_takers() -> None:
    taken = {name for row in providers().values() for name in row.options}

    assert set(VALUES) == set(NOTHING) == set(PARTICULAR) == taken
    assert set(COMMON_VALUES) == COMMON
    assert COMMON | set(PARTICULAR) == set(BackendOptions.model_fields)
    form = get_provider_info()["connection-types"][0]["conn-fields"]
    assert set(PARTICULAR) - IN_CODE == set(PARTICULAR) & set(form)


@pytest.mark.parametrize("provider", providers())
@pytest.mark.parametrize("name", PARTICULAR)
def test_an_option_is_taken_or_refused_by_its_name(provider: str, name: str) -> None:
    made(provider, **{name: NOTHING[name]})
    value = (
        KNOWN_VERSIONS[provider][0] if name == "api_version" and provider in KNOWN_VERSIONS else VALUES[name]
    )
    if name in providers()[provider].options:
        version = {"api_version": "2025-04-01"} if provider == "azure" and "expiry" in name else {}
        made(provider, **{name: value, **version})
        return
    with pytest.raises(ConfigurationError, match=f"provider '{provider}' has no option '{name}'") as caught:
        made(provider, **{name: value})
    assert all(own in str(caught.value) for own in providers()[provider].fields)


@pytest.mark.parametrize("provider", providers())
def test_every_provider_takes_the_common_options(provider: str) -> None:
    made(provider, **COMMON_VALUES)


@pytest.mark.parametrize(
    ("provider", "version"), [(name, one) for name, all_ in KNOWN_VERSIONS.items() for one in all_]
)
def test_a_version_that_looks_like_one_is_taken_also_one_of_tomorrow(provider: str, version: str) -> None:
    made(provider, api_version=version)


@pytest.mark.parametrize(
    ("provider", "version"), [(name, one) for name, all_ in NO_VERSIONS.items() for one in all_]
)
def test_a_version_that_cannot_be_one_is_refused_with_what_one_looks_like(
    provider: str, version: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(provider, api_version=version)
    told = str(caught.value)
    assert f"option 'api_version' of provider '{provider}' must be" in told and "such as" in told


@pytest.mark.parametrize("provider", ["openai", "ogx", "azure"])
def test_a_window_that_the_provider_does_not_have_is_refused(provider: str) -> None:
    made(provider, completion_window="24h")
    with pytest.raises(ConfigurationError, match="'completion_window'.* must be 24h"):
        made(provider, completion_window="7d")


@pytest.mark.parametrize("name", ["input_expiry_seconds", "output_expiry_seconds"])
def test_azures_older_versions_refuse_an_expiry_that_they_cannot_be_told(name: str) -> None:
    made("azure", **{name: 1_500_000}, api_version="2025-03-01-preview")
    made("azure", **{name: 0}, api_version="2024-10-21")
    with pytest.raises(ConfigurationError, match=f"'{name}'.*2025-03-01"):
        made("azure", **{name: 1_500_000}, api_version="2024-10-21")
