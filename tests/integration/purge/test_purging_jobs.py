"""``batch-llm purge`` of whole jobs: contents go from every place, what happened stays."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_batch_llm import Retention, read_results
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.purge import ALL, purge
from airflow_batch_llm.core.spec import OnEmpty, Rerun, Until
from airflow_batch_llm.exceptions import EmptySourceError, JobPurged, ResultsError
from tests.integration.cli.conftest import SQLITE, Command, define_connection, printed_json
from tests.integration.purge.conftest import WHO, aged, files_with, ledger_texts, outcomes_of
from tests.job_bench import Bench

pytestmark = [SQLITE, pytest.mark.usefixtures("provider")]

SECRET = "quokka"
TEXTS = {"t-1": f"{SECRET} one", "t-2": f"{SECRET} two", "t-3": f"{SECRET} bad three"}
BAD = {"rows": [{"match": {"contains": "bad"}, "fault": "bad_request"}]}


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Bench:
    """Two answers and a dead row whose provider quotes the prompt."""
    made = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    made.server.set_scenario(BAD)
    made.run()
    return made


def quoted(job: Bench) -> Bench:
    """Let the provider's message of the dead row quote its prompt, in the letter."""
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE batch_llm_dead_letter SET message = 'cannot read {SECRET} bad'")
    return job


def events(job: Bench, action: str) -> list[tuple[str, str]]:
    return [(e.actor, e.reason) for e in job.ledger.events(job.key.job_id) if e.action == action]


def test_nothing_of_rows_requests_or_answers_is_left_and_what_happened_is(
    job: Bench, command: Command
) -> None:
    quoted(job)
    answers = [str(answer.output)[:40] for answer in job.answers()]
    before, wires, batch = job.job(), outcomes_of(job), job.batches()[0]
    leftover = job.root / "batch" / ".batch-llm-1-dead"
    leftover.write_text(f"half of {SECRET}")
    assert len(files_with(job.folder, SECRET, *answers)) >= 5

    done = printed_json(command, "purge", "--job", job.key.job_id, *WHO)["jobs"][0]

    assert done["parts"] == ["dead_letters", "provider_files", "raw", "workspace"] and done["letters"] == 1
    assert files_with(job.folder, SECRET, *answers) == {}
    assert SECRET not in ledger_texts(job)
    assert outcomes_of(job) == wires, "verdicts, codes and wire ids stay"
    after, batch_after = job.job(), job.batches()[0]
    assert (after.counts, after.state, after.settled_at) == (before.counts, before.state, before.settled_at)
    assert (batch_after.sha256, batch_after.usage) == (batch.sha256, batch.usage)
    assert [file["sha256"] for file in batch_after.files] == [file["sha256"] for file in batch.files]
    manifest = json.loads((job.root / "results" / "1" / "_manifest.json").read_text())
    assert manifest["purged"] is True and manifest["rows"] == 2 and len(manifest["parts"][0]["sha256"]) == 64
    told = "dead_letters, provider_files, raw, workspace: the contract ended"
    assert events(job, "purge_begun") == events(job, "purged") == [("ann", told)]


def test_show_and_list_work_on_a_purged_job_and_what_needs_its_contents_says_so(
    job: Bench, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("purge", "--job", job.key.job_id, *WHO)[0] == 0
    job_id = job.key.job_id
    assert "purged" in command("show", job_id)[1]
    assert printed_json(command, "dead-letters", "list", job_id)[0]["custom_id"] == "t-3"
    for words in (
        ("dead-letters", "export", job_id, "--out", str(job.folder / "x.jsonl")),
        ("dead-letters", "redrive", job_id, "--all", "--reason", "again"),
    ):
        status, _, err = command(*words)
        assert status == 1 and "BLLM-051" in err, words
    assert not (job.folder / "x.jsonl").exists()
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{job.folder}")
    with pytest.raises(ResultsError, match="were purged"):
        read_results(job.root / "results" / "1")


@pytest.mark.parametrize("rerun", [Rerun.MISSING, Rerun.FAILED])
def test_a_clear_of_a_purged_job_is_refused_before_anything_is_sent(
    job: Bench, command: Command, rerun: Rerun
) -> None:
    assert command("purge", "--job", job.key.job_id, *WHO)[0] == 0
    paid = job.server.summary()["charged"]
    with pytest.raises(JobPurged, match='rerun="fresh"'):
        job.clear(rerun=rerun).settle()
    with pytest.raises(JobPurged):
        job.retry().until(Until.SETTLED)
    with pytest.raises(JobPurged):
        job.call(lambda engine: engine.redrive(actor="ann", reason="", mark="m"))
    assert (job.job().revision, job.server.summary()["charged"]) == (1, paid)
    assert job.job().state is JobState.SETTLED


def test_a_fresh_clear_of_a_purged_job_asks_for_everything_again(job: Bench, command: Command) -> None:
    assert command("purge", "--job", job.key.job_id, *WHO)[0] == 0
    job.server.set_scenario({})
    again = job.clear(rerun=Rerun.FRESH)
    assert again.run().counts["answered"] == 3 and len(again.answers()) == 3
    assert job.server.summary()["charged"] == 5
    # And what it holds can be purged in its turn.
    done = printed_json(command, "purge", "--job", job.key.job_id, *WHO)["jobs"][0]
    assert "workspace" in done["parts"] and files_with(job.folder, SECRET) == {}


def test_a_purge_that_died_is_finished_by_the_next_one(job: Bench, command: Command) -> None:
    points: list[str] = []

    def crash_at(number: int) -> Callable[[str], None]:
        def fault(point: str) -> None:
            points.append(point)
            if len(points) == number:
                raise KeyboardInterrupt

        return fault

    def attempt(number: int) -> None:
        points.clear()
        work = purge(
            job.ledger, job.workspace, job.job(), ALL - {"provider_files"}, actor="ann", reason="r",
            backend_of=lambda conn_id: job.backend(job.server), fault=crash_at(number),
        )  # fmt: skip
        job.call(lambda engine: work)

    quoted(job)
    crashes = 0
    for number in itertools.count(1):
        try:
            attempt(number)
            break
        except KeyboardInterrupt:
            crashes += 1
        with pytest.raises(JobPurged):
            job.clear().settle()
    assert crashes >= 3 and job.job().seen["purged"]["done"]
    assert command("purge", "--job", job.key.job_id, *WHO)[0] == 0
    assert files_with(job.folder, SECRET) == {} and SECRET not in ledger_texts(job)


# -- which jobs ------------------------------------------------------------------------------------
def test_older_than_takes_jobs_by_the_time_they_settled_and_names_those_that_have_not(
    bench: Callable[..., Bench], command: Command
) -> None:
    old, young, running = bench(texts=TEXTS), bench(texts=TEXTS), bench(texts=TEXTS)
    old.run()
    young.run()
    running.server.set_scenario({"pace": {"seconds": 600}})
    running.step(Until.ENDED, submitting=True)
    aged([old, running], days=31)

    status, out, err = command("purge", "--older-than", "30d", *WHO, "--json")
    shown = json.loads(out)
    assert [job["job_id"] for job in shown["jobs"]] == [old.key.job_id]
    assert [job["job_id"] for job in shown["passed_over"]] == [running.key.job_id]
    assert status == 7 and "is running" in shown["passed_over"][0]["why"]
    assert young.answers() and old.job().seen["purged"]["done"]
    running.server.set_scenario({})
    status, out, _ = command("purge", "--older-than", "30d", *WHO, "--dag", "another")
    assert status == 0 and "Nothing is to be purged" in out


def test_a_job_that_was_refused_before_anything_was_kept_is_no_obstacle(
    bench: Callable[..., Bench], command: Command
) -> None:
    refused = bench(texts={}, on_empty=OnEmpty.FAIL)
    with pytest.raises(EmptySourceError):
        refused.run()
    assert refused.job().state is JobState.STAGING
    aged([refused], days=31)
    status, out, _ = command("purge", "--older-than", "30d", *WHO)
    assert status == 0 and "Nothing is to be purged" in out


def test_due_applies_each_jobs_own_retention(bench: Callable[..., Bench], command: Command) -> None:
    retention = Retention(raw=timedelta(days=7), workspace=timedelta(days=30)).serialize()
    kept = bench(texts=TEXTS)
    kept.run()
    ruled = bench(texts=TEXTS, describe={"retention": retention})
    ruled.run()
    assert printed_json(command, "purge", "--due", *WHO)["jobs"] == []
    aged([kept, ruled], days=8)
    assert [job["parts"] for job in printed_json(command, "purge", "--due", *WHO)["jobs"]] == [["raw"]]
    assert len(ruled.answers()) == 3, "the results are kept"
    assert (
        not files_with(ruled.root / "batch", "completion")
        and printed_json(command, "purge", "--due", *WHO)["jobs"] == []
    )
    aged([kept, ruled], days=30)
    assert [job["parts"] for job in printed_json(command, "purge", "--due", *WHO)["jobs"]] == [["workspace"]]
    assert files_with(ruled.root, SECRET) == {} and len(kept.answers()) == 3


def test_messages_alone_can_go_and_the_job_works_on(job: Bench, bench: Any, command: Command) -> None:
    quoted(job)
    described = {"retention": Retention(dead_letters=timedelta(0)).serialize()}
    plan = job.root / f"plan-{job.job().plan_id}" / "job.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **described}))
    assert printed_json(command, "purge", "--due", *WHO)["jobs"][0]["letters"] == 1
    assert SECRET not in ledger_texts(job)
    job.server.set_scenario({})
    assert job.clear(rerun=Rerun.FAILED).run().counts["answered"] == 3
    job.assert_accounted()


def test_a_dry_run_changes_nothing(job: Bench, command: Command) -> None:
    before = sorted((path, path.read_bytes()) for path in job.folder.rglob("*") if path.is_file())
    shown = printed_json(command, "purge", "--job", job.key.job_id, "--dry-run", *WHO)
    assert shown["dry_run"] is True and shown["jobs"][0]["files"] >= 4
    assert sorted((path, path.read_bytes()) for path in job.folder.rglob("*") if path.is_file()) == before
    assert "purge_begun" not in job.actions() and "purged" not in job.job().seen


def test_a_halted_job_is_purged_only_by_force_and_never_goes_on(
    bench: Callable[..., Bench], command: Command
) -> None:
    halted = bench(texts=TEXTS)
    halted.server.set_scenario({"pace": {"seconds": 600}})
    halted.step(Until.ENDED, submitting=True)
    assert command("cancel", halted.key.job_id, *WHO)[0] == 0
    job_id = halted.key.job_id
    status, _, err = command("purge", "--job", job_id, *WHO)
    assert status == 6 and "is halted" in err and "--force" in err
    status, _, err = command("purge", "--job", job_id, "--force", *WHO)
    assert status == 6 and "has not been read" in err
    halted.server.wait_for("cancelled")
    halted.until(Until.RECONCILED)
    assert command("purge", "--job", job_id, "--force", *WHO)[0] == 0
    assert files_with(halted.root, SECRET) == {}
    assert command("resume", job_id, *WHO)[0] == 0
    with pytest.raises(JobPurged):
        halted.until(Until.SETTLED)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--due", "--force"), "--force goes with --job"),
        (("--job", "abcdef", "--dag", "d"), "--dag does not go with --job"),
        (("--job", "abcdef"), "no job 'abcdef'"),
    ],
)
def test_arguments_that_do_not_fit_are_told(command: Command, words: tuple[str, ...], told: str) -> None:
    status, _, err = command("purge", *words, *WHO)
    assert status in (2, 4) and told in err


# -- the provider's files --------------------------------------------------------------------------
def provider_files(job: Bench) -> int:
    return len([call for call in job.server.requests("DELETE") if call["path"].startswith("/v1/files/")])


def test_the_providers_own_files_are_deleted_too(job: Bench, command: Command) -> None:
    deleted = provider_files(job)
    done = printed_json(command, "purge", "--job", job.key.job_id, *WHO)["jobs"][0]
    assert done["provider_files"] >= 1 and done["failed"] == {}
    assert provider_files(job) > deleted


def test_files_that_cannot_be_deleted_there_are_named_and_left_for_the_next_time(
    job: Bench, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = job.server
    monkeypatch.delenv("AIRFLOW_CONN_LLM")
    status, out, err = command("purge", "--job", job.key.job_id, *WHO, "--json")
    assert status == 7 and set(json.loads(out)["jobs"][0]["failed"].values()) == {"BLLM-001"}
    assert files_with(job.folder, SECRET) == {}, "what is here goes all the same"
    define_connection(monkeypatch, "llm", server)
    done = printed_json(command, "purge", "--job", job.key.job_id, *WHO)["jobs"][0]
    assert done["parts"] == ["provider_files"] and done["failed"] == {}


def test_the_providers_files_can_be_left_alone(
    job: Bench, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_LLM")
    words = ("purge", "--job", job.key.job_id, "--keep-provider-files", *WHO)
    assert "provider_files" not in printed_json(command, *words)["jobs"][0]["parts"]
