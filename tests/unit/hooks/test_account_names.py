"""What a connection says is heard, or it is said that it is not."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.hooks.account import Account, read_account
from airflow_batch_llm.hooks.account_batch_llm import BatchLLMExtra
from airflow_batch_llm.hooks.batch_llm import BatchLLMHook, backend_of, connection_defaults

KEY = "a-secret-that-must-not-show"
JSON = dict[str, Any]


def account(conn_type: str = "batch_llm", *, conn_id: str = "llm", **extra: Any) -> Account:
    return connection_defaults(
        Connection(conn_id=conn_id, conn_type=conn_type, password=KEY, extra=json.dumps(extra))
    )


def refusal(connection: Connection) -> str:
    with pytest.raises(ConfigurationError) as caught:
        connection_defaults(connection)
    assert KEY not in repr(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert "'llm'" in str(caught.value)
    return str(caught.value)


def refused(extra: JSON) -> str:
    return refusal(Connection(conn_id="llm", conn_type="batch_llm", password="key", extra=json.dumps(extra)))


# -- connections of our own type -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dialekt", "is 'dialect' meant?"),
        ("Dialect", "is 'dialect' meant?"),
        ("max-requests", "is 'max_requests' meant?"),
        ("timeout_seconds", "is 'timeout' meant?"),
        ("provider", "is 'dialect' meant?"),
        ("api_key", "password field"),
        ("base_url", "host field"),
    ],
)
def test_a_field_that_nothing_reads_is_refused_with_the_one_that_is_meant(name: str, hint: str) -> None:
    told = refused({name: KEY, "model": "m-1"})

    assert repr(name) in told and hint in told
    for known in BatchLLMExtra.model_fields:
        assert known in told


def test_all_fields_that_nothing_reads_are_told_at_once() -> None:
    told = refused({"dialekt": "groq", "zzz": 1, "model": "m-1"})

    assert "'dialekt' (is 'dialect' meant?), 'zzz'." in told


def test_a_field_name_that_may_be_a_key_is_not_shown() -> None:
    assert "name is not shown" in refused({f"sk-{KEY}-{KEY}": "x"})
    assert "name is not shown" in refused({"a b\nc": "x"})


@pytest.mark.parametrize("empty", ["", "  ", None, {}, []])
def test_a_field_that_nothing_reads_says_nothing_when_it_is_empty(empty: Any) -> None:
    assert account(dialekt=empty, openai_client_kwargs=empty, dialect="groq").provider == "groq"


def test_parameters_of_an_address_are_fields() -> None:
    address = f"batch-llm://:{KEY}@/?dialect=groq&model=m-1&max_requests=7&organization="

    found = connection_defaults(Connection(conn_id="llm", uri=address))

    assert (found.provider, found.model, dict(found.options)) == ("groq", "m-1", {"max_requests": 7})
    assert "'dialect' meant" in refusal(Connection(conn_id="llm", uri=f"batch-llm://:{KEY}@/?dialekt=groq"))


def test_what_airflow_writes_of_a_connection_is_read_as_the_connection_was() -> None:
    extra = json.dumps({"dialect": "gemini", "inline": True, "model": "m-1"})
    stored = Connection(conn_id="llm", conn_type="batch_llm", password=KEY, extra=extra)

    again = Connection.from_json(stored.as_json(), conn_id="llm")
    assert connection_defaults(again) == connection_defaults(stored)
    by_address = Connection(conn_id="llm", uri=stored.get_uri())
    assert connection_defaults(by_address) == connection_defaults(stored)


def test_names_as_older_forms_wrote_them_are_read() -> None:
    old: JSON = {"extra__batch_llm__dialect": "groq", "extra__batch_llm__model": "m-1"}

    assert (account(**old).provider, account(**old).model) == ("groq", "m-1")
    assert account(**old, model="m-1", dialect="").provider == "groq"
    assert account(**{**old, "extra__batch_llm__model": ""}, model="m-2").model == "m-2"
    assert "two values for 'model'" in refused({**old, "model": "m-2"})
    assert "'dialect' meant" in refused({"extra__batch_llm__dialekt": "groq"})


@pytest.mark.parametrize("conn_type", ["batch_llm", "openai", "anthropic", "pydanticai"])
@pytest.mark.parametrize("extra", ['{"dialect": "groq"', "dialect=groq", '["groq"]', '"groq"', "7"])
def test_an_extra_that_is_no_object_is_refused(conn_type: str, extra: str) -> None:
    told = refusal(Connection(conn_id="llm", conn_type=conn_type, password=KEY, extra=extra))

    assert "not a JSON object" in told


@pytest.mark.parametrize("extra", [None, "", "  ", "{}", "null"])
def test_an_extra_may_be_empty(extra: str | None) -> None:
    found = connection_defaults(Connection(conn_id="llm", conn_type="batch_llm", password=KEY, extra=extra))

    assert (found.provider, dict(found.options)) == ("openai", {})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"login": KEY}, "'login'.*password field"),
        ({"port": 8000}, "'port'"),
        ({"host": "https://box:8000/v1", "port": 9000}, "'port'"),
        ({"host": "https://box/v1", "schema": "v2"}, "'schema'"),
        ({"host": "box", "schema": "https"}, "'schema'"),
    ],
)
def test_a_value_in_a_field_that_the_form_hides_is_refused(fields: JSON, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        connection_defaults(Connection(conn_id="llm", conn_type="batch_llm", password="key", **fields))
    assert KEY not in str(caught.value)


def test_a_port_that_the_address_names_too_is_no_contradiction() -> None:
    connection = Connection(
        conn_id="llm", conn_type="batch_llm", password=KEY, host="http://box:8000/v1", port=8000
    )

    assert connection_defaults(connection).base_url == "http://box:8000/v1"


# -- connections of others -------------------------------------------------------------------------
@pytest.mark.parametrize("conn_type", ["openai", "anthropic", "pydanticai"])
def test_what_others_keep_in_their_connections_is_nobodys_fault(
    conn_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {
        "max_retries": 3, "timeout": 5, "platform_name": "x", "region": "eu", "fallback_conn_ids": ["b"],
        "serialized_model": True, "requests": 1, "bytes": 2, "openai_client_kwargs": {"max_retries": 3},
        "azure_endpoint": "https://r.openai.azure.com", "api_version": "2024-10-21", "api_type": "azure",
        "anthropic_client_kwargs": {"max_retries": 3}, "aws_region": "eu", "project_id": "p", "resource": "r",
        "base_url": "https://r.openai.azure.com", "max_tokens": 5, "model_id": "m", "max_concurrency": 3,
    }  # fmt: skip

    with caplog.at_level(logging.WARNING):
        account(conn_type, conn_id=f"theirs-{conn_type}", model="openai:m-1", **theirs)

    assert caplog.messages == []


@pytest.mark.parametrize("conn_type", ["openai", "anthropic", "pydanticai"])
def test_a_field_of_ours_that_is_misspelt_there_is_told_once(
    conn_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        account(conn_type, conn_id=f"misspelt-{conn_type}", model="openai:m-1", dialekt=KEY, max_request="")

    (told,) = caplog.messages
    assert f"'misspelt-{conn_type}'" in told and "'dialekt'" in told and "is 'dialect' meant?" in told
    assert KEY not in told


@pytest.mark.parametrize(
    ("name", "meant"),
    [("modle", "model"), ("modell", "model"), ("max_byte", "max_bytes"), ("max_reqeusts", "max_requests")],
)
def test_small_slips_are_told_there(name: str, meant: str, caplog: pytest.LogCaptureFixture) -> None:
    account("openai", conn_id=f"slip-{name}", **{name: "m-1"})

    (told,) = caplog.messages
    assert repr(name) in told and f"is {meant!r} meant?" in told


def test_parameters_of_calls_that_are_not_sent_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    azure = {"azure_endpoint": "https://r.openai.azure.com", "default_query": {"api-version": "2024-10-21"}}
    account("openai", conn_id="version", openai_client_kwargs=azure)
    assert caplog.messages == []

    for _ in range(2):
        account("openai", conn_id="query", openai_client_kwargs={"default_query": {"team": KEY}})

    (told,) = caplog.messages
    assert "'query'" in told and "default_query" in told and KEY not in told


def test_a_team_is_sent_to_another_provider_as_openais_client_sends_it() -> None:
    client = {"organization": "org-1", "project": "p-1", "default_headers": {"x-team": "search"}}

    groq = account("openai", dialect="groq", openai_client_kwargs=client)

    assert dict(groq.options) == {
        "headers": {"OpenAI-Organization": "org-1", "OpenAI-Project": "p-1", "x-team": "search"}
    }
    sent: Any = backend_of(groq)
    assert sent._client.headers_for(sent._client.base_url)["OpenAI-Organization"] == "org-1"


def test_a_header_that_its_client_sends_in_place_of_the_team_is_the_one_that_is_sent() -> None:
    client = {"organization": "org-1", "default_headers": {"openai-organization": "org-2"}}

    found = account("openai", dialect="groq", openai_client_kwargs=client)

    assert dict(found.options) == {"headers": {"openai-organization": "org-2"}}


def test_at_openai_a_team_is_an_option() -> None:
    client = {"organization": "org-1", "project": "p-1"}

    assert dict(account("openai", openai_client_kwargs=client).options) == client


def test_headers_of_anthropics_api_stay_headers_where_another_is_spoken() -> None:
    client = {
        "base_url": "http://box:8000/v1", "auth_token": KEY,
        "default_headers": {"anthropic-version": "2023-06-01", "anthropic-beta": "a-1"},
    }  # fmt: skip
    connection = Connection(
        conn_id="llm",
        conn_type="anthropic",
        extra=json.dumps({"dialect": "generic", "anthropic_client_kwargs": client}),
    )

    found = connection_defaults(connection)

    assert dict(found.options) == {"headers": client["default_headers"]}
    assert backend_of(found).provider == "generic"


# -- options that a provider lacks -----------------------------------------------------------------
def test_an_option_that_the_provider_lacks_is_told_with_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = {"conn_type": "batch_llm", "password": KEY, "extra": {"dialect": "groq", "inline": True}}
    monkeypatch.setenv("AIRFLOW_CONN_LLM", json.dumps(stored))

    with pytest.raises(ConfigurationError) as caught:
        BatchLLMHook("llm").make_backend()

    assert "connection 'llm': provider 'groq' has no option 'inline'" in str(caught.value)
    assert str(caught.value).count("BLLM-001") == 1
    ok, told = BatchLLMHook("llm").test_connection()
    assert not ok and "'inline'" in told


def test_a_form_that_was_stored_whole_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    form: JSON = {
        **dict.fromkeys(BatchLLMExtra.model_fields),
        "dialect": "groq",
        "inline": False,
        "betas": "",
    }
    stored = {"conn_type": "batch_llm", "password": KEY, "extra": form}
    monkeypatch.setenv("AIRFLOW_CONN_LLM", json.dumps(stored))

    assert BatchLLMHook("llm").make_backend().provider == "groq"


def test_an_unknown_dialect_is_told_with_the_connection() -> None:
    told = refused({"dialect": "gorq"})
    assert "(is 'groq' meant?)" in told and "known providers are" in told


def test_an_extra_that_airflow_could_not_read_is_found_where_it_is_given_apart() -> None:
    connection = Connection(conn_id="llm", conn_type="batch_llm", password=KEY, extra="{dialect: groq}")

    with pytest.raises(ConfigurationError, match="JSON object"):
        read_account(connection, {})
