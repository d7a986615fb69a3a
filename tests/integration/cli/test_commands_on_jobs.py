"""``batch-llm jobs``, ``show``, ``events``, ``resume`` and ``dead-letters`` on a ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.core.model import (
    BatchError,
    BatchState,
    HoldOrigin,
    Job,
    JobKey,
    JobState,
    LetterState,
    RemoteStatus,
)
from airflow_batch_llm.storage.engine import writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.schema import job as job_table
from tests.integration.cli.conftest import SQLITE, Command, printed_json
from tests.integration.storage.ledgers import (
    FACTS,
    batch_in,
    job_in,
    letter,
    new_job,
    plan,
    remote,
    running_job,
    some,
)


def job_of(ledger: SqlLedger, dag_id: str, created_at: float) -> Job:
    key = JobKey(ledger.namespace(), dag_id, "run-1", "submit", 2)
    job, _ = ledger.create_job(key, **FACTS, seen={})
    with writing(ledger.engine) as connection:
        connection.execute(
            update(job_table).where(job_table.c.job_id == job.job_id).values(created_at=created_at)
        )
    return job


def rename(ledger: SqlLedger, job: Job, job_id: str) -> None:
    with writing(ledger.engine) as connection:
        connection.execute(update(job_table).where(job_table.c.job_id == job.job_id).values(job_id=job_id))


# -- jobs ------------------------------------------------------------------------------------------
def test_jobs_are_listed_newest_first_and_by_dag_and_state(ledger: SqlLedger, command: Command) -> None:
    old, new, other = job_of(ledger, "a", 100.0), job_of(ledger, "b", 300.0), job_of(ledger, "c", 200.0)
    some(ledger.halt_job(other, "BLLM-021", "no credit"))

    def listed(*words: str) -> list[str]:
        return [job["job_id"] for job in printed_json(command, "jobs", *words)]

    assert listed() == [new.job_id, other.job_id, old.job_id]
    assert listed("--limit", "2") == [new.job_id, other.job_id]
    assert listed("--dag", "a") == [old.job_id]
    assert listed("--state", "halted") == [other.job_id]
    assert listed("--dag", "a", "--state", "halted") == []
    assert "more than 2" in command("jobs", "--limit", "2")[2]
    assert command("jobs", "--limit", "3")[2] == ""


@SQLITE
def test_a_line_of_jobs_says_whose_job_it_is_and_how_it_stands(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.HALTED)
    status, out, _ = command("jobs")
    head, line = out.splitlines()
    assert status == 0 and head.split()[:3] == ["JOB", "STATE", "CODE"]
    for word in (job.job_id, "halted", "BLLM-021", "nightly", "run-1", "submit"):
        assert word in line.split()


@SQLITE
def test_an_empty_ledger_has_no_jobs(ledger: SqlLedger, command: Command) -> None:
    assert printed_json(command, "jobs") == []
    assert printed_json(command, "dead-letters", "list", "--dag", "nightly") == []


# -- which job -------------------------------------------------------------------------------------
def test_a_job_is_found_by_the_beginning_of_its_id(ledger: SqlLedger, command: Command) -> None:
    for task, job_id in (("one", "abcdef01" * 4), ("two", "abcdef02" * 4)):
        rename(ledger, new_job(ledger, task), job_id)

    assert printed_json(command, "show", "ABCDEF01")["job_id"] == "abcdef01" * 4
    assert printed_json(command, "show", "abcdef02" * 4)["task_id"] == "two"
    assert command("show", "abcdef")[0] == 5
    assert command("show", "abcdef03")[0] == 4
    assert command("show", "abcdef%1")[0] == 4, "no pattern"
    status, out, err = command("show", "abcde")
    assert (status, out) == (4, "") and "at least 6" in err


@SQLITE
@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["events"],
        ["resume", "--reason", "x"],
        ["cancel", "--reason", "x"],
        ["accept", "--reason", "x"],
        ["dead-letters", "list"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_on_a_job_tells_that_there_is_none(
    ledger: SqlLedger, command: Command, words: list[str]
) -> None:
    status, out, err = command(*words, "0123456789")
    assert (status, out) == (4, "") and err == "batch-llm: no job '0123456789' in this ledger\n"


def test_a_ledger_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--url", f"sqlite+pysqlite:///{tmp_path / 'new.db'}"]) == 3
    assert main(["jobs", "--url", "no url"]) == 1
    assert "[BLLM-001]" in capsys.readouterr().err


# -- show and events -------------------------------------------------------------------------------
@SQLITE
def test_show_has_the_job_its_batches_and_its_letters(ledger: SqlLedger, command: Command) -> None:
    batch = batch_in(ledger, BatchState.RECONCILED)
    job = some(ledger.get_job(batch.job_id))
    ledger.insert_dead_letters([letter(job, "w1"), letter(job, "w2"), letter(job, "w3", code="other")])

    shown = printed_json(command, "show", job.job_id)
    assert (shown["state"], shown["dag_id"], shown["run_id"]) == ("running", "nightly", "run-1")
    (line,) = shown["batches"]
    assert (line["state"], line["provider_batch_id"], line["counts"]) == ("reconciled", "batch_1", {"ok": 10})
    assert line["tokens"] == {"input": 1, "output": 2}
    assert shown["dead_letters"] == [
        {"state": "open", "code": "other", "letters": 1},
        {"state": "open", "code": "server_error", "letters": 2},
    ]
    status, out, _ = command("show", job.job_id)
    assert status == 0
    for word in (job.job_id, "nightly", batch.batch_id, "batch_1", "server_error", "2"):
        assert word in out.split()


@SQLITE
def test_show_of_a_halted_job_says_what_to_do(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.HALTED)
    assert "halted (BLLM-021)" in (out := command("show", job.job_id)[1]) and "batch-llm resume" in out


@SQLITE
def test_show_of_a_job_whose_model_was_refused_says_first_to_mend_it(
    ledger: SqlLedger, command: Command
) -> None:
    job = running_job(ledger)
    some(ledger.halt_job(job, "BLLM-023", "no such model"))
    out = command("show", job.job_id)[1]
    assert "next:        mend the model or the parameters, then clear task submit with downstream" in out
    assert out.index("clear task") < out.index("a resume sends the same once more")


@SQLITE
def test_show_of_a_job_that_was_refused_at_once_says_what_to_mend(
    ledger: SqlLedger, command: Command
) -> None:
    batch = batch_in(ledger, BatchState.SUBMITTING)
    some(ledger.leave_submitting(batch, reason="model_not_found"))
    out = command("show", batch.job_id)[1]
    assert "next:        nothing was accepted (model_not_found): mend the connection, the model or the" in out
    assert "clear task submit with downstream of DAG nightly, run run-1" in out


@SQLITE
def test_show_of_a_job_whose_connection_it_held_says_what_to_mend_also_after_the_release(
    ledger: SqlLedger, command: Command
) -> None:
    batch = batch_in(ledger, BatchState.PLANNED)
    for other in (True, False):
        ledger.hold_connection(
            "llm",
            code="BLLM-020",
            origin=HoldOrigin.CALL,
            job_id="other" if other else batch.job_id,
            batch_id=None if other else batch.batch_id,
            reason="a call was refused",
            probe_at=None,
        )
        out = command("show", batch.job_id)[1]
        assert ("nothing was accepted (the connection was held)" in out) is not other
        ledger.release_connection("llm", actor="ann", reason="mended")
    assert "nothing was accepted (the connection was held)" in command("show", batch.job_id)[1]


@SQLITE
def test_show_does_not_tell_a_person_to_act_where_a_job_goes_on_by_itself(
    ledger: SqlLedger, command: Command
) -> None:
    batch = batch_in(ledger, BatchState.SUBMITTING)
    assert "nothing was accepted" not in command("show", batch.job_id)[1]
    left = some(ledger.leave_submitting(batch, reason="queue_full", not_before=ledger.now() + 60))
    assert "if the task that sends has failed, mend" in command("show", batch.job_id)[1]
    some(ledger.enter_submitting(left, revision=1, lease_seconds=60.0))
    some(ledger.mark_submitted(some(ledger.get_batch(batch.batch_id)), remote()))
    assert "next:" not in command("show", batch.job_id)[1]


@SQLITE
def test_show_of_a_settled_job_says_what_to_do_about_open_letters(
    ledger: SqlLedger, command: Command
) -> None:
    job = job_in(ledger, JobState.SETTLED)
    assert "next:" not in command("show", job.job_id)[1]
    ledger.insert_dead_letters([letter(job, "w1")])
    out = command("show", job.job_id)[1]
    assert f"batch-llm dead-letters redrive {job.job_id[:12]} --all --reason" in out
    assert "clear submit with downstream" in out
    accepted = some(ledger.accept_job(job, letters=1, actor="ann", reason="known"))
    assert "next:" not in command("show", accepted.job_id)[1]


@SQLITE
def test_events_are_in_order_with_actor_and_reason(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.HALTED)
    ledger.add_event(job.job_id, "noted", actor="ann", reason="line one\nline two\x1b[31m")

    events = printed_json(command, "events", job.job_id)
    assert [e["action"] for e in events] == ["job_created", "plan_pinned", "halted", "noted"]
    assert set(events[0]) == {"time", "job_id", "batch_id", "actor", "action", "reason"}
    assert (events[-1]["actor"], events[-1]["reason"]) == ("ann", "line one\nline two\x1b[31m")
    lines = command("events", job.job_id)[1].splitlines()
    assert len(lines) == 5, "an event is one line, whatever it says"
    assert "\x1b" not in lines[-1] and "ann" in lines[-1]


# -- resume ----------------------------------------------------------------------------------------
@SQLITE
def test_resume_is_a_decision_with_actor_and_reason(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.HALTED)

    status, out, _ = command("resume", job.job_id[:8], "--reason", "credit is there", "--actor", "ann")
    assert status == 0 and "running again" in out
    assert "clear task retry with downstream of DAG nightly, run run-1" in out
    resumed = some(ledger.get_job(job.job_id))
    assert (resumed.state, resumed.halt_code) == (JobState.RUNNING, None)
    last = ledger.events(job.job_id)[-1]
    assert (last.action, last.actor, last.reason) == ("resumed", "ann", "credit is there")


@SQLITE
def test_resume_prints_the_job_as_it_is_now(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.HALTED)
    printed = printed_json(command, "resume", job.job_id, "--reason", "mended")
    assert printed["state"] == "running" and "retry" in printed["next"]
    assert ledger.events(job.job_id)[-1].actor not in ("", "machine"), "the login name"


@SQLITE
def test_a_job_halted_before_it_had_a_plan_goes_back_to_its_submit_task(
    ledger: SqlLedger, command: Command
) -> None:
    job = some(ledger.halt_job(new_job(ledger), "BLLM-020", "key"))
    status, out, _ = command("resume", job.job_id, "--reason", "new key")
    assert status == 0 and "staging again" in out and "clear task submit with downstream" in out


@SQLITE
@pytest.mark.parametrize("state", [JobState.STAGING, JobState.RUNNING, JobState.SETTLED])
def test_a_job_that_is_not_halted_is_not_resumed(
    ledger: SqlLedger, command: Command, state: JobState
) -> None:
    job = job_in(ledger, state)
    status, _, err = command("resume", job.job_id, "--reason", "x")
    assert status == 6 and f"is {state}, not halted" in err
    assert ledger.get_job(job.job_id) == job


@SQLITE
def test_a_job_whose_time_is_over_needs_a_new_one(ledger: SqlLedger, command: Command) -> None:
    job = some(ledger.halt_job(new_job(ledger, deadline_at=1.0), "BLLM-043", "late"))
    status, _, err = command("resume", job.job_id, "--reason", "x")
    assert status == 6 and "--job-timeout" in err
    before = ledger.now()
    assert command("resume", job.job_id, "--reason", "x", "--job-timeout", "2")[0] == 0
    bound = some(ledger.get_job(job.job_id)).deadline_at
    assert bound is not None and before + 7200 <= bound <= ledger.now() + 7200


@SQLITE
@pytest.mark.parametrize("code", ["BLLM-031", "BLLM-021"])
def test_a_job_that_lost_a_batch_is_not_resumed_until_a_clear_sent_its_rows_again(
    ledger: SqlLedger, command: Command, code: str
) -> None:
    batch = batch_in(ledger, BatchState.LOST)
    some(ledger.halt_job(some(ledger.get_job(batch.job_id)), code, ""))
    status, _, err = command("resume", batch.job_id, "--reason", "x")
    assert status == 6 and "BLLM-031" in err and "batch-llm adopt" in err and "batch-llm abandon" in err

    cleared = some(ledger.begin_revision(some(ledger.get_job(batch.job_id)), **FACTS, seen={}, fresh=False))
    running = some(ledger.pin_plan(cleared, plan("p2")))
    some(ledger.halt_job(running, "BLLM-021", "no credit"))
    assert command("resume", batch.job_id, "--reason", "x")[0] == 0


@SQLITE
def test_resume_wants_a_reason_and_a_person(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.HALTED)
    for words in ([], ["--reason", " "], ["--reason", "x", "--actor", "machine"]):
        with pytest.raises(SystemExit) as stopped:
            command("resume", job.job_id, *words)
        assert stopped.value.code == 2
    assert ledger.get_job(job.job_id) == job


# -- dead letters ----------------------------------------------------------------------------------
def test_dead_letters_are_listed_by_job_dag_run_state_and_code(ledger: SqlLedger, command: Command) -> None:
    one, two = job_of(ledger, "a", 100.0), job_of(ledger, "b", 200.0)
    ledger.insert_dead_letters([letter(one, "w1", "t-1", attempts=3), letter(one, "w2", "t-2", code="bad")])
    ledger.insert_dead_letters([letter(two, "w1", "t-3")])
    ledger.move_dead_letters(
        one.job_id, ["w2"], to=LetterState.DISCARDED, expect=[LetterState.OPEN], actor="ann", reason="no"
    )

    def listed(*words: str) -> list[str]:
        return sorted(x["custom_id"] for x in printed_json(command, "dead-letters", "list", *words))

    assert listed(one.job_id) == ["t-1"]
    assert listed(one.job_id, "--state", "all") == ["t-1", "t-2"]
    assert listed(one.job_id, "--state", "discarded") == ["t-2"]
    assert listed("--dag", "b") == ["t-3"]
    assert listed("--dag", "a", "--run", "run-1") == ["t-1"]
    assert listed("--dag", "a", "--run", "run-2") == []
    assert listed("--dag", "a", "--state", "all", "--code", "bad") == ["t-2"]
    assert len(listed(one.job_id, "--state", "all", "--limit", "1")) == 1
    (line,) = printed_json(command, "dead-letters", "list", one.job_id)
    assert (line["verdict"], line["code"], line["attempts"], line["state"], line["map_index"]) == (
        "server_error", "server_error", 3, "open", 2,
    )  # fmt: skip


@SQLITE
def test_what_the_provider_said_is_never_printed(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.RUNNING)
    said = letter(job, "w1", "t\x1b-1\n", message="SECRET words", code="SECRET words of a prompt")
    ledger.insert_dead_letters([said])
    for words in (["dead-letters", "list", job.job_id], ["show", job.job_id], ["events", job.job_id]):
        for form in ([], ["--json"]):
            status, out, err = command(*words, *form)
            assert status == 0 and "SECRET" not in out + err and "\x1b" not in out
    assert "t\\x1b-1\\n" in command("dead-letters", "list", job.job_id)[1]


@SQLITE
def test_a_create_call_in_doubt_is_shown_with_what_to_do(ledger: SqlLedger, command: Command) -> None:
    batch = batch_in(ledger, BatchState.SUBMITTING)
    shown = command("show", batch.job_id)[1]
    assert f"in doubt:    {batch.batch_id}" in shown and "BLLM-025" in shown and "clear task" in shown
    some(ledger.mark_submitted(batch, remote("batch_9")))
    assert "in doubt" not in command("show", batch.job_id)[1]


@SQLITE
def test_a_text_that_the_provider_puts_where_codes_stand_is_not_printed(
    ledger: SqlLedger, command: Command
) -> None:
    said = "SECRET words of a prompt"
    batch = batch_in(ledger, BatchState.SUBMITTING)
    batch = some(ledger.leave_submitting(batch, reason=said))
    batch = some(ledger.put_back(batch, reason=said, not_before=None))
    batch = some(ledger.mark_uploaded(batch, "file-2"))
    batch = some(ledger.enter_submitting(batch, revision=1, lease_seconds=9))
    batch = some(ledger.mark_submitted(batch, remote("batch_9")))
    odd = replace(remote("batch_9"), status=RemoteStatus.FAILED, raw_status=said, errors=(BatchError(said),))
    some(ledger.mark_ended(batch, odd))
    ledger.add_event(batch.job_id, "lines_refused", batch_id=batch.batch_id, reason=f"line 1 ('t'): {said}")
    job = some(ledger.get_job(batch.job_id))
    some(ledger.halt_job(job, "BLLM-021", f"batch {batch.batch_id}: {said}"))
    for words in (["events"], ["show"], ["resume", "--reason", "mended"], ["events"]):
        for form in ([], ["--json"]):
            _, out, err = command(words[0], batch.job_id, *words[1:], *form)
            assert "SECRET" not in out + err
    told = [e["reason"] for e in printed_json(command, "events", batch.job_id)]
    assert f"BLLM-021: batch {batch.batch_id}: (not a code)" in told and "status (not a code)" in told
    assert "mended" in told, "what a person wrote is shown"


@SQLITE
def test_a_list_that_finds_nothing_says_so_apart(ledger: SqlLedger, command: Command) -> None:
    job = job_in(ledger, JobState.RUNNING)
    for words in (["jobs", "--dag", "nobody"], ["dead-letters", "list", job.job_id], ["holds"]):
        assert command(*words) == (0, "", "none\n")
        assert command(*words, "--json") == (0, "[]\n", "")


def test_a_command_without_its_words_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["dead-letters"], ["show", "--help"], ["dead-letters", "list", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    printed = capsys.readouterr()
    assert "required: {list,show,export,discard,redrive}" in printed.err
    assert " ".join(printed.out.split()).count("id of the job as batch-llm jobs prints it") == 2


@SQLITE
def test_dead_letters_of_neither_job_nor_dag_are_not_asked_for(ledger: SqlLedger, command: Command) -> None:
    for words in ([], ["0123456789", "--dag", "a"]):
        with pytest.raises(SystemExit) as stopped:
            command("dead-letters", "list", *words)
        assert stopped.value.code == 2
