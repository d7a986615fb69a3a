"""``dead-letters show``, ``export``, ``discard`` and ``redrive`` on jobs at a real server."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Until
from tests.integration.cli.conftest import SQLITE, Command, printed_json
from tests.integration.storage.ledgers import letter, new_job
from tests.job_bench import Bench, drafts_of

pytestmark = [SQLITE, pytest.mark.usefixtures("provider")]

TEXTS = {f"t-{n}": f"SECRET number {n}." for n in range(6)}
WHO = ("--reason", "as ann says", "--actor", "ann")
BAD: dict[str, Any] = {"match": {"contains": "number 1."}, "fault": "bad_request", "code": "odd_code"}
FLAKY: dict[str, Any] = {"match": {"contains": "number 2."}, "fault": "server_error"}


@pytest.fixture
def failed(bench: Callable[..., Bench]) -> Bench:
    """A settled job with two dead letters: t-1 for good, t-2 by exhaustion."""
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=1))
    job.server.set_scenario({"rows": [BAD, FLAKY]})
    assert job.run().counts["dead"] == 2
    job.server.set_scenario({})
    return job


# -- show ------------------------------------------------------------------------------------------
def test_a_letter_is_shown_with_its_attempts_and_where_its_request_is(
    failed: Bench, command: Command
) -> None:
    (shown,) = printed_json(command, "dead-letters", "show", failed.key.job_id, "t-2")
    assert [a["verdict"] for a in shown["history"]] == ["server_error", "server_error"]
    assert (failed.root / shown["request_path"]).exists() and shown["exhausted"] is True
    assert "message" not in shown and shown["changes"] == []
    status, out, _ = command("dead-letters", "show", failed.key.job_id, "t-2")
    assert status == 0 and "server_error" in out and failed.batches()[1].provider_batch_id in out


def test_what_the_provider_said_is_shown_only_where_asked_for(failed: Bench, command: Command) -> None:
    said = failed.letters()[0].message
    assert said
    for words in ([], ["--json"]):
        for custom_id in ("t-1", "t-2"):
            assert said not in command("dead-letters", "show", failed.key.job_id, custom_id, *words)[1]
    assert said in "".join(
        command("dead-letters", "show", failed.key.job_id, custom_id, "--message")[1]
        for custom_id in ("t-1", "t-2")
    )


def rejects(output: Any, row: dict[str, Any]) -> str | None:
    """Reject one answer."""
    return "TOLD why" if row["id"] == "t-3" else None


def test_a_rejected_answer_is_shown_and_exported_where_asked_for(
    bench: Callable[..., Bench], command: Command, tmp_path: Path
) -> None:
    job = bench(texts=TEXTS, judge=Judge(validate=rejects), policy=RowRetry(max_rounds=1))
    assert job.run().counts["dead"] == 1
    words = ("dead-letters", "show", job.key.job_id, "t-3")

    for form in ([], ["--json"]):
        said = command(*words, *form)[1]
        assert "rejected" in said and "TOLD" not in said and "number 3" not in said
    assert "number 3" in command(*words, "--message")[1]
    (shown,) = printed_json(command, *words, "--message")
    assert shown["message"] == "TOLD why" and "number 3" in shown["text"]

    out = tmp_path / "letters.jsonl"
    assert command("dead-letters", "export", job.key.job_id, "--out", str(out))[0] == 0
    (line,) = map(json.loads, out.read_text().splitlines())
    assert "number 3" in line["text"] and line["request"]["messages"]
    table = tmp_path / "letters.csv"
    assert command("dead-letters", "export", job.key.job_id, "--out", str(table))[0] == 0
    (row,) = csv.DictReader(table.open(newline=""))
    assert row["text"] == line["text"] and json.loads(row["request"]) == line["request"]

    for file in job.root.glob("batch/*/outcomes-*"):
        file.unlink()
    (shown,) = printed_json(command, *words, "--message")
    assert shown["message"] == "TOLD why" and shown["text"] is None, "the words are gone, the letter is not"


def test_a_row_without_a_letter_is_told(failed: Bench, command: Command) -> None:
    status, _, err = command("dead-letters", "show", failed.key.job_id, "t-0")
    assert status == 4 and "no dead letter of custom id 't-0'" in err


def test_ids_are_told_apart_to_the_character(bench: Callable[..., Bench], command: Command) -> None:
    job = new_job(bench().ledger)
    for number, custom_id in enumerate(("-a", "A", "a", "é", "a%", "\ud800")):
        bench().ledger.insert_dead_letters([letter(job, f"w{number}", custom_id)])
    for custom_id in ("A", "a", "é", "a%"):
        (shown,) = printed_json(command, "dead-letters", "show", job.job_id, custom_id)
        assert shown["custom_id"] == custom_id


# -- export ----------------------------------------------------------------------------------------
def test_letters_are_exported_with_their_requests(failed: Bench, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "letters.jsonl"
    status, told, _ = command("dead-letters", "export", failed.key.job_id, "--out", str(out))
    assert status == 0 and "2 dead letters" in told and "SECRET" not in told
    lines = {line["custom_id"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert sorted(lines) == ["t-1", "t-2"]
    assert lines["t-1"]["request"] == {"messages": [{"role": "user", "content": "SECRET number 1."}]}
    assert (lines["t-1"]["code"], lines["t-2"]["attempts"]) == ("odd_code", 2)
    assert out.stat().st_mode & 0o077 == 0, "it holds prompts"

    table = tmp_path / "letters.csv"
    shown = printed_json(
        command, "dead-letters", "export", failed.key.job_id, "--out", str(table), "--code", "odd_code"
    )
    assert (shown["letters"], shown["format"]) == (1, "csv")
    (row,) = csv.DictReader(table.open(newline=""))
    assert row["custom_id"] == "t-1" and json.loads(row["request"])["messages"]


def test_rows_that_were_never_sent_are_exported_without_a_request(
    bench: Callable[..., Bench], command: Command, tmp_path: Path
) -> None:
    draft = replace(drafts_of(TEXTS)[0], body={"messages": "\ud800"})
    job = bench(drafts=lambda: [draft, *drafts_of(TEXTS)[1:]])
    job.run()
    out = tmp_path / "letters.jsonl"
    assert command("dead-letters", "export", job.key.job_id, "--out", str(out))[0] == 0
    (line,) = map(json.loads, out.read_text().splitlines())
    assert (line["custom_id"], line["request"]) == ("t-0", None)


def test_an_export_is_whole_or_not_there(failed: Bench, command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    out = folder / "letters.jsonl"
    out.write_text("as it was")
    (requests,) = (failed.root / x.request_path for x in failed.letters() if x.custom_id == "t-2")
    requests.write_bytes(requests.read_bytes().replace(b"SECRET", b"CHANGE"))
    status, _, err = command("dead-letters", "export", failed.key.job_id, "--out", str(out))
    assert status == 1 and "BLLM-050" in err and "SECRET" not in err
    assert [path.name for path in folder.iterdir()] == ["letters.jsonl"] and out.read_text() == "as it was"
    status, _, err = command("dead-letters", "export", failed.key.job_id, "--out", str(folder / "no" / "x"))
    assert status == 1 and "cannot be written" in err


# -- discard ---------------------------------------------------------------------------------------
def test_letters_are_discarded_by_id_or_code_with_a_reason(failed: Bench, command: Command) -> None:
    job_id = failed.key.job_id
    status, _, err = command("dead-letters", "discard", job_id, "--id", "t-1", "--id", "t-0", *WHO)
    assert status == 4 and "'t-0'" in err and len(failed.open_letters()) == 2, "all or none"
    assert command("dead-letters", "discard", job_id, "--code", "no_such", *WHO)[0] == 6
    shown = printed_json(command, "dead-letters", "discard", job_id, "--id", "t-1", *WHO)
    assert shown["discarded"] == 1 and "clear task labels.dead_letter" in shown["next"]
    (found,) = printed_json(command, "dead-letters", "show", job_id, "t-1")
    assert (found["state"], found["actor"], found["reason"]) == ("discarded", "ann", "as ann says")
    assert [c["to"] for c in found["changes"]] == ["discarded"]
    assert command("dead-letters", "discard", job_id, "--all", *WHO)[0] == 0
    assert failed.open_letters() == {}
    failed.until(Until.SETTLED)
    assert {x.state for x in failed.letters()} == {LetterState.DISCARDED}, "a later settling keeps that"


# -- redrive ---------------------------------------------------------------------------------------
def test_a_redrive_is_planned_here_and_sent_by_the_tasks(failed: Bench, command: Command) -> None:
    job_id = failed.key.job_id
    shown = printed_json(command, "dead-letters", "redrive", job_id, "--code", "odd_code", *WHO)
    assert (shown["redriven"], shown["state"]) == (1, "running")
    assert shown["next"].startswith("Now clear task labels.retry with downstream")
    assert {x.custom_id: x.state for x in failed.letters()} == {
        "t-1": LetterState.REDRIVING, "t-2": LetterState.OPEN,
    }  # fmt: skip
    status, _, err = command("dead-letters", "redrive", job_id, "--all", *WHO)
    assert status == 6 and "a re-drive is under way" in err
    failed.until(Until.RETRIED)
    assert failed.until(Until.SETTLED).counts["answered"] == 5
    assert failed.open_letters() == {"t-2": "server_error"}
    failed.assert_accounted()


def test_a_redrive_can_be_waited_for(failed: Bench, command: Command) -> None:
    status, out, err = command("dead-letters", "redrive", failed.key.job_id, "--all", "--wait", *WHO)
    assert status == 0 and "it is settled" in out and "clear task labels.dead_letter" in out, err
    assert failed.job().state is JobState.SETTLED and failed.open_letters() == {}
    assert len(failed.answers()) == 6
    events = failed.ledger.events(failed.key.job_id)
    assert [(e.actor, "as ann says" in e.reason) for e in events if e.action == "round_pinned"][-1] == (
        "ann", True,
    )  # fmt: skip
    assert command("dead-letters", "redrive", failed.key.job_id, "--all", *WHO)[0] == 6
    failed.assert_accounted()


def test_letters_of_rows_with_the_same_request_are_exported_each_with_that_request(
    bench: Callable[..., Bench], command: Command, tmp_path: Path
) -> None:
    job = bench(
        texts={"r-1": "SECRET number 1.", "r-2": "SECRET number 1.", "r-3": "SECRET number 1."},
        reuse=Reuse("job"),
    )
    job.server.set_scenario({"rows": [BAD]})
    assert job.run().counts["dead"] == 3
    out = tmp_path / "letters.jsonl"
    assert command("dead-letters", "export", job.key.job_id, "--out", str(out))[0] == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == ["r-1", "r-2", "r-3"]
    assert {line["request"]["messages"][0]["content"] for line in lines} == {"SECRET number 1."}
    assert len({line["wire_id"] for line in lines}) == 3
