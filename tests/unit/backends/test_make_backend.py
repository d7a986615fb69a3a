"""Making a backend from a connection's values: defaults, limits, and errors that say what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.backends.openai import OpenAIBackend
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.exceptions import ConfigurationError


def make(
    provider: str = "openai", base_url: str | None = None, key: str = "key-1", **options: Any
) -> Backend:
    return make_backend(provider, base_url=base_url, api_key=key, options=options)


def headers(backend: Backend) -> dict[str, str]:
    assert isinstance(backend, OpenAIBackend)
    return backend._client.headers_for(backend._client.base_url)


def test_openai_needs_only_a_key() -> None:
    backend = make()
    assert backend.provider == "openai"
    assert (backend.limits.max_requests, backend.limits.max_bytes) == (50_000, 200_000_000)
    assert headers(backend) == {"Authorization": "Bearer key-1"}


def test_organization_project_and_further_headers_are_sent() -> None:
    sent = headers(make(organization="org-1", project="proj-1", headers={"X-Team": "data"}))
    assert sent["OpenAI-Organization"] == "org-1"
    assert sent["OpenAI-Project"] == "proj-1"
    assert sent["X-Team"] == "data"


def test_limits_can_be_set_and_a_line_is_never_longer_than_a_batch() -> None:
    limits = make("generic", "http://host:1/v1", max_requests=3, max_bytes=700).limits
    assert (limits.max_requests, limits.max_bytes, limits.max_line_bytes) == (3, 700, 700)


def test_a_server_without_keys_gets_none() -> None:
    assert headers(make("generic", "http://host:1/v1", key="")) == {}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"provider": "opneai"}, "generic, .*openai"),
        ({"provider": "generic"}, "base URL"),
        ({"key": ""}, "API key"),
        ({"key": "  "}, "API key"),
        ({"key": "schl\u00fcssel"}, "Authorization"),
        ({"key": "a\nb"}, "Authorization"),
        ({"base_url": "api.openai.com/v1"}, "http"),
        ({"base_url": "ftp://host/v1"}, "http"),
        ({"base_url": "http://host/v1?key=1"}, "query"),
        ({"base_url": "http://host:port/v1"}, "URL"),
        ({"base_url": "https://user:schluessel@host/v1"}, "password"),
        ({"base_url": "https://schluessel@host/v1"}, "password"),
        ({"base_url": "https://user:schl/uessel@host/v1"}, "password"),
        ({"base_url": "https://user:schluessel"}, "URL"),
        ({"max_request": 3}, "max_request"),
        ({"max_requests": 0}, "max_requests"),
        ({"timeout_seconds": "soon"}, "timeout_seconds"),
        ({"input_expiry_seconds": 60}, "input_expiry_seconds"),
        ({"output_expiry_seconds": 10**9}, "output_expiry_seconds"),
    ],
)
def test_what_cannot_work_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        make(**arguments)
    # Airflow logs the causes, too.
    assert "schl" not in str(caught.value) and caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_expiry_can_be_left_to_the_provider() -> None:
    make(input_expiry_seconds=0, output_expiry_seconds=0)


@pytest.mark.parametrize("name", ["authorization", "AUTHORIZATION"])
def test_a_key_is_sent_once_however_a_further_header_is_written(name: str) -> None:
    assert headers(make(headers={name: "Bearer old"})) == {"Authorization": "Bearer key-1"}


@pytest.mark.parametrize(
    "sent",
    [{"X-A\r\nX-B": "1"}, {"X A": "1"}, {"": "1"}, {"X-A": "1\r\nX-B: 2"}, {"X-A": " 1"}, {"X-A": "ä"}],
)
def test_a_header_that_cannot_be_sent_is_told_before_any_call(sent: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="header"):
        make(headers=sent)
