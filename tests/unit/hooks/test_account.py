"""What a connection may say."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Connection

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.hooks.account import read_account

SECRET = "a-secret-that-must-not-show"


@pytest.mark.parametrize(
    ("conn_type", "host", "extra"),
    [
        ("batch_llm", f"https://user:{SECRET}@gateway.example/v1", {}),
        ("batch_llm", f"https://{SECRET}@gateway.example/v1", {}),
        ("batch_llm", f"https://user:x/{SECRET}@gateway.example/v1", {}),
        ("openai", f"https://user:{SECRET}@gateway.example/v1", {}),
        ("openai", "", {"openai_client_kwargs": {"base_url": f"https://user:{SECRET}@gateway.example/v1"}}),
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
