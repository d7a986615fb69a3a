"""``hold``, ``release`` and ``holds``: whether anything is sent with a connection."""

from __future__ import annotations

import shlex

import pytest

from airflow_batch_llm.core.holds import release_command
from airflow_batch_llm.core.model import HoldOrigin, JobState
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.cli.conftest import SQLITE, Command, printed_json
from tests.integration.storage.ledgers import job_in

WHO = ("--reason", "budget", "--actor", "ann")
pytestmark = SQLITE


def test_a_person_holds_and_releases_a_connection(ledger: SqlLedger, command: Command) -> None:
    made = printed_json(command, "hold", "--conn", "llm", *WHO)
    assert (made["made"], made["origin"], made["actor"], made["reason"]) == (True, "person", "ann", "budget")
    assert printed_json(command, "hold", "--conn", "llm", "--reason", "x", "--actor", "bob")["made"] is False
    (held,) = printed_json(command, "holds")
    assert (held["conn_id"], held["actor"], held["probe_at"]) == ("llm", "ann", None)
    assert "budget" in command("holds")[1]

    assert command("release", "--conn", "llm", *WHO)[0] == 0
    assert ledger.holds() == []
    status, _, err = command("release", "--conn", "llm", *WHO)
    assert status == 4 and "'llm' is not held" in err
    found = [(e.action, e.actor) for e in ledger.events("")]
    assert found == [("connection_held", "ann"), ("connection_released", "ann")]


def test_the_command_that_the_hints_name_releases_the_connection(ledger: SqlLedger, command: Command) -> None:
    command("hold", "--conn", "llm", *WHO)
    assert command(*shlex.split(release_command("llm"))[1:])[0] == 0
    assert ledger.holds() == []


def test_jobs_of_a_held_connection_say_so(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.RUNNING)
    assert printed_json(command, "jobs")[0]["held"] is False
    command("hold", "--conn", "llm", *WHO)
    assert printed_json(command, "jobs")[0]["held"] is True
    assert "connection llm is held" in command("jobs")[2]
    assert [h["conn_id"] for h in printed_json(command, "show", job.job_id)["held"]] == ["llm"]
    assert "by ann: budget" in command("show", job.job_id)[1]


@pytest.mark.parametrize("origin", [HoldOrigin.CALL, HoldOrigin.PERSON])
def test_resume_hurries_the_trial_of_a_held_connection(
    ledger: SqlLedger, command: Command, origin: HoldOrigin
) -> None:
    job = job_in(ledger, JobState.HALTED)
    later = ledger.now() + 3600 if origin is HoldOrigin.CALL else None
    ledger.hold_connection(
        "llm", code="BLLM-020", origin=origin, job_id=job.job_id, reason="x", probe_at=later
    )
    status, out, _ = command("resume", job.job_id, "--reason", "new key", "--actor", "ann")
    held = ledger.get_hold("llm")
    assert status == 0 and held is not None
    if origin is HoldOrigin.CALL:
        assert held.probe_at is not None and held.probe_at <= ledger.now()
        assert "tries it with one batch" in out
        assert ("probe_hurried", "ann") in [(e.action, e.actor) for e in ledger.events(job.job_id)]
    else:
        assert held.probe_at is None and "batch-llm release --conn llm" in out


def test_hold_and_release_want_a_reason_and_a_connection(ledger: SqlLedger, command: Command) -> None:
    for words in (["hold", *WHO], ["release", *WHO], ["hold", "--conn", "llm"], ["release", "--conn", "llm"]):
        with pytest.raises(SystemExit) as stopped:
            command(*words)
        assert stopped.value.code == 2
    assert ledger.holds() == []
