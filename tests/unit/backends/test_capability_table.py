"""The capability table: what it says of a provider is what the provider's code does, and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.backends import providers
from airflow_batch_llm.backends.capabilities import Capabilities, capabilities_of
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.cli.main import main
from airflow_batch_llm.cli.providers import described
from airflow_batch_llm.core.endpoints import EMBEDDINGS, ENDPOINTS
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.exceptions import Refused

ALL = list(providers().values())
BOTH = ("address", "data")
#: Protocol -> what its chats can hold.
KNOWN = {
    "openai": Capabilities("response_format", True, BOTH, ""),
    "azure": Capabilities("response_format", True, BOTH, ""),
    "anthropic": Capabilities("output_config", True, BOTH, "system.cache_control"),
    "gemini": Capabilities(
        "generationConfig.responseMimeType, generationConfig.responseSchema", True, ("data",), ""
    ),
    "mistral": Capabilities("response_format", True, BOTH, ""),
}


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_the_table_says_of_each_protocol_what_its_requests_can_hold(row: Provider) -> None:
    assert capabilities_of(row) == KNOWN[row.protocol]


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_a_provider_that_was_never_run_against_its_service_says_so(row: Provider) -> None:
    told = described(row)["tested"]

    assert told.startswith("wire-tested against the local server")
    for server in row.wire_tested:
        assert server in told
    if row.live_tested:
        assert row.live_tested in told
    else:
        assert told.endswith("; not yet against the live service")


def test_what_was_tested_is_told_in_one_sentence() -> None:
    row = replace(ALL[0], wire_tested=("OGX", "LLMock"), live_tested="")

    assert row.tested == (
        "wire-tested against the local server, OGX and LLMock; not yet against the live service"
    )
    assert replace(row, wire_tested=("OGX",), live_tested="2026-12").tested == (
        "wire-tested against the local server and OGX; live 2026-12"
    )


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_every_row_is_whole(row: Provider) -> None:
    assert row.title
    assert row.base_url or row.example_url.startswith("http")
    assert row.endpoints and row.endpoints <= set(ENDPOINTS.values())
    assert row.limits.max_line_bytes <= row.limits.max_bytes
    assert all(note.endswith(".") for note in row.notes)
    assert row.found_by == (row.mark if row.marks_batches else "time, count and ids of its rows")


class Choosy:
    """A backend whose requests hold neither tools nor images nor a schema, and mark their prefix."""

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        if template.output_schema is not None:
            raise Refused("no schema", reason="output_schema")

        def encode(wire_id: str, body: bytes) -> bytes:
            asked = json.loads(body)
            if "tools" in asked or isinstance(asked["messages"][0]["content"], list):
                raise Refused("text only", reason="content")
            text: dict[str, Any] = {"text": "x"}
            if template.cache_prefix:
                text["kept"] = {"for": "1h"}
            return json.dumps({"id": wire_id, "body": {"parts": [text]}}).encode()

        return encode


def test_what_an_encoder_refuses_or_adds_is_found_by_asking_it() -> None:
    row = replace(ALL[0], build=lambda *_: Choosy())  # type: ignore[arg-type, return-value]

    assert capabilities_of(row) == Capabilities("", False, (), "parts.kept")
    assert capabilities_of(replace(row, endpoints=frozenset({EMBEDDINGS}))) == Capabilities("", False, (), "")


# -- the command -----------------------------------------------------------------------------------
def test_the_command_lists_every_provider_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *providers()]


def test_the_command_tells_all_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    row = providers()["openai"]
    assert main(["providers", "openai"]) == 0

    told = capsys.readouterr().out
    assert row.tested in told and row.base_url is not None and row.base_url in told
    for note in row.notes:
        assert note in told


def test_the_command_tells_which_options_a_provider_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers", "anthropic"]) == 0
    told = capsys.readouterr().out
    assert "api_version (a date, such as 2023-06-01), betas, auth" in told

    assert described(providers()["groq"])["options"] == {"completion_window": None}
    assert described(providers()["mistral"])["options"] == {"completion_window": None, "inline": None}
    assert described(providers()["ogx"])["options"] == {"completion_window": "24h"}


def test_programs_read_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["providers", "--json", "openai"]) == 0
    one = json.loads(capsys.readouterr().out)

    assert [row["name"] for row in rows] == list(providers())
    assert one == rows[0] == json.loads(json.dumps(described(providers()["openai"])))
    assert one["limits"]["max_requests"] == 50_000
    assert one["capabilities"] == {
        "schema": "response_format",
        "tools": True,
        "images": list(BOTH),
        "prefix": "",
    }


def test_a_provider_that_there_is_not_is_answered_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["providers", "acme"]) == 2
    told = capsys.readouterr().err
    assert "acme" in told and "openai" in told


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("antropic", "anthropic"),
        ("Claude", "anthropic"),
        ("google", "gemini"),
        ("vertex", "gemini"),
        ("azure_openai", "azure"),
        ("azure-openai", "azure"),
        ("OpenAI", "openai"),
        ("llmd", "llm-d"),
        ("zzz", None),
    ],
)
def test_a_name_that_is_none_is_answered_with_the_one_that_is_meant(
    capsys: pytest.CaptureFixture[str], name: str, meant: str | None
) -> None:
    assert main(["providers", name]) == 2
    told = capsys.readouterr().err
    assert (f"is {meant!r} meant?" in told) if meant else ("meant" not in told)
