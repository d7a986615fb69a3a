from __future__ import annotations

import argparse
from pathlib import Path

import httpx
import pytest

from airflow_batch_llm.cli import serve
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.server.settings import ApiKey, ServerSettings, is_loopback, resolve_key
from tests.unit.server.api import Api

KEY = "BATCH_LLM_SERVER_KEY"


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "test-key", "Basic test-key", "Bearer test-keyé"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/admin/charges", "/nowhere"])
def test_nothing_is_answered_without_the_key(api: Api, path: str, header: str | None) -> None:
    headers = {} if header is None else {b"Authorization": header.encode("utf-8")}
    reply = httpx.get(f"http://127.0.0.1:{api.server.port}{path}", headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert reply.headers["x-request-id"].startswith("req_")


def test_health_needs_no_key(api: Api) -> None:
    assert httpx.get(f"http://127.0.0.1:{api.server.port}/health").json() == {"status": "ok"}


def test_the_key_comes_from_the_argument_then_the_environment_then_is_made(monkeypatch) -> None:
    monkeypatch.setenv(KEY, "from-env")
    assert resolve_key("given") == ApiKey("given", "--api-key")
    assert resolve_key(None) == ApiKey("from-env", KEY)
    monkeypatch.delenv(KEY)
    made, other = resolve_key(None), resolve_key(None)
    assert not made.explicit and made.value != other.value and len(made.value) > 24
    assert made.value not in repr(made)


@pytest.mark.parametrize("key", ["", "with space ", "ключ", "line\nbreak"])
def test_a_key_that_cannot_be_a_header_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError):
        resolve_key(key)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_other_machines_are_served_only_with_a_key_somebody_chose(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match="--api-key"):
        ServerSettings(tmp_path, ApiKey("x", "generated"), host=host).check()
    ServerSettings(tmp_path, ApiKey("x", "--api-key"), host=host).check()


def test_loopback_is_127_anything_and_ipv6_one() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))


def test_the_command_refuses_to_listen_everywhere_with_a_made_up_key(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.delenv(KEY, raising=False)
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    args = parser.parse_args(["serve", "--host", "0.0.0.0", "--port", "0", "--dir", str(tmp_path)])
    assert args.run(args) == 2
    assert "BLLM-001" in capsys.readouterr().err


def test_the_command_names_a_wrong_scenario(tmp_path, capsys) -> None:
    file = tmp_path / "s.json"
    file.write_text('{"rows": [{"fault": "nothing"}]}')
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    args = parser.parse_args(["serve", "--port", "0", "--dir", str(tmp_path / "d"), "--scenario", str(file)])
    assert args.run(args) == 2
    assert "rows.0.fault" in capsys.readouterr().err
