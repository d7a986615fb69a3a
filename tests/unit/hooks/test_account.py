"""What a connection may say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_batch_llm.backends import make_backend, providers
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.get_provider_info import get_provider_info
from airflow_batch_llm.hooks.account import ACCEPTED_TYPES, Account, read_account
from airflow_batch_llm.hooks.account_batch_llm import BatchLLMExtra

SECRET = "a-secret-that-must-not-show"


def account(conn_type: str, *, host: str = "", password: str = SECRET, **extra: Any) -> Account:
    connection = Connection(
        conn_id="llm", conn_type=conn_type, host=host, password=password, extra=json.dumps(extra)
    )
    return read_account(connection, extra)


def refusal(conn_type: str, **fields: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        account(conn_type, **fields)
    assert SECRET not in repr(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("conn_type", "host", "extra"),
    [
        ("batch_llm", f"https://user:{SECRET}@gateway.example/v1", {}),
        ("batch_llm", f"https://{SECRET}@gateway.example/v1", {}),
        ("batch_llm", f"https://user:x/{SECRET}@gateway.example/v1", {}),
        ("openai", f"https://user:{SECRET}@gateway.example/v1", {}),
        ("openai", "", {"openai_client_kwargs": {"base_url": f"https://user:{SECRET}@gateway.example/v1"}}),
        ("pydanticai", f"https://user:{SECRET}@gateway.example/v1", {"model": "openai:m-1"}),
    ],
)
def test_a_secret_in_the_address_is_refused_and_not_repeated(
    conn_type: str, host: str, extra: dict[str, object]
) -> None:
    connection = Connection(
        conn_id="llm", conn_type=conn_type, host=host, password="key", extra=json.dumps(extra)
    )
    with pytest.raises(ConfigurationError, match="'llm'.*password field") as caught:
        read_account(connection, extra)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


# -- the form --------------------------------------------------------------------------------------
def test_the_form_offers_every_provider_and_asks_for_every_field() -> None:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]

    assert fields["dialect"]["schema"]["enum"] == list(providers())
    assert set(fields) == set(BatchLLMExtra.model_fields)


@pytest.mark.parametrize("name", list(providers()))
def test_every_provider_can_be_chosen_in_the_form(name: str) -> None:
    row = providers()[name]
    found = account("batch_llm", host=row.example_url if row.base_url is None else "", dialect=name)

    backend = make_backend(
        found.provider, base_url=found.base_url, api_key=found.api_key, options=found.options
    )
    assert backend.provider == name


def test_the_fields_of_the_form_are_options_of_the_backend() -> None:
    found = account(
        "batch_llm", host="https://host", dialect="gemini", api_version="v1", auth="bearer", inline="true",
        timeout="7",
    )  # fmt: skip

    assert dict(found.options) == {
        "api_version": "v1",
        "auth": "bearer",
        "inline": True,
        "timeout_seconds": 7.0,
    }
    make_backend("gemini", base_url=None, api_key="k", options=found.options)
    betas = account("batch_llm", dialect="anthropic", betas="a-1, b-2")
    assert dict(betas.options) == {"betas": ("a-1", "b-2")}


def test_fields_that_were_left_empty_are_not_there() -> None:
    empty = dict.fromkeys(BatchLLMExtra.model_fields, "")

    found = account("batch_llm", host=" ", **empty)

    assert (found.provider, found.base_url, found.model, dict(found.options)) == ("openai", None, None, {})


@pytest.mark.parametrize("field", ["api_version", "auth"])
def test_a_value_that_a_field_cannot_have_is_told_by_the_fields_name(field: str) -> None:
    told = refusal("batch_llm", **{field: f"{SECRET}?x=1"})

    assert field in told and "'llm'" in told


# -- types -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("conn_type", ["http", "pydanticai_bedrock", "pydanticai_snowflake", "aws", ""])
def test_a_type_that_is_not_accepted_is_answered_with_those_that_are(conn_type: str) -> None:
    told = refusal(conn_type)

    for accepted in ACCEPTED_TYPES:
        assert accepted in told


def test_a_platform_of_others_is_refused_by_its_name() -> None:
    assert "Amazon Bedrock" in refusal(
        "pydanticai_bedrock", model="bedrock:us.anthropic.claude-opus-4-6-v1:0"
    )
    assert "Vertex AI" in refusal("pydanticai_vertex", model="google-cloud:gemini-2.5-flash", api_key=SECRET)
    assert "Vertex AI" in refusal("pydanticai_vertex", model="gemini-2.5-flash")
    assert "Vertex AI" in refusal("pydanticai", model="google-vertex:gemini-2.5-flash")


# -- openai ----------------------------------------------------------------------------------------
def test_an_openai_connection_of_another_auth_type_is_refused() -> None:
    assert "workload_identity" in refusal("openai", auth_type="workload_identity")
