"""``doctor``: what it finds, on real ledgers, workspaces and HTTP; what it sends with ``--live``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from airflow_batch_llm.cli import doctor_checks
from airflow_batch_llm.core.model import BatchState, HoldOrigin, JobState, LetterState
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import HEAD_REVISION
from tests.integration.cli.conftest import SQLITE, Command, define_connection
from tests.integration.engine.server_since import ServerSince
from tests.integration.storage.ledgers import batch_in

SOUND = ["ledger", "workspace", "connection", "key", "limits", "protocol", "clock", "waiting"]
LIVE = [*SOUND, "price", "rows", "cancel"]


def examine(command: Command, *words: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Run doctor and return its findings by check."""
    ended, out, err = command("doctor", "--conn", "llm", "--json", *words)
    assert ended == status, out + err
    return {finding["check"]: finding for finding in json.loads(out)}


def states(findings: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {check: finding["state"] for check, finding in findings.items()}


def test_a_sound_installation_has_no_fault(command: Command, provider: ServerSince, tmp_path: Path) -> None:
    found = examine(command)
    assert states(found) == dict.fromkeys(SOUND, "ok")
    assert found["ledger"]["schema"] == HEAD_REVISION
    assert found["limits"]["max_requests"] == 50_000
    assert abs(found["clock"]["shift_seconds"]) < doctor_checks.MOST_SHIFT_SECONDS
    assert [path for path in (tmp_path / "workspace").rglob("*") if path.is_file()] == []
    assert provider.requests("POST") == []


@SQLITE
def test_people_read_a_line_for_each_check_and_never_the_key(command: Command, provider: ServerSince) -> None:
    status, out, err = command("doctor", "--conn", "llm")
    assert status == 0
    assert [line.split()[1] for line in out.splitlines()] == SOUND
    assert provider.api_key not in out + err


@SQLITE
def test_a_wrong_key_is_told_without_the_key(
    command: Command, provider: ServerSince, monkeypatch: pytest.MonkeyPatch
) -> None:
    define_connection(monkeypatch, "llm", provider, password="sk-wrong-secret")
    found = examine(command, status=1)
    assert (found["key"]["state"], found["limits"]["state"]) == ("fault", "skipped")
    assert "401" in found["key"]["found"] and found["key"]["code"]
    status, out, err = command("doctor", "--conn", "llm", "--live", "--max-usd", "1")
    assert status == 1 and "skipped live" in " ".join(out.split())
    assert "sk-wrong-secret" not in out + err
    assert provider.requests("POST") == []


@SQLITE
def test_a_host_that_does_not_answer_is_a_fault_of_the_connection_only(
    command: Command, provider: ServerSince, monkeypatch: pytest.MonkeyPatch
) -> None:
    define_connection(monkeypatch, "llm", provider, host="http://127.0.0.1:9/v1")
    found = examine(command, status=1)
    assert [check for check, finding in found.items() if finding["state"] == "fault"] == ["key"]
    assert "http://127.0.0.1:9/v1" in found["key"]["found"]


@SQLITE
def test_a_connection_that_is_not_there_is_named(command: Command, provider: ServerSince) -> None:
    status, out, _ = command("doctor", "--conn", "nobody", "--json")
    found = {finding["check"]: finding for finding in json.loads(out)}
    assert (status, found["connection"]["state"], found["key"]["state"]) == (1, "fault", "skipped")
    assert "'nobody' is not defined" in found["connection"]["found"]


@SQLITE
def test_a_workspace_that_cannot_be_written_is_a_fault(
    command: Command, provider: ServerSince, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in-the-way").write_text("a file")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{tmp_path}/in-the-way/workspace")
    found = examine(command, "--live", "--max-usd", "1", status=1)
    assert found["workspace"]["state"] == "fault"
    assert "[batch_llm] workspace" in found["workspace"]["do"]
    assert (found["ledger"]["state"], found["live"]["state"]) == ("ok", "skipped")


@SQLITE
def test_another_workspace_than_the_jobs_is_seen(
    command: Command, provider: ServerSince, ledger: SqlLedger
) -> None:
    batch_in(ledger, BatchState.SUBMITTED)
    found = examine(command)
    assert found["workspace"]["state"] == "look"
    assert ledger.jobs(limit=1)[0].job_id in found["workspace"]["found"]


@SQLITE
def test_an_old_schema_is_told_with_the_command(
    command: Command, provider: ServerSince, ledger: SqlLedger
) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(text("UPDATE batch_llm_version SET version_num = '0001'"))
    try:
        found = examine(command, status=1)
    finally:
        with ledger.engine.begin() as connection:
            connection.execute(text("UPDATE batch_llm_version SET version_num = :v"), {"v": HEAD_REVISION})
    assert found["ledger"]["state"] == "fault" and "batch-llm db migrate" in found["ledger"]["do"]
    assert (found["clock"]["state"], found["waiting"]["state"]) == ("skipped", "skipped")
    assert found["key"]["state"] == "ok"


@SQLITE
def test_a_ledger_that_cannot_be_written_is_a_fault(
    command: Command, provider: ServerSince, ledger: SqlLedger
) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TRIGGER no_more BEFORE INSERT ON batch_llm_meta BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        )
    assert examine(command, status=1)["ledger"]["state"] == "fault"


def test_local_state_with_workers_elsewhere_is_a_fault(
    provider: ServerSince, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_batch_llm.cli.main import main

    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    assert main(["doctor", "--conn", "llm", "--json"]) == 1
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert (found["ledger"]["state"], found["workspace"]["state"]) == ("fault", "fault")
    assert "allow_local_state" in found["ledger"]["found"]


@SQLITE
def test_what_waits_for_a_person_is_told_and_is_no_fault(
    command: Command, provider: ServerSince, ledger: SqlLedger
) -> None:
    batch_in(ledger, BatchState.SUBMITTED)
    ledger.halt_job(ledger.jobs(limit=1)[0], "BLLM-031", "gone")
    ledger.hold_connection("llm", code="", origin=HoldOrigin.PERSON, reason="budget", probe_at=None)
    found = examine(command)
    assert (found["hold"]["state"], found["waiting"]["state"]) == ("look", "look")
    assert 'batch-llm release --conn llm --reason "' in found["hold"]["do"]
    assert "not tried again by itself" in found["hold"]["found"]
    ledger.release_connection("llm", actor="ann", reason="x")
    ledger.hold_connection(
        "llm", code="BLLM-020", origin=HoldOrigin.CALL, reason="a call was refused", probe_at=86_400.0
    )
    assert "tried again from 1970-01-02 00:00:00Z" in examine(command)["hold"]["found"]


@SQLITE
def test_jobs_that_were_refused_at_once_wait_for_a_person(
    command: Command, provider: ServerSince, ledger: SqlLedger
) -> None:
    batch = batch_in(ledger, BatchState.SUBMITTING)
    assert examine(command)["waiting"]["state"] == "ok"
    ledger.leave_submitting(batch, reason="model_not_found")
    found = examine(command)["waiting"]
    assert (found["state"], found["count"]) == ("look", 1) and "refused at once" in found["found"]


@SQLITE
def test_clocks_that_differ_are_a_fault(
    command: Command, provider: ServerSince, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "MOST_SHIFT_SECONDS", -1.0)
    found = examine(command, status=1)["clock"]
    assert found["state"] == "fault" and "time server" in found["do"]


@SQLITE
def test_live_sends_nothing_where_the_price_is_unknown_and_no_bound_is_given(
    command: Command, provider: ServerSince
) -> None:
    found = examine(command, "--live", status=1)
    assert states(found) == {**dict.fromkeys(SOUND, "ok"), "price": "fault"}
    assert "unknown" in found["price"]["found"] and "--max-usd" in found["price"]["do"]
    assert provider.requests("POST") == []


def test_live_sends_three_rows_through_the_engine_and_cancels_a_batch(
    command: Command, provider: ServerSince, ledger: SqlLedger
) -> None:
    found = examine(command, "--live", "--max-usd", "0.05")
    assert states(found) == dict.fromkeys(LIVE, "ok")
    assert "3 of 3 rows answered" in found["rows"]["found"]
    jobs = ledger.jobs(limit=10)
    assert [job.key.dag_id for job in jobs] == ["doctor", "doctor"]
    assert {job.state for job in jobs} == {JobState.SETTLED}
    used = sum(charge["input_tokens"] + charge["output_tokens"] for charge in provider.charges())
    assert 0 < used <= found["price"]["max_tokens"]


@SQLITE
def test_a_batch_that_runs_is_cancelled_and_leaves_no_letter_open(
    command: Command, provider: ServerSince, ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_batch_llm.cli import doctor_live

    monkeypatch.setattr(doctor_live._Trial, "rows", doctor_live._Trial.cancelled)
    provider.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
    found = examine(command, "--live", "--max-usd", "0.05")
    assert found["cancel"]["state"] == "ok"
    assert "asked to cancel; it ended as cancelled" in found["cancel"]["found"]
    assert {job.state for job in ledger.jobs(limit=10)} == {JobState.SETTLED}
    for job in ledger.jobs(limit=10):
        assert {letter.state for letter in ledger.dead_letters(job.job_id)} == {LetterState.DISCARDED}
    assert "nothing waits for a person" in examine(command)["waiting"]["found"]


@SQLITE
def test_answers_cut_at_the_limit_count_and_rows_that_fail_do_not(
    command: Command, provider: ServerSince
) -> None:
    provider.set_scenario({"rows": [{"fault": "truncated", "match": {"contains": "red"}}]})
    found = examine(command, "--live", "--max-usd", "0.05")
    assert "2 of 3 rows answered, 1 cut at 16 tokens" in found["rows"]["found"]
    provider.set_scenario({"rows": [{"fault": "bad_request", "code": "no_such_thing"}]})
    found = examine(command, "--live", "--max-usd", "0.05", status=1)
    assert found["rows"]["state"] == "fault" and "no_such_thing" in found["rows"]["found"]
