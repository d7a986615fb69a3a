"""``make live`` with the local server in the place of the services, so that it works once a key is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_batch_llm.backends import providers
from tests.job_bench import QUICK
from tests.live.__main__ import FAILED, OK, UNFINISHED, WRONG, main
from tests.live.differences import differences
from tests.live.recording import Recording
from tests.live.reference import SCENARIO, local, references_of
from tests.live.report import report
from tests.live.rows import PARTS
from tests.live.services import Service, services
from tests.live.trial import Trial, run_to_the_end
from tests.local_server import LocalServer

KEY = "a-key-that-must-not-show"
PROTOCOLS = ("openai", "azure", "anthropic", "gemini", "mistral")
CREATES = r"/batches|/batch/jobs|:batchGenerateContent"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server"), api_key=KEY) as server:
        yield server


@pytest.fixture
def server(running: LocalServer) -> Iterator[LocalServer]:
    running.set_scenario(SCENARIO)
    yield running
    running.release()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """What the local server shows over OpenAI's protocol."""
    return references_of(services({"LIVE_ONLY": "openai"}), tmp_path_factory.mktemp("live"))["openai"]


def environment(server: LocalServer, folder: Path, *names: str, **more: str) -> dict[str, str]:
    """Return the variables that name the server as these services."""
    found = {"LIVE_ONLY": ",".join(names), "LIVE_DIR": str(folder), **more}
    for name in names:
        stem = "AZURE_OPENAI" if name == "azure" else name.upper()
        found |= {f"{stem}_API_KEY": KEY, f"LIVE_{name.upper()}_URL": server.url_of(name)}
    return {"AZURE_OPENAI_DEPLOYMENT": "gpt-4.1-nano", **found}


def creates(server: LocalServer) -> int:
    return sum(bool(re.search(f"({CREATES})$", call["path"])) for call in server.requests("POST"))


def openai(server: LocalServer) -> Service:
    return local(services({"LIVE_ONLY": "openai"})[0], server)


def trial_of(service: Service, folder: Path) -> Trial:
    """Run a trial to its end."""
    trial = Trial(service, folder, QUICK)
    run_to_the_end([trial], seconds=60, pause=0.05)
    assert trial.done
    trial.close()
    return trial


# -- a run -----------------------------------------------------------------------------------------
def test_a_run_over_every_protocol_goes_on_where_it_was_broken_off_and_tells_no_difference(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.set_scenario({**SCENARIO, "pace": {"seconds": 3600, "hold_at": 0.0}})
    environ = environment(server, tmp_path / "live", *PROTOCOLS)

    assert main({**environ, "LIVE_MINUTES": "0"}, settings=QUICK, pause=0.05) == UNFINISHED
    told = capsys.readouterr().out
    assert all(f"{name}: NOT ENDED YET" in told for name in PROTOCOLS)
    sent = creates(server)
    assert sent == 2 * len(PROTOCOLS)

    server.set_scenario(SCENARIO)
    server.release()
    assert main(environ, settings=QUICK, pause=0.05) == OK
    assert creates(server) == sent and server.summary()["answered_twice"] == 0
    for name in PROTOCOLS:
        (path,) = (tmp_path / "live").glob(f"{name}-*.md")
        text = path.read_text()
        assert "- sound:" in text and KEY not in text
        assert "| structured | 8 | 8 answered |" in text
        assert "## Differences from the reference\n\nnone seen\n" in text, text
    assert KEY not in capsys.readouterr().out


def test_nothing_is_sent_above_the_cap(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(server.requests())
    environ = environment(server, tmp_path, "openai", LIVE_MAX_USD="0.0001")

    assert main(environ, settings=QUICK, pause=0.05) == FAILED
    assert "NOTHING WAS SENT" in capsys.readouterr().out
    assert len(server.requests()) == before


def test_a_model_without_a_price_is_reckoned_as_a_dear_one_unless_its_price_is_given(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bound(**more: str) -> float:
        environ = environment(server, tmp_path, "openai", LIVE_MAX_USD="0.000001", **more)
        assert main(environ, settings=QUICK, pause=0.05) == FAILED
        return float(capsys.readouterr().out.split("at most ")[1].split()[0])

    known, unknown = bound(), bound(LIVE_OPENAI_MODEL="m-1")
    assert unknown > 50 * known > 0
    assert bound(LIVE_OPENAI_MODEL="m-1", LIVE_PRICES='{"m-1": [0.2, 0.8]}') == pytest.approx(known, rel=0.1)


def test_without_keys_it_says_so_loudly_and_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({}) == OK

    told = capsys.readouterr().out
    assert "NOTHING WAS TESTED" in told
    for name in providers():
        assert re.search(rf"^NOT TESTED: {name} +missing: .*[A-Z_]+", told, re.MULTILINE), name
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY"):
        assert name in told
    assert "AZURE_OPENAI_API_KEY, AZURE_OPENAI_ENDPOINT, AZURE_OPENAI_DEPLOYMENT" in told


@pytest.mark.parametrize(
    "wrong",
    [
        {"LIVE_ONLY": "acme"},
        {"LIVE_MAX_USD": "much"},
        {"LIVE_MAX_USD": "-1"},
        {"LIVE_PRICES": "[1]"},
        {"LIVE_PRICES": "{"},
        {"LIVE_MINUTES": "soon"},
        {"LIVE_OPENAI_OPTIONS": "{"},
    ],
)
def test_a_variable_that_cannot_be_read_is_told_before_anything_is_sent(wrong: dict[str, str]) -> None:
    assert main(wrong) == WRONG


def test_the_environment_says_where_a_service_is_and_what_it_is_asked() -> None:
    environ = {
        "AZURE_OPENAI_AD_TOKEN": KEY,
        "AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com",
        "AZURE_OPENAI_DEPLOYMENT": "batch",
        "AZURE_OPENAI_API_VERSION": "2024-10-21",
        "GEMINI_API_KEY": KEY,
        "LIVE_GEMINI_OPTIONS": '{"inline": true}',
        "LIVE_OGX_URL": "http://ogx:8321/v1",
        "LIVE_OGX_MODEL": "m-1",
    }
    found = {service.name: service for service in services(environ) if not service.missing}

    assert list(found) == [name for name in providers() if name in ("azure", "gemini", "ogx")]
    assert found["azure"].options == {"auth": "bearer", "api_version": "2024-10-21"}
    assert (found["azure"].base_url, found["azure"].model) == ("https://r.openai.azure.com", "batch")
    assert found["gemini"].options == {"inline": True}
    assert KEY not in repr(found)


def test_a_trial_has_twenty_rows() -> None:
    assert sum(part.rows for part in PARTS) == 20


# -- what is seen ----------------------------------------------------------------------------------
def test_states_headers_and_calls_that_the_reference_has_not_are_told(
    server: LocalServer, tmp_path: Path, reference: Recording
) -> None:
    late = {"on": "retrieve", "fault": "error", "status": 429, "retry_after": 0, "times": 1}
    server.set_scenario({**SCENARIO, "pace": {"statuses": ["daydreaming"]}, "calls": [late]})

    trial = trial_of(openai(server), tmp_path / "trial")
    text = report(trial, reference, 0.01)

    assert trial.sound()
    assert re.search(r"`GET /batches/\{\} 200`: `status` was also daydreaming; of the reference: ", text)
    assert "`GET /batches/{} 429`: not seen of the reference" in text
    assert "GET /batches/{}: retry-after" in text
    assert re.search(r"## Warnings of this package\n\n- .*daydreaming", text)


def test_members_that_came_went_or_changed_their_kind_are_told() -> None:
    live, known = Recording("https://a.example/v1"), Recording("http://b.example/v1")
    known.add_rows("output", [b'{"id": "a", "usage": {"input": 1, "cached": 2}, "error": null, "type": "x"}'])
    live.add_rows("output", [b'{"id": 7, "usage": {"input": 1, "thoughts": 2}, "type": "x"}', b"not json"])
    live.add_rows("error", [b'{"id": "a", "rows": [{"z": 1}]}'])

    assert differences(live, known) == [
        "`row of error`: not seen of the reference; its members: `id`, `rows`, `rows[].z`",
        "`row of output`: `usage.thoughts` (number) is not in the reference",
        "`row of output`: `usage.cached` (number) was not there",
        "`row of output`: `id` is number, in the reference text",
    ]
    assert differences(known, known) == []


def test_what_was_seen_before_a_break_is_kept(tmp_path: Path) -> None:
    first, second = Recording("https://a.example"), Recording("https://a.example")
    first.add_rows("output", [b'{"status": "done", "n": [1, {"m": null}]}'])
    first.headers.add("GET /x: retry-after")

    first.save(tmp_path / "seen.json")
    second.load(tmp_path / "seen.json")

    assert (second.shapes, second.headers) == (first.shapes, first.headers)


def test_no_answer_and_no_prompt_is_in_a_report(
    server: LocalServer, tmp_path: Path, reference: Recording
) -> None:
    trial = trial_of(openai(server), tmp_path / "trial")
    texts = [str(answer.output) for bench in trial.benches.values() for answer in bench.answers()]

    text = report(trial, reference, 0.01)

    assert texts and not [answer for answer in texts if len(answer) > 12 and answer in text]
    assert "Answer with the word" not in text


def test_a_wrong_key_is_not_sound_and_the_next_run_tries_again(
    server: LocalServer, tmp_path: Path, reference: Recording
) -> None:
    wrong = trial_of(replace(openai(server), api_key="wrong"), tmp_path / "trial")
    wrong.forget()

    text = report(wrong, reference, 0.01)
    assert not wrong.sound()
    assert "**not sound**" in text and "BLLM-020" in text and "live_tested" not in text
    assert "the account is at fault" in text
    assert trial_of(openai(server), tmp_path / "trial").sound()
